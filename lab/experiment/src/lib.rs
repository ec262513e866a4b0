//! The common base of all experiments. A benchmark or a reproduction is a list on top of it:
//! contestants, metrics, aims, and how one run is made.
//!
//! An [`Experiment`] says what is measured. A [`Runner`] makes one run in the place where the
//! experiment runs: on the host ([`host`]), in virtual machines ([`guest`]), in the simulator
//! ([`simulator`]). Turns, pairing and verdicts are `evenkeel_trial`'s. What comes of it is one
//! [`Report`], with one JSON format, one table and one page.
//!
//! | file | what it holds |
//! |---|---|
//! | `contestant`, `metric`, `aim` | the lists of an experiment |
//! | `options` | what is asked for |
//! | `runner` | from an experiment and a runner to records |
//! | `row`, `report`, `machine` | the result, as JSON |
//! | `document` | a JSON document with the version of its schema |
//! | `page`, `cells` | the result for people: the terminal's tables, the Markdown page |
//! | `report_html`, `html` | the page for a browser: of a report, of any figures |
//! | `generated` | what a page says of its origin, and how a change by hand is found |
//! | `peers` | schedulers of other projects |
//! | `host`, `guest/`, `simulator` | the places |
//! | `accounts` | where the CPUs' time went during a run |
//! | `executable`, `output` | our own executables; files written at the end |
//! | `time_left` | how long it takes yet, in words |

pub mod accounts;
mod aim;
pub mod cells;
mod contestant;
mod document;
pub mod executable;
pub mod generated;
pub mod guest;
pub mod host;
pub mod html;
mod machine;
mod metric;
mod options;
pub mod output;
mod page;
pub mod peers;
mod report;
mod report_html;
mod row;
mod runner;
pub mod simulator;
pub mod time_left;

pub use aim::{Aim, AimRow, Cases, Wanted, judge_aims};
pub use contestant::Contestant;
pub use document::Document;
pub use evenkeel_trial::{
    Case, Figures, Line, Margin, Plan, Progress, Reached, Record, Sample, again,
};
pub use evenkeel_trial::{chart, command, display, interrupt};
pub use generated::measured_at;
pub use machine::{MachineInfo, commit};
pub use metric::{Kind, Metric};
pub use options::{Only, Options, choose, named};
pub use page::aim_cells;
pub use report::{Absent, Failed, REPORT_FORMAT, Report, Section};
pub use row::{Row, rows};
pub use runner::{Runner, Turn, measure};

use anyhow::{Context, Result, bail};

/// What is measured, of which contestants, and what is wanted.
#[derive(Debug, Clone)]
pub struct Experiment<How> {
    /// As `evenkeel-lab bench` calls it.
    pub name: &'static str,
    /// The page's title.
    pub title: &'static str,
    /// Stands at the page's head, in Markdown; may be empty.
    pub intro: &'static str,
    /// The heading of the column of cases.
    pub case_word: &'static str,
    /// All others are compared with the first contestant of their case.
    pub contestants: Vec<Contestant<How>>,
    /// The figures, in the order of the report.
    pub metrics: &'static [Metric],
    /// What is wanted.
    pub aims: Vec<Aim>,
    /// How a round is made, in sentences for the page.
    pub course: &'static str,
    /// How the figures are to be read, beyond what holds for all: items of a list in Markdown.
    pub reading: &'static str,
    /// What cases and programs are.
    pub lists: Vec<List>,
}

/// Names of cases or programs with their explanations; a page shows those that occur.
#[derive(Debug, Clone)]
pub struct List {
    /// The heading.
    pub title: &'static str,
    /// Names and explanations.
    pub items: Vec<(&'static str, &'static str)>,
}

