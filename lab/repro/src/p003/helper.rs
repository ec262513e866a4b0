//! The helper thread that the paper leaves for later (`--ias-auto`), against bonuses that are fixed
//! before and hold for all programs, on the machine with the measured and fitted costs of refilling
//! caches (`evenkeel-lab bench refill`).
//!
//! Its constants were chosen by [`CHOSEN_BY`] alone; what it is judged by has other numbers and sizes.

use anyhow::Result;
use evenkeel_machine::Machine;

use super::lab::{Bonus, FAIR, Lab, Seen, fairness, names, time_ms, wait_ms, with_fair};
use crate::simulated::{median, ratios};
use crate::study::{Finding, Panel, Part, Point, Status};

/// A load, and what the page calls it.
type Load = (&'static str, &'static str);

/// By these its constants were chosen (and by those of lab/sim/tests/auto.rs that are said to be).
const CHOSEN_BY: [Load; 4] = [
    ("groups a", "groups:programs=4,threads=16,work=1ms,rounds=5000,pause=2ms,kib=1700"),
    ("groups b", "groups:programs=6,threads=8,work=500us,rounds=9000,pause=1ms,kib=800"),
    (
        "tiers a",
        "tiers:clients=60,web=30,database=15,think=5ms,work=500us,query=800us,requests=4000,\
         web_kib=1600,database_kib=1600",
    ),
    (
        "tiers b",
        "tiers:clients=100,web=20,database=20,think=20ms,work=300us,query=500us,requests=3000,\
         web_kib=1200,database_kib=2000",
    ),
];
/// Held out: programs that gain by aggregation, ...
const JUDGED_BY: [Load; 8] = [
    ("groups 1", "groups:programs=3,threads=30,work=4ms,rounds=1200,pause=10ms,kib=1200"),
    ("groups 2", "groups:programs=8,threads=6,work=1500us,rounds=5000,pause=500us,kib=500"),
    ("groups 3", "groups:programs=5,threads=12,work=800us,rounds=8000,pause=3ms,kib=1800"),
    ("groups 4", "groups:programs=7,threads=9,work=400us,rounds=12000,pause=2ms,kib=1500"),
    (
        "tiers 1",
        "tiers:clients=150,web=40,database=25,think=30ms,requests=800,web_kib=1200,database_kib=1400",
    ),
    (
        "tiers 2",
        "tiers:clients=80,web=25,database=50,think=10ms,work=2ms,query=1ms,requests=1200,web_kib=1800,\
         database_kib=900",
    ),
    (
        "tiers 3",
        "tiers:clients=200,web=64,database=32,think=40ms,work=700us,query=3ms,requests=500,web_kib=700,\
         database_kib=1900",
    ),
    (
        "tiers 4",
        "tiers:clients=120,web=30,database=60,think=8ms,work=400us,query=400us,requests=2500,\
         web_kib=1900,database_kib=1700",
    ),
];
/// ... programs of siblings that share nothing, ...
const SHARING_NOTHING: [Load; 2] = [
    ("nothing 1", "groups:programs=5,threads=7,work=1200us,rounds=6000,pause=3ms"),
    ("nothing 2", "groups:programs=4,threads=16,work=5ms,rounds=900,pause=8ms"),
];
/// ... and programs that wait for something else than a CPU.
const WAITING: [Load; 2] = [
    ("waiting 1", "groups:programs=6,threads=4,work=200us,rounds=2000,pause=20ms,kib=500"),
    (
        "waiting 2",
        "tiers:clients=40,web=20,database=20,think=100ms,work=300us,query=600us,requests=600,\
         web_kib=800,database_kib=800",
    ),
];
/// Multiples of what ran last.
const FIXED: [(&str, Bonus); 4] = [
    ("1x", Bonus::Times(1)),
    ("4x", Bonus::Times(4)),
    ("16x", Bonus::Times(16)),
    ("64x", Bonus::Times(64)),
];
/// The helper thread's name.
const AUTO: &str = "auto";
/// Our aims.
const BEHIND: f64 = 1.05;
const HARMED: f64 = 1.01;
const LONGER: f64 = 1.2;
const LESS_EVEN: f64 = 0.01;
/// Each case takes a minute or two of simulated time.
const SEEDS: u64 = 3;

/// The machine, or one on which a switch to another address space costs no more than any other.
///
/// # Errors
/// None that could happen.
pub fn machine(sharing_counts: bool) -> Result<Machine> {
    let mut machine = Machine::preset("measured")?;
    if !sharing_counts {
        machine.name.push_str(", nothing shared");
        machine.costs.near_kib = 0;
        machine.costs.refill_space_ns = 0;
        machine.costs.space_ns = 0;
    }
    Ok(machine)
}

