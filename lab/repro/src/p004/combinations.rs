//! All eight combinations of the keel's policies, those with `ias` in both of its modes, on five loads:
//! which of them is for what.

use anyhow::Result;
use evenkeel_keel::{Aggregation, Balance, Gate, Mode, Options, Order};
use evenkeel_machine::Machine;
use evenkeel_sim::{Report, Scheduler};

use super::{Scale, WARM_HIGH_LEVEL, migrations};
use crate::simulated::{Contestant, How, Runs, Value, contestant, median, with_again};
use crate::study::{Panel, Part, Point};

/// Loads and their machines; each has more than one kind of CPU, or more than one cache.
const LOADS: [(&str, &str); 5] = [
    ("hogs:tasks=40,work=400ms", "hybrid"),
    ("barrier:tasks=20,work=5ms,rounds=40", "hybrid"),
    ("pool:clients=64,servers=32,requests=50", "server"),
    ("arrivals:tasks=200", "server"),
    ("groups:programs=6,threads=8", "small"),
];

/// How far siblings may run ahead: three times what ran last.
const AGGREGATION: Aggregation =
    Aggregation { pid: 0, agg: 1, bonus_type: 1, bonus_value: 3, limit: 0 };

/// What is shown of each load.
const SHOWN: [(&str, &str, Value); 5] = [
    ("latency", "p99 from waking up to sleeping again, ms", |report| report.response.p99_ms),
    ("throughput", "time until all is done, ms", |report| report.makespan_ms),
    ("turn-around", "mean turn-around time, ms", |report| report.tat.mean_ms),
    ("moved", "migrations, 1/s", migrations),
    ("spaces", "switches to another address space, 1/s", spaces),
];

fn spaces(report: &Report) -> f64 {
    report.switches_other_space as f64 * 1000.0 / report.makespan_ms
}

/// The answers to the first question, and what the page calls them; the baseline's is the first one.
const ORDERS: [(&str, Order, Mode); 3] = [
    ("fair", Order::Fair, Mode::Rounds),
    ("ias", Order::Ias, Mode::Rounds),
    ("ias-paper", Order::Ias, Mode::Paper),
];

/// All of them; `zone` at warm-high, `capability` with `home` and `cost`, `ias` with programs that
/// aggregate.
fn contestants() -> Result<Vec<Contestant>> {
    let mut all = Vec::new();
    for (name, order, mode) in ORDERS {
        for gate in Gate::ALL {
            for balance in Balance::ALL {
                let mut options =
                    Options { order, gate: *gate, balance: *balance, ..Options::default() };
                options.ias.mode = mode;
                if *gate == Gate::Zone {
                    options.zone.set_level(WARM_HIGH_LEVEL.parse()?);
                }
                if *balance == Balance::Capability {
                    options.parts = "home,cost".parse()?;
                }
                let aggregation = (order == Order::Ias).then_some(AGGREGATION);
                let how = How { aggregation, ..Scheduler::Keel(options).into() };
                all.push(contestant(&format!("{name}/{gate}/{balance}"), how));
            }
        }
    }
    Ok(all)
}

/// All combinations on all loads.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(scale: &Scale) -> Result<Part> {
    let contestants = contestants()?;
    let mut runs = Runs::default();
    for (text, machine) in LOADS {
        let machine = Machine::preset(machine)?;
        runs.extend(scale.lab.run(&machine, &[text.to_owned()], &contestants, scale.lab.seeds)?);
    }
    let names = || contestants.iter().map(|one| one.name.as_str());
    let panel = |(id, y, value): (&str, &str, Value)| {
        let series = with_again(names()).into_iter().map(|name| {
            let points =
                LOADS.map(|(text, machine)| Point::of(&runs.of(machine, text, &name, value)));
            (name, points.to_vec())
        });
        let title = format!("Eight combinations: {y}");
        Panel::new([id, &title, "load", y], LOADS.map(|(text, _)| shape(text)), series)
    };
    let best = |(text, machine): &(&str, &str)| {
        let of = |name: &str| median(&runs.of(machine, text, name, |report| report.tat.mean_ms));
        let plain = of(&contestants[0].name);
        let name = names().min_by(|a, b| of(a).total_cmp(&of(b))).unwrap_or_default();
        let times = of(name) / plain;
        format!("{}: {name}, {times:.3} times as long as by fair/always/count", shape(text))
    };
    let shortest: Vec<String> = LOADS.iter().map(best).collect();
    Ok(Part {
        title: "All eight combinations".into(),
        method: format!(
            "Each answer to each question (`--order`, `--gate`, `--balance`) with each of the others, \
             on five loads: {}. The gate `zone` at warm-high, the balance `capability` with `--parts \
             home,cost`, under `ias` every program aggregates with a bonus of 3x; `ias-paper` is its \
             mode `paper`. The shortest mean turn-around times: {}.",
            LOADS.map(|(text, machine)| format!("`{text}` on `{machine}`")).join(", "),
            shortest.join("; ")
        ),
        panels: SHOWN.map(panel).to_vec(),
        ..Part::default()
    })
}

fn shape(text: &str) -> String {
    text.split(':').next().unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_eight_in_both_modes_and_each_has_its_figures() {
        let names: std::collections::BTreeSet<String> =
            contestants().unwrap().into_iter().map(|one| one.name).collect();
        assert_eq!(names.len(), 12, "{names:?}");
        let part = measure(&Scale::new(true, None).unwrap()).unwrap();
        let points = part.panels.iter().flat_map(|panel| &panel.series);
        assert!(points.flat_map(|series| &series.points).all(Option::is_some));
        let of = |name: &str| {
            let panel = part.panels.iter().find(|panel| panel.id == "spaces").unwrap();
            let series = panel.series.iter().find(|series| series.name == name).unwrap();
            series.points[4].unwrap().median
        };
        // Programs of many threads, more of them than CPUs: siblings run in a row.
        assert!(of("ias/always/count") < of("fair/always/count"));
        assert!(of("ias-paper/always/count") < of("fair/always/count"));
    }
}
