//! The gates over utilisation: tasks that work and sleep at random, four for each CPU, which together
//! want a part of it.

use anyhow::Result;
use evenkeel_machine::Machine;
use evenkeel_sim::Report;

use super::contestant::{ALL, ALWAYS, STRICT, WARM_HIGH, contestants};
use super::{Scale, far_migrations, migrations};
use crate::simulated::{Runs, Value, median, ratios, with_again};
use crate::study::{Finding, Panel, Part, Point, Status};

/// CPUs of a machine, four to a cache, 32 to a node.
const CPUS: [u32; 4] = [8, 16, 64, 128];
const QUICK_CPUS: [u32; 1] = [8];
/// What all tasks together want, in percent of the CPUs; the last is more than there is.
const UTILISATIONS_PCT: [u64; 6] = [20, 40, 60, 75, 95, 120];
/// The band in which the aims hold, below saturation.
const BAND_PCT: std::ops::RangeInclusive<u64> = 40..=75;
/// What the aims are.
pub(super) const CUT: f64 = 5.0;
const ATTEMPTS_CUT: f64 = 3.0;
pub(super) const MOST_TIME: f64 = 1.01;
pub(super) const MOST_WAIT: f64 = 1.03;

pub(super) fn workload(cpus: u32, pct: u64) -> String {
    format!("background:cpus={cpus},pct={pct}")
}

pub(super) fn machine(cpus: u32) -> Result<Machine> {
    let list = |first: u32, count: u32| format!("\"{first}-{}\"", first + count - 1);
    let caches: Vec<String> = (0..cpus / 4).map(|cache| list(cache * 4, 4)).collect();
    let count = cpus.div_ceil(32);
    let node = |id: u32| {
        let distance = |to| if to == id { "10" } else { "20" };
        let distances: Vec<&str> = (0..count).map(distance).collect();
        let cpus = list(id * 32, cpus.min(32));
        format!("{{ id = {id}, cpus = {cpus}, distances = [{}] }}", distances.join(", "))
    };
    let nodes: Vec<String> = (0..count).map(node).collect();
    let text = format!(
        "name = \"{cpus}\"\nkinds = [{{ cpus = {}, capability = 1024 }}]\nllcs = [{}]\nnodes = [{}]\n",
        list(0, cpus),
        caches.join(", "),
        nodes.join(", ")
    );
    Ok(Machine::parse_toml(&text, &format!("{cpus} CPUs"))?)
}

fn attempts(report: &Report) -> f64 {
    report.attempts.values().sum::<u64>() as f64 * 1000.0 / report.makespan_ms
}

pub(super) fn time_ms(report: &Report) -> f64 {
    report.makespan_ms
}

/// Until it gets a CPU, each time that a task wants one.
pub(super) fn wait_ms(report: &Report) -> f64 {
    report.wait.p99_ms
}

pub(super) fn response_ms(report: &Report) -> f64 {
    report.response.p99_ms
}

/// Moves that the gate was not asked about.
fn ungated(report: &Report) -> f64 {
    report.counters.get("ungated").map_or(0.0, |count| *count as f64)
}

fn idle_ms(report: &Report) -> f64 {
    report.idle_while_waiting_ms
}

/// What is shown of each size of machine.
const SHOWN: [(&str, &str, Value); 6] = [
    ("migrations", "migrations, 1/s", migrations),
    ("far", "migrations to another last-level cache, 1/s", far_migrations),
    ("attempts", "looks for work elsewhere, 1/s", attempts),
    ("wait", "p99 wait for a CPU, ms", wait_ms),
    ("response", "p99 from waking up to sleeping again, ms", response_ms),
    ("idle", "CPUs idle while as many tasks wait, ms", idle_ms),
];

/// The runs, and where to find them.
pub(super) struct Seen {
    runs: Runs,
    /// The machines, by size.
    pub cpus: Vec<u32>,
}

impl Seen {
    /// All gates on all machines at all utilisations.
    pub fn simulate(scale: &Scale) -> Result<Self> {
        let cpus = if scale.lab.is_quick { QUICK_CPUS.to_vec() } else { CPUS.to_vec() };
        let contestants = contestants(&ALL)?;
        let mut runs = Runs::default();
        for cpus in &cpus {
            let workloads = UTILISATIONS_PCT.map(|pct| workload(*cpus, pct));
            runs.extend(scale.lab.run(
                &machine(*cpus)?,
                &workloads,
                &contestants,
                scale.lab.seeds,
            )?);
        }
        Ok(Self { runs, cpus })
    }

    fn of(&self, cpus: u32, pct: u64, name: &str, value: Value) -> Vec<f64> {
        self.runs.of(&cpus.to_string(), &workload(cpus, pct), name, value)
    }

    /// The machines, and the utilisations at which the aims hold.
    fn band(&self) -> impl Iterator<Item = (u32, u64)> {
        let utilisations = UTILISATIONS_PCT.into_iter().filter(|pct| BAND_PCT.contains(pct));
        self.cpus.iter().flat_map(move |cpus| utilisations.clone().map(|pct| (*cpus, pct)))
    }

