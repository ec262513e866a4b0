//! What the gate costs on the loads of the other papers, and on programs of other shapes.

use anyhow::Result;
use evenkeel_machine::Machine;
use evenkeel_sim::paper002::TABLES;

use super::Scale;
use super::contestant::{ALWAYS, Contestant, STRICT, WARM_HIGH};
use crate::repro::simulated::{Runs, median, ratios};
use crate::repro::study::{Finding, Panel, Part, Point, Series, Status};

const CONTESTANTS: [Contestant; 3] = [ALWAYS, WARM_HIGH, STRICT];
/// How much later all may be done.
const MOST_TIME: f64 = 1.03;
/// Programs of other shapes, and their machine.
const SHAPES: [(&str, &str); 5] = [
    ("hogs:tasks=5", "small"),
    ("barrier:tasks=8", "small"),
    ("pool", "small"),
    ("arrivals", "server"),
    ("groups", "hybrid"),
];

/// Machine and workload.
fn cases(scale: &Scale) -> Vec<(String, String)> {
    let tables = TABLES.iter().flat_map(|table| {
        let rows = if scale.is_quick { &table.rows[..1] } else { &table.rows[..] };
        rows.iter().map(move |row| {
            let (system, name) = (table.system, table.workload);
            let text = format!("paper002:system={system},table={name},processes={}", row.processes);
            (system.to_owned(), text)
        })
    });
    let shapes = SHAPES.map(|(text, machine)| (machine.to_owned(), text.to_owned()));
    tables.chain(shapes).collect()
}

/// When all is done, by the gate that is always open.
///
/// # Errors
/// Something cannot be simulated.
pub fn measure(scale: &Scale) -> Result<Part> {
    let schedulers: Vec<_> =
        CONTESTANTS.iter().map(Contestant::scheduler).collect::<Result<_>>()?;
    let cases = cases(scale);
    let mut runs = Runs::default();
    for (system, text) in &cases {
        let machines = vec![Machine::preset(system)?];
        runs.extend(scale.simulator.sweep(
            vec![text.clone()],
            machines,
            schedulers.clone(),
            None,
            scale.seeds,
        )?);
    }
    let mut series = Vec::new();
    let mut late = Vec::new();
    for who in [WARM_HIGH, STRICT] {
        let (ours, always) = (who.scheduler()?, ALWAYS.scheduler()?);
        let ratio = |(system, text): &(String, String)| {
            let of = |scheduler| runs.of(text, system, scheduler, |report| report.makespan_ms);
            ratios(&of(&ours), &of(&always))
        };
        let all: Vec<Vec<f64>> = cases.iter().map(ratio).collect();
        late.push(all.iter().map(|ratios| median(ratios)).fold(0.0, f64::max));
        let points = all.iter().map(|ratios| Point::of(ratios)).collect();
        series.push(Series { name: who.name.to_owned(), points });
    }
    let finding = |who: &Contestant, most: f64, status| Finding {
        claim: format!("{}: all is done as soon as with a gate that is always open", who.name),
        paper: format!("{MOST_TIME} times as late at most (our aim for warm-high)"),
        ours: format!("{most:.3} times at the worst of {} cases", cases.len()),
        bound: "-".into(),
        status,
    };
    let findings = vec![
        finding(&WARM_HIGH, late[0], Status::reached(late[0] <= MOST_TIME)),
        finding(&STRICT, late[1], Status::reproduced(late[1] > late[0])),
    ];
    Ok(Part {
        title: "What the gate costs on other loads".into(),
        method: "The cells of paper 002 on its machines, and programs of other shapes; the time until all \
                 is done, by that of the gate that is always open. The paper's own way may leave a CPU \
                 idle while somebody waits, which is the price that it names; `--max-idle-wait` bounds it."
            .into(),
        findings,
        panels: vec![Panel {
            id: "workloads".into(),
            title: "Time until all is done, by that with the gate always open".into(),
            x: "case".into(),
            y: "times".into(),
            places: (1..=cases.len()).map(|case| case.to_string()).collect(),
            series,
        }],
        not_run: Vec::new(),
        ..Part::default()
    })
}
