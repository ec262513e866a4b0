//! The mode `rounds`, in which users have the keel, on the paper's loads: what it gains where another
//! address space costs what was measured and fitted (`evenkeel-lab bench refill`), what where it costs
//! nothing, and how long threads wait.

use anyhow::Result;
use evenkeel_keel::{Aggregation, Mode, Options, Order};
use evenkeel_machine::Machine;
use evenkeel_sim::{Report, Scheduler};

use super::lab::{FAIR, Lab, Seen, duo, names, quad, wait_ms};
use super::{groups, helper, servers, strength};
use crate::simulated::{Contestant, How, Value, contestant, median};
use crate::study::{Finding, Panel, Part, Point, Status};

/// What is judged, ...
const ROUNDS: &str = "rounds";
/// ... and the paper's rule beside it.
const LITERAL: &str = "paper";
/// The largest difference that counts as none, and how much longer threads may wait: our aims.
const SAME: f64 = 0.01;
const LONGER: f64 = 1.2;
/// Each case takes seconds.
const SEEDS: u64 = 5;

/// The keel as it is by default, with its own slices and turns; all programs have the usual bonus.
fn contestants() -> Vec<Contestant> {
    let aggregation = Aggregation { pid: 0, agg: 1, bonus_type: 1, bonus_value: 3, limit: 0 };
    let ias = |name: &str, mode| {
        let mut options = Options { order: Order::Ias, ..Options::default() };
        options.ias.mode = mode;
        let how = How { aggregation: Some(aggregation), ..Scheduler::Keel(options).into() };
        contestant(name, how)
    };
    vec![
        contestant(FAIR, Scheduler::Keel(Options::default())),
        ias(ROUNDS, Mode::Rounds),
        ias(LITERAL, Mode::Paper),
    ]
}

/// The loads of table 1, which run on two cores, and after them those of figures 4 and 5: what the page
/// calls each, and its text.
fn loads(is_quick: bool) -> Vec<(String, String)> {
    let of_block = |block: &u64| {
        let text = groups::load(is_quick, *block, false);
        (format!("figure 5, {block} MiB"), text)
    };
    let mut all = vec![
        ("table 1".to_owned(), servers::load(is_quick)),
        ("figure 4".to_owned(), strength::load(is_quick)),
    ];
    all.extend(groups::blocks_of(is_quick).iter().map(of_block));
    all
}

/// All loads on the paper's machines with the measured costs, or with none of another address space.
struct Judged {
    loads: Vec<(String, String)>,
    on_two: Seen,
    on_four: Seen,
}

impl Judged {
    fn simulate(lab: &Lab, sharing_counts: bool) -> Result<Self> {
        let (loads, contestants) = (loads(lab.is_quick), contestants());
        let costs = helper::machine(sharing_counts)?.costs;
        let texts: Vec<String> = loads.iter().map(|(_, text)| text.clone()).collect();
        let (two, four) = texts.split_at(1);
        let see = |machine: Machine, texts: &[String]| {
            lab.see(texts, &Machine { costs, ..machine }, &contestants, SEEDS)
        };
        Ok(Self { on_two: see(duo()?, two)?, on_four: see(quad(1.0)?, four)?, loads })
    }

    /// A figure by that under `fair`, by load and seed.
    fn by_fair(&self, name: &str, value: Value) -> Vec<Vec<f64>> {
        let places = self.loads.iter().enumerate();
        let of = |(at, (_, text)): (usize, &(String, String))| {
            let seen = if at == 0 { &self.on_two } else { &self.on_four };
            seen.by_fair(text, name, value)
        };
        places.map(of).collect()
    }

    /// The same, the median of the seeds.
    fn medians(&self, name: &str, value: Value) -> Vec<f64> {
        self.by_fair(name, value).iter().map(|ratios| median(ratios)).collect()
    }