impl<How> Experiment<How> {
    /// A figure by its name.
    pub fn metric(&self, name: &str) -> Option<&'static Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// A contestant by its name.
    ///
    /// # Errors
    /// No contestant has this name; the error lists those that there are.
    pub fn contestant(&self, name: &str) -> Result<&Contestant<How>> {
        self.contestants.iter().find(|contestant| contestant.name == name).with_context(|| {
            let names = self.contestants.iter().map(|contestant| contestant.name.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            format!("there is no contestant {name:?}: give one of {names}")
        })
    }

    /// Whether all contestants and figures that are named exist.
    ///
    /// # Errors
    /// One of them does not: the error lists those that do.
    pub fn check(&self, only: &Only) -> Result<()> {
        for contestant in &only.contestants {
            self.contestant(contestant)?;
        }
        for figure in &only.figures {
            if !self.metrics.iter().any(|metric| metric.name.starts_with(figure.as_str())) {
                let names: Vec<&str> = self.metrics.iter().map(|metric| metric.name).collect();
                bail!("no figure begins with {figure:?}: give one of {}", names.join(", "));
            }
        }
        Ok(())
    }

    /// Measures, or loads an earlier report; prints its tables and writes what was asked for. Returns
    /// the exit code: 0 also where something could not be shown (that is said) or an aim is missed,
    /// 1 if a contestant failed, 128 + n if signal n ended it.
    ///
    /// # Errors
    /// A file cannot be read or written, or nothing can be measured.
    pub fn run(&self, options: &Options, measure: impl FnOnce() -> Result<Report>) -> Result<i32> {
        options.check_page()?;
        let prepare = |path: &Option<std::path::PathBuf>| {
            path.as_deref().map(output::Output::prepare).transpose()
        };
        let json = prepare(&options.json)?;
        let (markdown, html) = (prepare(&options.markdown)?, prepare(&options.html)?);
        let report = match &options.from {
            Some(path) => Report::load(self.name, path)?,
            None => {
                let _watch = interrupt::watch();
                match measure() {
                    _ if interrupt::asked().is_some() => return Ok(interrupt::exit_code()),
                    measured => measured?,
                }
            }
        };
        if !options.is_quiet {
            let text = self.terminal(&report);
            output::tell([&json, &markdown, &html], text.trim_end_matches('\n'));
        }
        if let Some(output) = json {
            output.write(&report.to_json()?)?;
        }
        if let Some(output) = markdown {
            let command = output.command("--markdown", &report.command);
            output.write_page(&self.page(&Report { command, ..report.clone() }))?;
        }
        if let Some(output) = html {
            let command = output.command("--html", &report.command);
            output.write(&self.html(&Report { command, ..report.clone() }))?;
        }
        Ok(i32::from(!report.failed.is_empty()))
    }

    /// The tables of a report, for a terminal.
    pub fn terminal(&self, report: &Report) -> String {
        page::terminal(self, report)
    }

    /// The page of a report, in Markdown.
    pub fn page(&self, report: &Report) -> String {
        page::markdown(self, report)
    }

    /// The page of a report, in HTML.
    pub fn html(&self, report: &Report) -> String {
        report_html::html(self, report)
    }

    /// An experiment to test with.
    #[cfg(test)]
    fn sample(contestants: Vec<Contestant<How>>, metrics: &'static [Metric]) -> Self {
        Self {
            name: "test",
            title: "Benchmarks: a test",
            intro: "",
            case_word: "machine",
            contestants,
            metrics,
            aims: Vec::new(),
            course: "Contestants run in turn.",
            reading: "- More of it.\n",
            lists: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_told_with_the_known_ones() {
        const METRICS: [Metric; 1] = [Metric::new("wake-p50", Kind::Time, "")];
        let experiment = Experiment::sample(vec![Contestant::new("eevdf", "", ())], &METRICS);
        let only = Only { contestants: vec!["cfs".into()], ..Only::default() };
        let error = experiment.check(&only).unwrap_err().to_string();
        assert_eq!(error, "there is no contestant \"cfs\": give one of eevdf");
        let only = Only { figures: vec!["sleep".into()], ..Only::default() };
        let error = experiment.check(&only).unwrap_err().to_string();
        assert_eq!(error, "no figure begins with \"sleep\": give one of wake-p50");
        let only = Only { figures: vec!["wake-".into()], ..Only::default() };
        experiment.check(&only).unwrap();
    }

    #[test]
    fn a_file_that_is_no_report_of_this_experiment_is_refused() {
        let experiment = Experiment::<()>::sample(Vec::new(), &[]);
        let other =
            serde_json::to_string(&Report { experiment: "another".into(), ..Report::default() });
        for text in ["{}".to_owned(), other.unwrap()] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            let options = Options { from: Some(file.path().to_owned()), ..Options::default() };
            let error = experiment.run(&options, || unreachable!()).unwrap_err();
            assert!(error.to_string().contains("measure anew"), "{error}");
        }
    }
}
