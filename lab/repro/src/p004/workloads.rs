//! What the gate costs on the loads of the other papers, and on programs of other shapes.

use anyhow::Result;
use evenkeel_machine::Machine;
use evenkeel_sim::Grid;
use evenkeel_sim::paper002::TABLES;

use super::Scale;
use super::contestant::{ALWAYS, Contestant, STRICT, WARM_HIGH};
use crate::simulated::{median, ratios};
use crate::study::{Finding, Panel, Part, Point, Series, Status};

const CONTESTANTS: [Contestant; 3] = [ALWAYS, WARM_HIGH, STRICT];
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
    let schedulers: Vec<_> =
        CONTESTANTS.iter().map(Contestant::scheduler).collect::<Result<_>>()?;
    let cases = cases(scale);
    let grid = |(system, text): &(String, String)| -> Result<Grid> {
        let machine = Machine::preset(system)?;
        let grid = scale.lab.grid(vec![text.clone()], machine, schedulers.clone());
        Ok(Grid { seeds: 1..MORE_SEEDS * scale.lab.seeds + 1, ..grid })
    };
    let runs = scale.lab.run(cases.iter().map(grid).collect::<Result<Vec<_>>>()?)?;
    let mut series = Vec::new();
    let mut late: Vec<[Vec<f64>; 2]> = Vec::new();
    for contestant in [WARM_HIGH, STRICT] {
        let (ours, always) = (contestant.scheduler()?, ALWAYS.scheduler()?);
        let ratio = |(system, text): &(String, String)| {
            let of = |scheduler| runs.of(text, system, scheduler, |report| report.makespan_ms);
            ratios(&of(&ours), &of(&always))
        };
        let all: Vec<Vec<f64>> = cases.iter().map(ratio).collect();
        let (papers, shapes) = all.split_at(all.len() - SHAPES.len());
        late.push([papers, shapes].map(|some| some.iter().map(|one| median(one)).collect()));
        let points = all.iter().map(|ratios| Point::of(ratios)).collect();
        series.push(Series { name: contestant.name.to_owned(), points });
    }
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
    let [papers, shapes] = &late[0];
    let strict = late[1].concat();
    let is_later = worst(&strict) > worst(papers).max(worst(shapes));
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
