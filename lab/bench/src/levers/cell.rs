//! A measured cell as the JSON keeps it: every run, so that all cells can be judged together, whenever
//! and by whichever invocation they were measured.

use std::collections::BTreeMap;

use evenkeel_experiment::{Case, Record, Sample};
use serde::{Deserialize, Serialize};

use super::plan::Cell;

/// A cell that was measured to its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The program.
    pub program: String,
    /// The noise.
    pub noise: String,
    /// A claim is made of it.
    pub is_claimed: bool,
    /// The commit that was measured.
    pub commit: String,
    /// The contestants, the baseline first, the A/A line last.
    pub lines: Vec<Line>,
}

/// The runs of one contestant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The contestant.
    pub contestant: String,
    /// By round; `None` in rounds that it took no part in.
    pub runs: Vec<Option<Run>>,
    /// Runs that were repeated because of foreign load.
    pub repeated: usize,
    /// Why it was left out, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its figures, by their names.
    pub figures: BTreeMap<String, f64>,
    /// What other programs took of the machine's CPU time, in %.
    pub foreign_pct: f64,
}

impl Measured {
    /// What the runs of a cell gave.
    pub fn new(cell: &Cell, commit: &str, record: &Record) -> Self {
        let run = |sample: &Sample| Run {
            figures: sample.figures.clone(),
            foreign_pct: sample.foreign_pct,
        };
        let lines = record.lines.iter().map(|line| Line {
            contestant: line.contestant.clone(),
            runs: line.rounds.iter().map(|round| round.as_ref().map(run)).collect(),
            repeated: line.repeated,
            failed: line.failed.clone(),
        });
        Self {
            program: cell.program.name.to_owned(),
            noise: cell.noise.name().to_owned(),
            is_claimed: cell.is_claimed,
            commit: commit.to_owned(),
            lines: lines.collect(),
        }
    }

    /// Whether it is the cell of this program and noise.
    pub fn is_of(&self, cell: &Cell) -> bool {
        self.program == cell.program.name && self.noise == cell.noise.name()
    }

    /// Whether it has all that is wanted of the cell. A contestant that failed is tried again with
    /// another commit.
    pub fn has_all(&self, wanted: &[String], commit: &str) -> bool {
        let has = |name: &String| {
            let line = self.lines.iter().find(|line| line.contestant == *name);
            line.is_some_and(|line| line.failed.is_none() || self.commit == commit)
        };
        wanted.iter().all(has)
    }

    /// As a trial's record. Its case is the noise with what is to be said of the cell: that no claim is
    /// made of it, and that another commit than `commit` was measured.
    pub fn record(&self, commit: &str) -> Record {
        let mut remarks = Vec::new();
        if !self.is_claimed {
            remarks.push("no claim".to_owned());
        }
        if self.commit != commit {
            remarks.push(format!("at {}", self.commit));
        }
        let name = match remarks.is_empty() {
            true => self.noise.clone(),
            false => format!("{} ({})", self.noise, remarks.join("; ")),
        };
        let again = self.lines.first().map(|line| evenkeel_experiment::again(&line.contestant));
        let is_again = |line: &&Line| Some(&line.contestant) == again.as_ref();
        let contestants = self.lines.iter().filter(|line| !is_again(line));
        let case = Case {
            name,
            program: self.program.clone(),
            contestants: contestants.map(|line| line.contestant.clone()).collect(),
            has_second_baseline: self.lines.iter().any(|line| is_again(&line)),
            has_reference: false,
        };
        let mut record = Record::new(&case);
        for (line, kept) in record.lines.iter_mut().zip(&self.lines) {
            let sample =
                |run: &Run| Sample { figures: run.figures.clone(), foreign_pct: run.foreign_pct };
            line.rounds = kept.runs.iter().map(|run| run.as_ref().map(sample)).collect();
            line.repeated = kept.repeated;
            line.failed.clone_from(&kept.failed);
        }
        record
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::plan::{Pattern, cells};
    use super::super::table::DEFAULT;
    use super::*;

    /// The planned cell of this name.
    pub fn planned(name: &str) -> Cell {
        cells(&[Pattern::parse(name).unwrap()]).remove(0)
    }

    /// The figures of a run.
    pub type Figures<'a> = &'a [(&'a str, f64)];
    /// A contestant, and its runs.
    pub type Runs<'a> = (&'a str, &'a [Figures<'a>]);

    /// A measured cell in which each contestant has these figures by round, and an A/A line.
    pub fn measured(name: &str, lines: &[Runs<'_>]) -> Measured {
        let cell = planned(name);
        let line = |(contestant, runs): &Runs<'_>| Line {
            contestant: (*contestant).to_owned(),
            runs: runs
                .iter()
                .map(|figures| {
                    let figures =
                        figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
                    Some(Run { figures, foreign_pct: 0.5 })
                })
                .collect(),
            repeated: 0,
            failed: None,
        };
        let mut again = line(&lines[0]);
        again.contestant = evenkeel_experiment::again(DEFAULT);
        Measured {
            program: cell.program.name.to_owned(),
            noise: cell.noise.name().to_owned(),
            is_claimed: cell.is_claimed,
            commit: "abc".to_owned(),
            lines: lines.iter().map(line).chain([again]).collect(),
        }
    }

    #[test]
    fn a_cell_comes_back_from_its_json_and_its_record() {
        let runs: &[&[(&str, f64)]] = &[&[("time", 2.0)], &[("time", 1.9), ("moves", 3.0)]];
        let mut cell = measured("lu.W-gcc/softirq", &[(DEFAULT, runs), ("run", runs)]);
        cell.lines[1].failed = Some("it ended".to_owned());
        cell.lines[1].runs.push(None);
        let json = serde_json::to_string(&cell).unwrap();
        assert_eq!(serde_json::from_str::<Measured>(&json).unwrap(), cell);
        let record = cell.record("abc");
        assert_eq!((record.case.as_str(), record.program.as_str()), ("softirq", "lu.W-gcc"));
        assert_eq!(Measured::new(&planned("lu.W-gcc/softirq"), "abc", &record), cell);
    }

    #[test]
    fn what_is_to_be_said_of_a_cell_stands_behind_the_noise() {
        let runs: &[&[(&str, f64)]] = &[&[("time", 2.0)]];
        let case =
            |name: &str, commit: &str| measured(name, &[(DEFAULT, runs)]).record(commit).case;
        assert_eq!(case("lu.W-gcc/none", "abc"), "none");
        assert_eq!(case("lu.W-gcc/none", "def"), "none (at abc)");
        assert_eq!(case("is.W-gcc/hog", "def"), "hog (no claim; at abc)");
    }

    #[test]
    fn a_cell_is_measured_again_for_more_contestants_and_after_a_failure_by_another_commit() {
        let runs: &[&[(&str, f64)]] = &[&[("time", 2.0)]];
        let mut cell = measured("lu.W-gcc/none", &[(DEFAULT, runs), ("run", runs)]);
        let names = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        assert!(cell.has_all(&names("default,run"), "def"));
        assert!(!cell.has_all(&names("default,pinned,run"), "abc"));
        cell.lines[1].failed = Some("it ended".to_owned());
        assert!(cell.has_all(&names("default,run"), "abc"));
        assert!(!cell.has_all(&names("default,run"), "def"));
        assert!(cell.has_all(&names("default"), "def"), "it is not asked for");
    }
}
