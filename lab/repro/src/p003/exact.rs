//! What the bounds of the index of siblings cost, and what aggregation costs tasks that wait.

use anyhow::Result;
use evenkeel_sim::{Report, Scheduler};

use super::lab::{
    Bonus, FAIR, Lab, SHOWN, Seen, co_scheduled, fairness, ias, names, quad, slice_ms, spaces,
    time_ms, touch, wait_ms, with_fair,
};
use crate::simulated::{Contestant, median};
use crate::study::{Finding, Panel, Part, Status};

/// The aims: so much of what exact IAS takes off the switches, and of its co-scheduling.
const LEAST_PART: f64 = 0.8;
const PROGRAMS: u64 = 10;
const THREADS: u64 = 100;
const CPUS: u64 = 4;
/// Programs that run alone: nothing of them may become worse.
const ALONE: [&str; 3] =
    ["memory:programs=1,threads=100,total=10", "groups:programs=1,threads=32", "pool"];
/// Worse than this is worse.
const WORSE: f64 = 1.01;

const BONUSES: [(&str, Bonus); 4] = [
    ("10M", Bonus::Ns(10_000_000)),
    ("1x", Bonus::Times(1)),
    ("3x", Bonus::Times(3)),
    ("5x", Bonus::Times(5)),
];

/// What a contestant is measured against: its searches have no end, and cost nothing.
fn exact((name, bonus): &(&str, Bonus)) -> Result<Contestant> {
    let mut contestant = ias(&exact_name(name), *bonus)?;
    if let Scheduler::Keel(options) = contestant.how.scheduler {
        contestant.how.scheduler = Scheduler::Exact(options);
    }
    Ok(contestant)
}

fn exact_name(name: &str) -> String {
    format!("{name}, exact")
}

fn misses(report: &Report) -> f64 {
    let count = |name: &str| report.counters.get(name).copied().unwrap_or_default() as f64;
    100.0 * count("window") / count("enqueue").max(1.0)
}

/// The keel against itself with searches for tasks to pull that have no end, and cost nothing.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(lab: &Lab) -> Result<Part> {
    let threads = if lab.is_quick { 20 } else { THREADS };
    let load = format!("memory:programs={PROGRAMS},threads={threads},touch={}", touch());
    let mut all = with_fair(BONUSES)?;
    let places = names(&all);
    all.extend(BONUSES.iter().map(exact).collect::<Result<Vec<_>>>()?);
    let seen = lab.see(std::slice::from_ref(&load), &quad(1.0)?, &all, lab.seeds)?;
    let misses: (_, _, fn(&Report) -> f64) =
        ("misses", "tasks that the index of siblings had no room for, %", misses);
    let figures = SHOWN.into_iter().chain([misses, ("time", "execution time, ms", time_ms)]);
    let panels = figures.map(|(id, y, value)| {
        let points = |name_of: fn(&str) -> String| {
            let is_bonus = |name: &str| BONUSES.iter().any(|(known, _)| *known == name);
            let name = |name: &String| {
                if is_bonus(name) { name_of(name) } else { name.clone() }
            };
            places.iter().map(|place| seen.point(&load, &name(place), value)).collect()
        };
        let title = format!("10 programs of {threads} threads: {y}");
        let series = [("keel", points(str::to_owned)), ("exact", points(exact_name))];
        Panel::new([&format!("exact-{id}"), &title, "bonus", y], &places, series)
    });
    let panels = panels.collect();
    let mut findings = found(&seen, &load, threads);
    findings.push(alone(lab)?);
    Ok(Part {
        title: "Exact aggregation, and what it costs threads that wait".into(),
        method: format!(
            "`{load}`: the keel knows the siblings that wait on a CPU by an index, up to 128 in a row \
             of it; `exact` is the same code where a CPU that pulls tasks looks at whole queues, and \
             looking is free. In every simulation with a bonus in ns it is checked that no queue's \
             head gets the CPU before a sibling that the bonus lets run (`siblings_first`; not in the \
             turn after a rescue). A bonus of 10M, and 1, 3 and 5 times what ran last (slices of {} \
             ms).",
            slice_ms()
        ),
        findings,
        panels,
        ..Part::default()
    })
}