    fn panel(&self, id: &str, title: &str, y: &str, value: Value) -> Panel {
        let series = names(&contestants()).into_iter().skip(1).map(|name| {
            let points =
                self.by_fair(&name, value).iter().map(|ratios| Point::of(ratios)).collect();
            (name, points)
        });
        let texts = [&format!("rounds-{id}"), title, "load", y];
        Panel::new(texts, self.loads.iter().map(|(name, _)| name), series)
    }
}

/// From the arrival to the end: the mean of all tasks.
fn turn_around_ms(report: &Report) -> f64 {
    report.tat.mean_ms
}

fn listed(loads: &[(String, String)], times: &[f64]) -> String {
    let each = loads.iter().zip(times).map(|((name, _), time)| format!("{time:.3} ({name})"));
    format!("{} times", each.collect::<Vec<_>>().join(", "))
}

/// All loads.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let (real, bare) = (Judged::simulate(lab, true)?, Judged::simulate(lab, false)?);
    let finding = |claim: &str, aim: &str, times: Vec<f64>, is_good: fn(f64) -> bool| {
        let is_reached = times.iter().all(|time| is_good(*time));
        Finding::new(claim, aim, listed(&real.loads, &times), Status::reached(is_reached))
    };
    let costs = helper::machine(true)?.costs;
    Ok(Part {
        title: "The default mode, on the paper's loads".into(),
        method: format!(
            "The loads of table 1 and figures 4 and 5 under the keel as it is by default: address \
             spaces take turns (`--ias-mode rounds`), all programs have a bonus of 3x, slices and \
             turns are those without options; `{LITERAL}` is the paper's rule with the same bonus and \
             slices. The paper's cores, but with the costs that `evenkeel-lab bench refill` has \
             [measured and fitted](refill.md): {} ns after another address space, and {} ns for each \
             KiB that has to be fetched again into a core's own caches of {} KiB (what does not fit \
             misses with or without a switch); nothing for last-level caches, of which nothing was \
             measured. {SEEDS} seeds.\n\n{}",
            costs.refill_space_ns,
            costs.near_fetch_ns,
            costs.near_kib,
            real.loads
                .iter()
                .map(|(name, text)| format!("- {name}: `{text}`"))
                .collect::<Vec<_>>()
                .join("\n")
        ),
        findings: vec![
            finding(
                "in rounds the mean turn-around time is shorter than under fair",
                "shorter in all loads (our aim)",
                real.medians(ROUNDS, turn_around_ms),
                |time: f64| time < 1.0,
            ),
            finding(
                "and the same where another address space costs nothing",
                "the same to 1 % (our aim)",
                bare.medians(ROUNDS, turn_around_ms),
                |time: f64| (time - 1.0).abs() <= SAME,
            ),
            finding(
                "and no thread waits much longer for a CPU than under fair, at p99",
                "1.2 times at most (our aim)",
                real.medians(ROUNDS, wait_ms),
                |time: f64| time <= LONGER,
            ),
        ],
        panels: vec![
            real.panel(
                "turn-around",
                "Rounds: the mean turn-around time",
                "mean turn-around time by that under fair",
                turn_around_ms,
            ),
            bare.panel(
                "nothing",
                "Rounds: the same where another address space costs nothing",
                "mean turn-around time by that under fair",
                turn_around_ms,
            ),
            real.panel("wait", "Rounds: waits", "p99 wait for a CPU by that under fair", wait_ms),
        ],
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_has_its_figures_in_both_modes() {
        let part = measure(&Lab::quick(1)).unwrap();
        assert_eq!((part.findings.len(), part.panels.len()), (3, 3));
        for panel in &part.panels {
            let names: Vec<&str> = panel.series.iter().map(|series| &*series.name).collect();
            assert_eq!(names, [ROUNDS, LITERAL, "fair again"]);
            assert!(panel.series.iter().all(|series| series.points.iter().all(Option::is_some)));
            assert_eq!(panel.places[..2], ["table 1", "figure 4"]);
        }
    }
}
