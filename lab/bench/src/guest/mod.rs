//! Schedulers take turns on a real kernel: it is booted in a virtual machine once, and there each
//! round starts a scheduler, measures everything under it, and ends it (A B C A B C ...). What
//! `evenkeel-lab bench keel` and its like share; each of them is an [`Experiment`].
//!
//! | file | the one thing in it |
//! |---|---|
//! | `clock` | the machines, by what their clocks count |
//! | `contestant` | who schedules |
//! | `metric` | what is measured, and what is wanted of whom |
//! | `only` | which part of it |
//! | `lab` | what the guests are made of |
//! | `course` | the rounds, on the host |
//! | `inside` | one round, in the guest |
//! | `table` | rounds become rows with verdicts, and aims that were reached or missed |
//! | `page` | the rows for people: the terminal's table, the Markdown page |
//! | `callback` | what a scheduler's callbacks cost, call by call |
//! | `hogs` | busy threads, and how they share |
//! | `wake` | wake-up latency beside them |
//! | `storm` | forks, programs, threads without pause |

pub mod callback;
mod clock;
pub mod contestant;
mod course;
pub mod hogs;
mod inside;
mod lab;
mod metric;
mod only;
mod page;
pub mod storm;
mod table;
pub mod wake;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

pub use clock::Clock;
pub use contestant::Contestant;
pub use inside::{Inside, number_after};
pub use metric::{Aim, Kind, Metric, Wanted};
pub use only::Only;
pub use table::{AimRow, Reached, Row};

use crate::interrupt;
use crate::output::Output;
use crate::report::MachineInfo;

/// What a round gives for a contestant: by the name of the metric.
pub type Figures = BTreeMap<String, f64>;

/// So many pairs are wanted where times are compared.
const ROUNDS: usize = 10;

/// What is measured, of whom, and what is wanted.
pub struct Experiment {
    /// As `evenkeel-lab bench` calls it.
    pub name: &'static str,
    /// The page's title.
    pub title: &'static str,
    /// Who takes part: all others are compared with the first one.
    pub contestants: Vec<Contestant>,
    /// The figures, in the order of the report.
    pub metrics: &'static [Metric],
    /// What is wanted.
    pub aims: Vec<Aim>,
    /// Programs of the system that take part where they are installed.
    pub programs: &'static [&'static str],
    /// On which machines, unless others are asked for.
    pub clocks: &'static [Clock],
    /// A round takes a tenth of that, in s of the guest.
    pub limit_s: u32,
    /// How its figures are to be read, beyond what holds for all of them: items of a list in Markdown.
    pub reading: &'static str,
    /// Measures everything, in the guest, under the contestant that is at work.
    pub measure: fn(&Inside) -> Result<Figures>,
}

impl Experiment {
    /// A figure by its name.
    pub fn metric(&self, name: &str) -> Option<&'static Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    fn contestant(&self, name: &str) -> Result<&Contestant> {
        self.contestants.iter().find(|contestant| contestant.name == name).with_context(|| {
            let names = self.contestants.iter().map(|contestant| contestant.name.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            format!("there is no contestant {name:?}: give one of {names}")
        })
    }
}

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which machines; those of the experiment if none are named.
    pub clocks: Vec<Clock>,
    /// Rounds.
    pub rounds: Option<usize>,
    /// Which contestants and figures.
    pub only: Only,
    /// Where to write the rows as JSON.
    pub json: Option<PathBuf>,
    /// Where to write the Markdown page.
    pub markdown: Option<PathBuf>,
    /// Measure nothing: show the report that this JSON file holds.
    pub from: Option<PathBuf>,
    /// In the guest: measure one round under this contestant.
    pub inside: Option<String>,
    /// There: also what its callbacks cost.
    pub costs: bool,
    /// The command line, for whoever wants to run it again.
    pub command: String,
}

/// The experiment's result, as `--json` writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// As `evenkeel-lab bench` calls the experiment.
    pub experiment: String,
    /// The host.
    pub machine: MachineInfo,
    /// The command line that measured it.
    pub command: String,
    /// What could not be shown, and why.
    #[serde(default)]
    pub said: Vec<String>,
    /// Who failed, and why: left out from there on.
    #[serde(default)]
    pub failed: Vec<String>,
    /// What was wanted, and what came of it.
    pub aims: Vec<AimRow>,
    /// The figures.
    pub rows: Vec<Row>,
}