/// The loads under `fair`, fixed bonuses and `auto`.
struct Judged<'a> {
    /// What the page calls them, and their texts.
    loads: Vec<(&'static str, String)>,
    fixed: &'a [(&'static str, Bonus)],
    seen: Seen,
}

impl<'a> Judged<'a> {
    fn simulate(
        lab: &Lab,
        loads: &[Load],
        machine: &Machine,
        fixed: &'a [(&'static str, Bonus)],
    ) -> Result<Self> {
        let loads: Vec<_> = loads.iter().map(|(name, text)| (*name, lab.shortened(text))).collect();
        let texts: Vec<String> = loads.iter().map(|(_, text)| text.clone()).collect();
        let contestants = with_fair([fixed, &[(AUTO, Bonus::Auto)]].concat())?;
        let seen = lab.see(&texts, machine, &contestants, SEEDS)?;
        Ok(Self { loads, fixed, seen })
    }

    /// Times by those of the best one, seed by seed: the contestant with the shortest median time,
    /// `auto` left out.
    fn by_best(&self, load: &str, name: &str) -> Vec<f64> {
        let names = std::iter::once(FAIR).chain(self.fixed.iter().map(|(name, _)| *name));
        let time = |name: &&str| self.seen.median(load, name, time_ms);
        let best = names.min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(FAIR);
        ratios(&self.seen.of(load, name, time_ms), &self.seen.of(load, best, time_ms))
    }

    /// How much longer than under the best bonus each load takes under a contestant.
    fn behind(&self, name: &str) -> Vec<f64> {
        self.loads.iter().map(|(_, load)| median(&self.by_best(load, name))).collect()
    }

    /// How much longer than without any bonus.
    fn harmed(&self, name: &str) -> Vec<f64> {
        self.loads.iter().map(|(_, load)| median(&self.seen.by_fair(load, name, time_ms))).collect()
    }

    /// Whether it does harm, and what the largest fixed bonus does.
    fn harm(&self, claim: &str) -> Finding {
        let wanted = "1.01 times the time without it at most (our aim)";
        let mut finding = self.aim(claim, wanted, &self.harmed(AUTO), HARMED);
        for (name, _) in self.fixed {
            let times = listed_times(&self.harmed(name));
            finding.ours.push_str(&format!("; {name} for all: {times}"));
        }
        finding
    }

    /// Whether it is as good as the best, and how many loads do not tell, because no bonus is as good,
    /// too.
    fn good(&self, claim: &str) -> Finding {
        let wanted = "1.05 times its time at most (our aim)";
        let mut finding = self.aim(claim, wanted, &self.behind(AUTO), BEHIND);
        let fair = self.behind(FAIR);
        let easy = fair.iter().filter(|time| **time <= BEHIND).count();
        finding.ours.push_str(&format!(
            "; without any bonus it would be {}, so that {easy} of {} loads decide nothing",
            listed_times(&fair),
            fair.len()
        ));
        finding
    }

    /// Whether tasks wait for a CPU no longer than without any bonus.
    fn waits(&self, claim: &str) -> Finding {
        let wanted = "1.2 times those without it at most (our aim)";
        let of = |(_, load): &(_, String)| median(&self.seen.by_fair(load, AUTO, wait_ms));
        let times: Vec<f64> = self.loads.iter().map(of).collect();
        self.aim(claim, wanted, &times, LONGER)
    }

    /// Whether tasks progress as evenly as without any bonus.
    fn even(&self, claim: &str) -> Finding {
        let of = |load: &str, name: &str| self.seen.median(load, name, fairness);
        let more = |(_, load): &(_, String)| of(load, AUTO) - of(load, FAIR);
        let more: Vec<f64> = self.loads.iter().map(more).collect();
        let each = self.loads.iter().zip(&more).map(|((name, _), by)| format!("{by:+.3} ({name})"));
        let ours = each.collect::<Vec<_>>().join(", ");
        let least = more.iter().copied().fold(f64::INFINITY, f64::min);
        let wanted = "0.01 less than without it at most (our aim)";
        Finding::new(claim, wanted, ours, Status::reached(least >= -LESS_EVEN))
    }

    fn aim(&self, claim: &str, wanted: &str, times: &[f64], most: f64) -> Finding {
        let each =
            self.loads.iter().zip(times).map(|((name, _), time)| format!("{time:.3} ({name})"));
        let worst = times.iter().copied().fold(0.0, f64::max);
        let ours = format!("{} times", each.collect::<Vec<_>>().join(", "));
        Finding::new(claim, wanted, ours, Status::reached(worst <= most))
    }

    fn panel(&self, id: &str, title: &str) -> Result<Panel> {
        let contestants = with_fair([self.fixed, &[(AUTO, Bonus::Auto)]].concat())?;
        let series = names(&contestants).into_iter().map(|name| {
            let point = |(_, load): &(_, String)| Point::of(&self.by_best(load, &name));
            let points = self.loads.iter().map(point).collect();
            (name, points)
        });
        let texts =
            [&format!("helper-{id}"), title, "load", "time by that of the best fixed bonus"];
        Ok(Panel::new(texts, self.loads.iter().map(|(name, _)| name), series))
    }
}

