//! What the gate costs on the loads of the other papers, and on programs of other shapes.

use anyhow::Result;
use evenkeel_machine::Machine;
use evenkeel_sim::paper002::TABLES;

use super::Scale;
use super::contestant::{ALWAYS, STRICT, WARM_HIGH, contestants};
use crate::simulated::{Runs, median, ratios, with_again};
use crate::study::{Finding, Panel, Part, Point, Status};

const CONTESTANTS: [&str; 3] = [ALWAYS, WARM_HIGH, STRICT];
/// How much later all may be done.
const MOST_TIME: f64 = 1.03;
/// Times as many seeds as elsewhere: a job ends with its last task, which is a matter of chance.
const MORE_SEEDS: u64 = 3;
/// Programs of other shapes, and their machine.
const SHAPES: [(&str, &str); 5] = [
    ("hogs:tasks=5", "small"),
    ("barrier:tasks=8", "small"),
    ("pool", "small"),
    ("arrivals", "server"),
    ("groups", "hybrid"),
];

/// Machine and workload: the cells of paper 002, and then [`SHAPES`].
fn cases(scale: &Scale) -> Vec<(String, String)> {
    let tables = TABLES.iter().flat_map(|table| {
        let rows = if scale.lab.is_quick { &table.rows[..1] } else { &table.rows[..] };
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
    let contestants = contestants(&CONTESTANTS)?;
    let cases = cases(scale);
    let seeds = MORE_SEEDS * scale.lab.seeds;
    let mut runs = Runs::default();
    for (system, text) in &cases {
        let machine = Machine::preset(system)?;
        let workload = std::slice::from_ref(text);
        runs.extend(scale.lab.run(&machine, workload, &contestants, seeds)?);
    }
    let by_always = |name: &str| -> Vec<Vec<f64>> {
        let ratio = |(system, text): &(String, String)| {
            let of = |name| runs.of(system, text, name, |report| report.makespan_ms);
            ratios(&of(name), &of(ALWAYS))
        };
        cases.iter().map(ratio).collect()
    };
    let medians = |name| {
        let all: Vec<f64> = by_always(name).iter().map(|one| median(one)).collect();
        let (papers, shapes) = all.split_at(all.len() - SHAPES.len());
        [papers.to_vec(), shapes.to_vec()]
    };
    let series = with_again(CONTESTANTS).into_iter().skip(1).map(|name| {
        let points = by_always(&name).iter().map(|ratios| Point::of(ratios)).collect();
        (name, points)
    });
    let worst = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
    let at_worst =
        |times: &[f64]| format!("{:.3} times at the worst of {} cases", worst(times), times.len());
    let soon = |what: &str, times: &[f64]| {
        Finding::new(
            format!("warm-high: {what} is done as soon as with a gate that is always open"),
            format!("{MOST_TIME} times as late at most (our aim)"),
            at_worst(times),
            Status::reached(worst(times) <= MOST_TIME),
        )
    };
    let [papers, shapes] = &medians(WARM_HIGH);
    let strict = medians(STRICT).concat();
    let is_later = worst(&strict) > worst(papers).max(worst(shapes));
    let title = "Time until all is done, by that with the gate always open";
    let texts = ["workloads", title, "case", "times"];
    let findings = vec![
        soon("the papers' work", papers),
        soon("work of other shapes", shapes),
        Finding::new(
            "the paper's own way (strict): a waiting task goes on to wait although a CPU idles, so that \
                    all is done later than under warm-high",
            "that price is named, without a figure",
            format!("as late as with a gate that is always open, {}", at_worst(&strict)),
            Status::reproduced(is_later),
        ),
    ];
    Ok(Part {
        title: "What the gate costs on other loads".into(),
        method: "The cells of paper 002 on its machines, and programs of other shapes; the time until \
                 all is done, by that of the gate that is always open. The paper's own way may leave \
                 a CPU idle while a task waits, which is the price that it names; `--max-idle-wait` \
                 bounds it."
            .into(),
        findings,
        panels: vec![Panel::new(texts, 1..=cases.len(), series)],
        ..Part::default()
    })
}