/// Runs the experiment, prints its table, and writes what was asked for. Returns the exit code: 0
/// also where a contestant or a program is missing (that is said) or an aim is missed, 1 if a
/// contestant failed, 128 + n if signal n ended it.
///
/// # Errors
/// A name is unknown, a file cannot be written, or no machine can be booted.
pub fn run(experiment: &Experiment, options: &Options) -> Result<i32> {
    if let Some(name) = &options.inside {
        let contestant = experiment.contestant(name)?;
        return inside::play(experiment, contestant, &options.only, options.costs);
    }
    let prepare = |path: &Option<PathBuf>| path.as_deref().map(Output::prepare).transpose();
    let (json, markdown) = (prepare(&options.json)?, prepare(&options.markdown)?);
    let report = match &options.from {
        Some(path) => load(experiment, path)?,
        None => {
            let _watch = interrupt::watch();
            match measure(experiment, options) {
                _ if interrupt::asked().is_some() => return Ok(interrupt::exit_code()),
                measured => measured?,
            }
        }
    };
    println!("{}", page::tables(experiment, &report));
    for sentence in report.said.iter().chain(&report.failed) {
        println!("{sentence}");
    }
    if let Some(output) = json {
        output.write(&serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(output) = markdown {
        output.write(&page::page(experiment, &report))?;
    }
    Ok(i32::from(!report.failed.is_empty()))
}

fn load(experiment: &Experiment, path: &Path) -> Result<Report> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report = serde_json::from_slice::<Report>(&bytes).ok();
    report.filter(|report| report.experiment == experiment.name).with_context(|| {
        let (path, name) = (path.display(), experiment.name);
        format!("{path} is not what `evenkeel-lab bench {name} --json` writes; measure anew")
    })
}

fn measure(experiment: &Experiment, options: &Options) -> Result<Report> {
    let rounds = options.rounds.unwrap_or(ROUNDS);
    if rounds == 0 {
        bail!("--rounds 0 measures nothing: give at least 1, better 10");
    }
    let clocks = if options.clocks.is_empty() { experiment.clocks } else { &options.clocks };
    options.only.check(experiment)?;
    let outcome = course::run(experiment, &options.only, clocks, rounds)?;
    let all = &outcome.series;
    let failed = all.iter().flat_map(|series| {
        let on = series.clock.name();
        series.failed.iter().map(move |(who, why)| format!("{who} failed, {on}: {why}"))
    });
    let mut machine = MachineInfo::read();
    machine.notes.insert("kernel of the guests".into(), outcome.kernel);
    if let Some(worst_pct) = outcome.worst_foreign_pct {
        let foreign = format!("{worst_pct:.1} % of the CPU time");
        machine.notes.insert("others on the host, in the worst timed round".into(), foreign);
    }
    Ok(Report {
        experiment: experiment.name.to_owned(),
        machine,
        command: options.command.clone(),
        failed: failed.collect(),
        aims: table::aims(experiment, all),
        rows: table::rows(experiment, all),
        said: outcome.said,
    })
}

#[cfg(test)]
impl Experiment {
    /// One to test with: its contestants and figures, and nothing is ever measured.
    fn sample(contestants: Vec<Contestant>, metrics: &'static [Metric]) -> Self {
        Self {
            name: "test",
            title: "Benchmarks: a test",
            contestants,
            metrics,
            aims: Vec::new(),
            programs: &[],
            clocks: &Clock::ALL,
            limit_s: 1,
            reading: "- More of it.\n",
            measure: |_| Ok(Figures::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment() -> Experiment {
        Experiment::sample(vec![Contestant::eevdf()], &[])
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_booted() {
        let nothing = Options { rounds: Some(0), ..Options::default() };
        let error = run(&experiment(), &nothing).unwrap_err().to_string();
        assert!(error.contains("--rounds 0"), "{error}");
        let unknown = Options { inside: Some("nobody".into()), ..Options::default() };
        let error = run(&experiment(), &unknown).unwrap_err().to_string();
        assert!(error.contains("nobody") && error.contains("eevdf"), "{error}");
        let only = Only { contestants: vec!["nobody".into()], figures: Vec::new() };
        let error = run(&experiment(), &Options { only, ..Options::default() }).unwrap_err();
        assert!(error.to_string().contains("nobody"), "{error}");
        let only = Only { contestants: Vec::new(), figures: vec!["nothing".into()] };
        let error = run(&experiment(), &Options { only, ..Options::default() }).unwrap_err();
        assert!(error.to_string().contains("nothing"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_report_of_this_experiment_is_refused() {
        let report = Report {
            experiment: "another".into(),
            machine: MachineInfo::read(),
            command: String::new(),
            said: Vec::new(),
            failed: Vec::new(),
            aims: Vec::new(),
            rows: Vec::new(),
        };
        for text in ["{}".to_owned(), serde_json::to_string(&report).unwrap()] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            let from = Some(file.path().to_owned());
            let error = run(&experiment(), &Options { from, ..Options::default() }).unwrap_err();
            assert!(error.to_string().contains("measure anew"), "{error}");
        }
    }
}
