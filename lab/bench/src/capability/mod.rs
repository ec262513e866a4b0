//! `evenkeel-lab bench capability`: paper 000's question on this machine. How fast does a parallel
//! program run on CPUs that something has made unequal: under the kernel alone, pinned, and under
//! the balancer?
//!
//! | file | the one thing in it |
//! |---|---|
//! | `matrix` | cases, programs, contestants, and which combinations |
//! | `possible` | what of it this machine and this user can show |
//! | `stage` | the noise that plays at present |
//! | `lab` | noise and accounts around whatever is run |
//! | `launch` | one run of a program |
//! | `given` | what the CPUs gave meanwhile: avg(C), min(C) |
//! | `bench` | one measurement, from these |
//! | `cost` | what the balancer itself takes |
//! | `display` | progress |
//! | `sentence`, `page` | what it all means: for people, for docs/results/capability.md |

mod bench;
mod cost;
pub(crate) mod display;
mod given;
pub(crate) mod lab;
mod launch;
mod matrix;
mod page;
mod possible;
mod sentence;
mod stage;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

pub use cost::{AccountingCost, OwnCost};
pub use given::{Given, given};
pub use matrix::{Case, Cell, Contestant, Filter, Subject};
pub use page::page;
pub use sentence::sentence;

use crate::accounts::Accounts;
use crate::interleave::{self, Plan};
use crate::interrupt;
use crate::output::Output;
use crate::report::{Report, rows};
use crate::stats::MAX_RUNS;

use bench::Bench;
use display::Display;

/// Runs of each contestant to begin with: 6 is the least that a true 95 % interval needs.
const RUNS: usize = 7;
/// Undecided rows get so many more at a time.
const MORE_RUNS: usize = 4;
/// From here on nothing is added; what runs then may take another minute or two.
const BUDGET: Duration = Duration::from_secs(27 * 60);
/// How long the static loop takes undisturbed: 30 intervals of 100 ms.
const LOOP_S: f64 = 3.0;
/// The demo has to end within three minutes.
const DEMO_RUNS: usize = 5;
const DEMO_BUDGET: Duration = Duration::from_secs(110);
const DEMO_LOOP_S: f64 = 2.1;

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// evenkeel's own executable, whose `run` is measured.
    pub executable: PathBuf,
    /// Which cases, programs and contestants.
    pub filter: Filter,
    /// Runs of each contestant to begin with.
    pub runs: Option<usize>,
    /// Runs that no row exceeds; 15 if not given.
    pub max_runs: Option<usize>,
    /// How long the static loop takes undisturbed, in s, if not the usual time.
    pub loop_s: Option<f64>,
    /// The short form: two cases, five runs, one sentence.
    pub demo: bool,
    /// Where to write the rows as JSON.
    pub json: Option<PathBuf>,
    /// Where to write the Markdown page.
    pub markdown: Option<PathBuf>,
    /// Measure nothing: show the report that this JSON file holds.
    pub from: Option<PathBuf>,
    /// The command line, for whoever wants to run it again.
    pub command: String,
}

/// The experiment's result, as `--json` writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapabilityReport {
    /// Machine and rows.
    #[serde(flatten)]
    pub report: Report,
    /// The command line that measured it.
    pub command: String,
    /// What could not be shown, and why.
    #[serde(default)]
    pub said: Vec<String>,
    /// What the balancers took in the case `none`.
    #[serde(default)]
    pub own_cost: Vec<OwnCost>,
    /// What exact accounting took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting_cost: Option<AccountingCost>,
}

/// Runs the experiment, prints its table, and writes what was asked for. Returns the exit code: 0
/// also where this machine cannot show everything (that is said), 1 if a contestant failed, 128 + n
/// if signal n ended it.
///
/// # Errors
/// A name is unknown, a file cannot be written, or nothing can be measured.
pub fn run(options: &Options) -> Result<i32> {
    let prepare = |path: &Option<PathBuf>| path.as_deref().map(Output::prepare).transpose();
    let (json, markdown) = (prepare(&options.json)?, prepare(&options.markdown)?);
    let (report, last) = match &options.from {
        Some(path) => (load(path)?, None),
        None => {
            let _watch = interrupt::watch();
            match measure(options) {
                _ if interrupt::asked().is_some() => return Ok(interrupt::exit_code()),
                measured => measured?,
            }
        }
    };
    println!("{}", report.report.table());
    for line in report.report.against_pinning(Contestant::Lag.name()) {
        println!("{line}");
    }
    let costs = cost::lines(&report.own_cost, report.accounting_cost.as_ref());
    if !costs.is_empty() {
        println!("{costs}");
    }
    if let Some(sentence) = last {
        println!("\n{sentence}");
    }
    if let Some(output) = json {
        output.write(&serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(output) = markdown {
        output.write(&page(&report))?;
    }
    Ok(i32::from(report.report.rows.iter().any(|row| row.failed.is_some())))
}

fn load(path: &Path) -> Result<CapabilityReport> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| {
        format!(
            "{} is not what `evenkeel-lab bench capability --json` writes; measure anew",
            path.display()
        )
    })
}