fn found(seen: &Seen, load: &str, threads: u64) -> Vec<Finding> {
    let of = |name: &str, value| seen.median(load, name, value);
    let (mut reduced, mut together, mut longer, mut waits) = (vec![], vec![], vec![], vec![]);
    let siblings = (threads / CPUS) as f64;
    for (name, bonus) in BONUSES {
        let exact = exact_name(name);
        let cut = |name: &str| 1.0 - of(name, spaces) / of(FAIR, spaces);
        reduced.push(cut(name) / cut(&exact));
        together.push(of(name, co_scheduled) / of(&exact, co_scheduled));
        let bound = bonus.ms() + slice_ms() * siblings;
        waits.push(of(name, wait_ms) / bound);
        longer.push((of(name, wait_ms) - of(FAIR, wait_ms)) / bound);
    }
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let text = |values: &[f64]| {
        values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(", ")
    };
    let (even, even_fair) = (of("3x", fairness), of(FAIR, fairness));
    let in_turn = "with 10M, 1x, 3x, 5x";
    vec![
        Finding::new(
            "switches between address spaces are reduced as by exact IAS at the same bonus",
            "0.8 of its reduction at least (our aim)",
            format!("{} of it {in_turn}", text(&reduced)),
            Status::reached(least(&reduced) >= LEAST_PART),
        ),
        Finding::new(
            "the co-scheduling share of a group is as by exact IAS",
            "0.8 of its share at least (our aim)",
            format!("{} of it {in_turn}", text(&together)),
            Status::reached(least(&together) >= LEAST_PART),
        ),
        Finding::new(
            "p99 wait",
            "bonus + slice x runnable siblings of a CPU at most (our aim)",
            format!(
                "{} times that {in_turn}; under fair it is {:.0} ms, which is what a slice for each \
                 of the 250 threads of a CPU comes to: no scheduler with this slice can reach the aim",
                text(&waits),
                of(FAIR, wait_ms)
            ),
            Status::reached(most(&waits) <= 1.0),
        ),
        Finding::new(
            "p99 wait beyond that under fair",
            "bonus + slice x runnable siblings of a CPU at most",
            format!("{} times that {in_turn}", text(&longer)),
            Status::reached(most(&longer) <= 1.0),
        ),
        Finding::new(
            "threads get on as evenly as under fair (Jain's index)",
            "no less than under fair (our aim)",
            format!("{even:.3} with 3x, {even_fair:.3} under fair"),
            Status::reached(even >= even_fair),
        ),
    ]
}

/// Programs that are alone on the machine.
fn alone(lab: &Lab) -> Result<Finding> {
    let loads: Vec<String> = ALONE.iter().map(|&load| load.to_owned()).collect();
    let seen = lab.see(&loads, &quad(1.0)?, &with_fair([("3x", Bonus::Times(3))])?, lab.seeds)?;
    let time = |load: &String| median(&seen.by_fair(load, "3x", time_ms));
    let times: Vec<f64> = loads.iter().map(time).collect();
    let most = times.iter().copied().fold(0.0, f64::max);
    let each = times.iter().map(|ratio| format!("{ratio:.3}")).collect::<Vec<_>>().join(", ");
    Ok(Finding::new(
        "a single program is not worse off than under fair",
        "1.01 times as long at most (our aim)",
        format!("{each} times as long: {}", ALONE.join(", ")),
        Status::reached(most <= WORSE),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_searches_miss_no_task() {
        let part = measure(&Lab::quick(2)).unwrap();
        let misses = part.panels.iter().find(|panel| panel.id == "exact-misses").unwrap();
        let exact = misses.series.iter().find(|series| series.name == "exact").unwrap();
        assert!(exact.points.iter().all(|point| point.unwrap().median == 0.0));
        assert_eq!(part.findings.len(), 6);
        assert_eq!(misses.places, ["fair", "10M", "1x", "3x", "5x", "fair again"]);
    }
}
