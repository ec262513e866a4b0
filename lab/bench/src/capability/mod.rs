//! `evenkeel-lab bench capability`: paper 000's question on this machine. How fast does a parallel
//! program run on unequal CPUs under the kernel alone, pinned, and under the balancer?
//!
//! | file | what it holds |
//! |---|---|
//! | `matrix` | cases, programs, contestants, and which combinations |
//! | `possible` | which of these combinations this machine and this user can show |
//! | `stage` | the noise that is on at present |
//! | `lab` | noise and accounts around a run |
//! | `launch` | one run of a program |
//! | `given` | what the CPUs gave meanwhile: avg(C), min(C) |
//! | `bench` | one measurement, put together from the files above |
//! | `cost` | what the balancer itself takes |
//! | `metric` | the figures |

mod bench;
mod cost;
mod given;
pub mod lab;
mod launch;
mod matrix;
mod metric;
mod possible;
mod stage;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use evenkeel_experiment::accounts::Accounts;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{
    Aim, Contestant, Experiment, List, Options, Plan, Report, Section, Wanted, host, interrupt,
    measure,
};

pub use given::{Given, given};
pub use matrix::{Case, Cell, Method, Subject};
pub use metric::efficiency;
pub use metric::{AVERAGE, BOUND, EFFICIENCY, MOVES, REFERENCE, TIME};
pub use stage::Disturbance;

use crate::stats::MAX_RUNS;
use bench::Bench;

/// Runs of each contestant to begin with: 6 is the least that a true 95 % interval needs.
const RUNS: usize = 7;
/// Undecided rows get so many more at a time.
const MORE_RUNS: usize = 4;
/// After this time no round is added; the running round may take another minute or two.
const BUDGET: Duration = Duration::from_secs(27 * 60);
/// How long the static loop takes undisturbed, in s: 30 intervals of 100 ms.
const LOOP_S: f64 = 3.0;

/// What the command line asks for.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The executable `evenkeel`; its `run` is measured.
    pub executable: PathBuf,
    /// How long the static loop takes undisturbed, in s, if not the usual time.
    pub loop_s: Option<f64>,
    /// The options that all experiments have.
    pub options: Options,
}

/// Runs the experiment.
///
/// # Errors
/// A name is unknown, a file cannot be written, or nothing can be measured.
pub fn run(asked: &Asked) -> Result<i32> {
    let experiment = experiment();
    experiment.run(&asked.options, || measure_all(&experiment, asked))
}

/// What is measured.
pub fn experiment() -> Experiment<Method> {
    let contestant = |method: Method| Contestant::new(method.name(), method.explanation(), method);
    let pinned = Wanted::Known(Method::Pinned.name());
    Experiment {
        name: "capability",
        title: "Benchmarks: the capability balancer",
        intro: KEEL,
        case_word: "case",
        contestants: Method::ALL.map(contestant).to_vec(),
        metrics: &metric::METRICS,
        aims: vec![Aim::new(Method::Lag.name(), TIME, pinned)],
        course: COURSE,
        reading: "",
        lists: vec![
            List { title: "Cases", items: Case::ALL.map(|c| (c.name(), c.explanation())).to_vec() },
            List {
                title: "Programs",
                items: Subject::ALL.map(|s| (s.name(), s.explanation())).to_vec(),
            },
        ],
    }
}

/// The page's introduction: what is measured of the keel is on other pages.
const KEEL: &str = "\
The keel, which is a scheduler of its own, has its own pages, each by its own command:

- **all eight combinations of its policies on five workloads** (latency, throughput, turn-around time, \
migrations, switches of the address space): [paper 004, all eight \
combinations](004.md#all-eight-combinations)
- beside other schedulers: [the keel](keel.md)
- programs on unequal CPUs: [by capability](balance.md); threads that share their memory: \
[aggregation](ias.md)
";

const COURSE: &str = "\
Contestants run in turn (A B C A B C ...), so that what changes on the machine meets all of them \
alike, and are compared run by run. Times are of the whole command, from outside: the balancer's \
start counts. Runs that other programs disturbed (more than 5 % of the CPU time) are repeated. \
Rows that are undecided get more runs.";

/// How many runs, and how long.
fn plan(options: &Asked) -> Result<Plan> {
    let initial_runs = options.options.runs.unwrap_or(RUNS);
    if initial_runs == 0 {
        bail!("--runs 0 measures nothing: give at least 1, better 6 for a 95 % interval");
    }
    let max_runs = options.options.max_runs.unwrap_or(MAX_RUNS.max(initial_runs));
    if max_runs < initial_runs {
        bail!(
            "--max-runs {max_runs} is less than the {initial_runs} to begin with: raise it, or lower \
             --runs"
        );
    }
    Ok(Plan { initial_runs, step: MORE_RUNS, max_runs, budget: BUDGET, ..Plan::default() })
}

fn measure_all(experiment: &Experiment<Method>, asked: &Asked) -> Result<Report> {
    let options = &asked.options;
    let plan = plan(asked)?;
    let wanted = matrix::select(&options.only)?;
    let usable = host::usable_cpus()?;
    let noisy = usable.iter().next().context("no CPU may be used: is /sys mounted?")?;
    let accounts = Accounts::open();
    let why_not_exact = accounts.why_not_exact().map(str::to_owned);
    let possible = possible::reduce(wanted, &usable, why_not_exact.as_deref(), &|case| {
        case.disturbance().why_impossible(noisy)
    });
    for sentence in &possible.said {
        eprintln!("{sentence}");
    }
    interrupt::check()?;
    if possible.cells.is_empty() {
        bail!("none of the cases that were asked for can be shown here; see above");
    }

    let display = Display::new();
    let loop_s = asked.loop_s.unwrap_or(LOOP_S);
    display.message("finding out how much work takes how long");
    let mut bench = Bench::new(asked.executable.clone(), usable, noisy, accounts, loop_s)?;
    let cases: Vec<_> = possible.cells.iter().map(Cell::case).collect();
    let records = measure(experiment, &cases, &plan, &mut bench, &display);
    // The last round's noise would disturb what follows.
    bench.quiet()?;
    interrupt::check()?;
    display.message("counting what the accounting costs");
    let accounting_cost = bench.accounting_cost()?;
    display.finish();

    let mut report = Report::new(experiment, &records?, &plan, &options.command);
    report.machine = bench.machine();
    report.said = possible.said;
    let own_costs = bench.own_costs();
    let items = cost::lines(&own_costs, accounting_cost.as_ref());
    if !items.is_empty() {
        let title = "What it costs where there is nothing to gain";
        report.sections.push(Section::new(title, items));
    }
    report.details.insert("own_cost".into(), serde_json::to_value(own_costs)?);
    if let Some(cost) = accounting_cost {
        report.details.insert("accounting_cost".into(), serde_json::to_value(cost)?);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(options: Options) -> Asked {
        Asked { options, ..Asked::default() }
    }

    #[test]
    fn plans() {
        let normal = plan(&Asked::default()).unwrap();
        assert_eq!((normal.initial_runs, normal.max_runs, normal.looks()), (7, 15, 3));
        let many = plan(&asked(Options { runs: Some(20), ..Options::default() })).unwrap();
        assert_eq!((many.initial_runs, many.max_runs), (20, 20));
        let few = asked(Options { max_runs: Some(3), ..Options::default() });
        assert!(plan(&few).unwrap_err().to_string().contains("--max-runs 3"));
        let error = plan(&asked(Options { runs: Some(0), ..Options::default() })).unwrap_err();
        assert!(error.to_string().contains("--runs 0"), "{error}");
    }

    #[test]
    fn the_page_names_what_it_shows_and_nothing_else() {
        let report: Report = serde_json::from_value(serde_json::json!({
            "experiment": "capability",
            "commit": "abc",
            "machine": {"model": "Test", "cpus": 2, "kernel": "6.18", "accounting": "cbinfo"},
            "rows": [{
                "case": "hog", "program": "ep", "contestant": "default", "metric": "time",
                "median": 2.5, "ci95": [2.4, 2.6], "foreign_pct": 0.1, "runs": 5,
            }],
            "aims": [],
            "command": "evenkeel-lab bench capability --cases hog",
            "said": ["Case udp cannot be shown: no."],
        }))
        .unwrap();
        let text = experiment().page(&report);
        for part in [
            "by `evenkeel-lab bench capability --cases hog`",
            "- accounting: cbinfo",
            "Case udp cannot be shown",
            "| hog | ep | default | 2.500 s | - | - | 5 |",
            "](004.md#all-eight-combinations)",
            "- `hog`: another user's endless ordinary program",
            "- `default`: the kernel's scheduler alone",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(!text.contains("`softirq`"), "explained without being there:\n{text}");
    }
}