/// All loads.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let (real, bare) = (machine(true)?, machine(false)?);
    let judged = Judged::simulate(lab, &JUDGED_BY, &real, &FIXED)?;
    let top = &FIXED[FIXED.len() - 1..];
    let nothing = Judged::simulate(lab, &SHARING_NOTHING, &bare, top)?;
    let waiting = Judged::simulate(lab, &WAITING, &real, top)?;
    let costs = &real.costs;
    Ok(Part {
        title: "The helper thread".into(),
        method: format!(
            "What the paper leaves for later: `--ias-auto` finds a multiplier for each address space \
             while programs run (learning is part of their time), beside multipliers that all \
             programs have from the beginning to the end. On the machine of \
             `product/machine/presets/measured.toml`, with the costs that `evenkeel-lab bench refill` \
             has [measured and fitted](refill.md): {} ns after another address space, and {} ns for \
             each KiB that has to be fetched again into a core's own caches of {} KiB. {SEEDS} seeds. \
             Its constants were chosen by the loads a and b; those with numbers were held out. Where \
             nothing is shared, all costs of another address space are 0.\n\n{}",
            costs.refill_space_ns,
            costs.near_fetch_ns,
            costs.near_kib,
            listed(&[&CHOSEN_BY, &JUDGED_BY, &SHARING_NOTHING, &WAITING])
        ),
        findings: vec![
            judged.good(
                "the helper thread is about as good as the best fixed bonus, on loads that were held \
                 out",
            ),
            judged.waits("tasks wait no longer for a CPU than without a bonus, at p99"),
            judged.even("and progress as evenly (Jain's index of the tasks' progress)"),
            nothing.harm("it does no harm where siblings share nothing"),
            waiting.harm("nor to programs that wait for something else than a CPU"),
        ],
        panels: vec![judged.panel("judged", "Loads that were held out")?],
        ..Part::default()
    })
}

fn listed(loads: &[&[Load]]) -> String {
    let each = loads.iter().copied().flatten();
    each.map(|(name, text)| format!("- {name}: `{text}`")).collect::<Vec<_>>().join("\n")
}

fn listed_times(times: &[f64]) -> String {
    times.iter().map(|time| format!("{time:.3}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_it_is_judged_by_chose_its_constants() {
        // The numbers of a load, in whatever order.
        let numbers = |text: &str| {
            let (_, numbers) = text.split_once(':').unwrap();
            let mut numbers: Vec<String> = numbers.split(',').map(str::to_owned).collect();
            numbers.sort_unstable();
            numbers
        };
        for (name, text) in JUDGED_BY.iter().chain(&SHARING_NOTHING).chain(&WAITING) {
            for (_, chosen) in CHOSEN_BY {
                let (held_out, chosen) = (numbers(text), numbers(chosen));
                let same = held_out.iter().filter(|number| chosen.contains(number)).count();
                assert!(2 * same < chosen.len(), "{name} is like {chosen:?}");
            }
        }
    }

    #[test]
    fn on_a_bare_machine_address_spaces_make_no_difference() {
        let costs = machine(false).unwrap().costs;
        assert_eq!((costs.near_kib, costs.refill_space_ns, costs.space_ns), (0, 0, 0));
        let costs = machine(true).unwrap().costs;
        assert!(costs.near_kib > 0 && costs.near_fetch_ns > 0);
    }

    #[test]
    fn every_load_has_a_time_under_everybody() {
        let part = measure(&Lab::quick(1)).unwrap();
        assert_eq!(part.findings.len(), 5);
        for panel in &part.panels {
            assert!(panel.series.iter().all(|series| series.points.iter().all(Option::is_some)));
            // The best one is measured by itself.
            for at in 0..panel.places.len() {
                let fixed = panel
                    .series
                    .iter()
                    .filter(|series| !["auto", "fair again"].contains(&&*series.name));
                let least = fixed.filter_map(|series| Some(series.points[at]?.median));
                assert_eq!(least.fold(f64::INFINITY, f64::min), 1.0);
            }
        }
    }
}