/// How many runs, and how long.
fn plan(options: &Options) -> Result<Plan> {
    let usual = if options.demo { DEMO_RUNS } else { RUNS };
    let initial_runs = options.runs.unwrap_or(usual);
    if initial_runs == 0 {
        bail!("--runs 0 measures nothing: give at least 1, better 6 for a 95 % interval");
    }
    let max_runs = options.max_runs.unwrap_or(MAX_RUNS.max(initial_runs));
    if max_runs < initial_runs {
        bail!(
            "--max-runs {max_runs} is less than the {initial_runs} to begin with: raise it, or lower --runs"
        );
    }
    Ok(if options.demo {
        Plan {
            initial_runs,
            step: 1,
            max_runs: initial_runs,
            max_repeats: 1,
            budget: DEMO_BUDGET,
            ..Plan::default()
        }
    } else {
        Plan { initial_runs, step: MORE_RUNS, max_runs, budget: BUDGET, ..Plan::default() }
    })
}

/// The report, and the demo's last sentence.
fn measure(options: &Options) -> Result<(CapabilityReport, Option<String>)> {
    let plan = plan(options)?;
    let wanted = if options.demo { matrix::demo() } else { matrix::select(&options.filter)? };
    let usable = lab::usable_cpus()?;
    let noisy = usable.iter().next().context("no CPU may be used: is /sys mounted?")?;
    let accounts = Accounts::open();
    let why_not_exact = accounts.why_not_exact().map(str::to_owned);
    let possible =
        possible::reduce(wanted, &usable, why_not_exact.as_deref(), options.demo, &|case| {
            possible::try_noise(case, noisy)
        });
    for sentence in &possible.said {
        eprintln!("{sentence}");
    }
    interrupt::check()?;
    if possible.cells.is_empty() {
        bail!("none of the cases that were asked for can be shown here; see above");
    }

    let display = Display::new();
    let usual_s = if options.demo { DEMO_LOOP_S } else { LOOP_S };
    let loop_s = options.loop_s.unwrap_or(usual_s);
    display.message("finding out how much work takes how long");
    let bench = Bench::new(options.executable.clone(), usable, noisy, accounts, loop_s)?;
    let mut groups: Vec<_> = possible.cells.iter().map(|cell| bench.group(cell)).collect();
    let start = Instant::now();
    let outcomes = interleave::run(&mut groups, &plan, &|| start.elapsed(), &mut |progress| {
        display.show(&progress);
    });
    drop(groups);
    // The last round's noise would disturb what follows.
    bench.quiet()?;
    interrupt::check()?;
    display.message("counting what the accounting costs");
    let accounting_cost = bench.accounting_cost()?;
    display.finish();

    let report = Report { machine: bench.machine(), rows: rows(&outcomes?) };
    let last = options.demo.then(|| sentence(&report.rows, noisy)).flatten();
    let report = CapabilityReport {
        report,
        command: options.command.clone(),
        said: possible.said,
        own_cost: bench.own_costs(),
        accounting_cost,
    };
    Ok((report, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans() {
        let normal = plan(&Options::default()).unwrap();
        assert_eq!((normal.initial_runs, normal.max_runs, normal.looks()), (7, 15, 3));
        let demo = plan(&Options { demo: true, ..Options::default() }).unwrap();
        assert_eq!((demo.initial_runs, demo.max_runs, demo.looks()), (5, 5, 1));
        let many = plan(&Options { runs: Some(20), ..Options::default() }).unwrap();
        assert_eq!((many.initial_runs, many.max_runs), (20, 20));
        let few = Options { max_runs: Some(3), ..Options::default() };
        assert!(plan(&few).unwrap_err().to_string().contains("--max-runs 3"));
        let error = plan(&Options { runs: Some(0), ..Options::default() }).unwrap_err();
        assert!(error.to_string().contains("--runs 0"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_report_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{}").unwrap();
        let from = Some(file.path().to_owned());
        let error = run(&Options { from, ..Options::default() }).unwrap_err();
        assert!(error.to_string().contains("measure anew"), "{error}");
    }
}