    /// A figure in the band on all machines, run by run.
    pub fn all_in_band(&self, name: &str, value: Value) -> Vec<f64> {
        self.band().flat_map(|(cpus, pct)| self.of(cpus, pct, name, value)).collect()
    }

    /// The medians of a figure by that of the gate that is always open, in the band, on all machines.
    pub fn in_band(&self, name: &str, value: Value) -> Vec<f64> {
        let by_always = |(cpus, pct)| {
            let of = |name| self.of(cpus, pct, name, value);
            median(&ratios(&of(name), &of(ALWAYS)))
        };
        self.band().map(by_always).collect()
    }

    /// A figure of all gates over utilisation, on the machine with so many CPUs.
    pub fn panel(&self, cpus: u32, (id, y, value): (&str, &str, Value)) -> Panel {
        let series = with_again(ALL).into_iter().map(|name| {
            let point = |pct| Point::of(&self.of(cpus, pct, &name, value));
            let points = UTILISATIONS_PCT.map(point).to_vec();
            (name, points)
        });
        let (id, title) = (format!("{id}-{cpus}"), format!("{cpus} CPUs: {y}"));
        Panel::new([&id, &title, "utilisation, %", y], UTILISATIONS_PCT, series)
    }
}

/// Smallest and largest.
pub(super) fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(low, high), value| (value.min(low), value.max(high)))
}

/// All gates on all machines at all utilisations.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(scale: &Scale) -> Result<Part> {
    let seen = scale.seen()?;
    let mut panels = Vec::new();
    for cpus in &seen.cpus {
        for shown in SHOWN {
            panels.push(seen.panel(*cpus, shown));
        }
    }
    let [moved, tried, times, waits, responses] =
        [far_migrations as Value, attempts, time_ms, wait_ms, response_ms]
            .map(|value| range(&seen.in_band(WARM_HIGH, value)));
    let [strict_moved, strict_waits] =
        [migrations as Value, response_ms].map(|value| range(&seen.in_band(STRICT, value)));
    let unasked: f64 = seen.all_in_band(STRICT, ungated).iter().sum();
    let (least_cut, least_attempts_cut) = (1.0 / moved.1, 1.0 / tried.1);
    let findings = vec![
        Finding::new(
            "from 40 to 75 % warm-high cuts migrations to other last-level caches",
            format!("{CUT} times at least (our aim)"),
            format!("{:.1} to {:.1} times", least_cut, 1.0 / moved.0),
            Status::reached(least_cut >= CUT),
        ),
        Finding::new(
            "and looks for work elsewhere",
            format!("{ATTEMPTS_CUT} times at least (our aim)"),
            format!("{:.1} to {:.1} times", least_attempts_cut, 1.0 / tried.0),
            Status::reached(least_attempts_cut >= ATTEMPTS_CUT),
        ),
        Finding::new(
            "and all is done as soon as with a gate that is always open",
            format!("{MOST_TIME} times as late at most (our aim)"),
            format!("{:.3} to {:.3} times", times.0, times.1),
            Status::reached(times.1 <= MOST_TIME),
        ),
        Finding::new(
            "and tasks' p99 wait for a CPU is no longer",
            format!("{MOST_WAIT} times at most (our aim)"),
            format!(
                "{:.2} to {:.2} times; p99 from waking up to sleeping again {:.2} to {:.2} times",
                waits.0, waits.1, responses.0, responses.1
            ),
            Status::reached(waits.1 <= MOST_WAIT),
        ),
        Finding::new(
            "the paper's own way (strict): no task is moved in the quiet zone",
            "no balancing at all there",
            format!(
                "{unasked:.0} moves without the gate's leave; {:.2} to {:.2} times as many migrations \
                 as always; p99 from waking up to sleeping again {:.2} to {:.2} times as long",
                strict_moved.0, strict_moved.1, strict_waits.0, strict_waits.1
            ),
            Status::reproduced(unasked == 0.0 && strict_moved.1 <= 1.0 / CUT),
        ),
    ];
    Ok(Part {
        title: "The gates over utilisation".into(),
        method: "The paper has one load, which saturates four CPUs; there all zones let load be \
                 balanced. The gate works below that: tasks that work and sleep by turns of random \
                 length (2 ms of work on the average), four for each CPU, want 20 to 120 % of the \
                 CPUs, four to a last-level cache. All gates have the same tasks with the same seeds. \
                 Utilisation is that of the CPU that a task would leave, or (mean) of all; `strict` \
                 leaves a waiting task to the gate however long it waits, within a cache too; all \
                 others weigh the wait against the refill of caches."
            .into(),
        findings,
        panels,
        ..Part::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_of_their_size() {
        for cpus in CPUS {
            let machine = machine(cpus).unwrap();
            assert_eq!((machine.cpus.len() as u32, machine.name), (cpus, cpus.to_string()));
        }
    }

    #[test]
    fn a_shut_gate_moves_fewer() {
        let part = measure(&Scale::new(true, None).unwrap()).unwrap();
        assert_eq!(part.panels.len(), SHOWN.len());
        let series = &part.panels[0].series;
        let at_60 = |name: &str| {
            let of = series.iter().find(|series| series.name == name).unwrap();
            of.points[2].unwrap().median
        };
        assert!(at_60(STRICT) < at_60(ALWAYS));
    }
}
