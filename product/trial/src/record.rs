//! What the runs gave, by case, contestant and round.

use std::collections::BTreeMap;

use evenkeel_stats::{Comparison, Estimate, compare, estimate, median};

use crate::{Better, Case, Figure};

/// What a run gives, by the figure's name.
pub type Figures = BTreeMap<String, f64>;

/// What one run gave.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    /// Its figures.
    pub figures: Figures,
    /// What other programs took of the machine's CPU time meanwhile, in %.
    pub foreign_pct: f64,
}

impl Sample {
    /// Of these figures, undisturbed.
    pub fn new<const N: usize>(figures: [(&str, f64); N]) -> Self {
        let figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
        Self { figures, foreign_pct: 0.0 }
    }

    /// A figure by its name.
    pub fn get(&self, figure: &str) -> Option<f64> {
        self.figures.get(figure).copied()
    }

    /// Adds a figure where it was measured.
    pub fn set(&mut self, figure: &str, value: Option<f64>) {
        self.figures.extend(value.map(|value| (figure.to_owned(), value)));
    }
}

/// What a line is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The others are compared with it.
    Baseline,
    /// It is compared with the baseline.
    Contestant,
    /// The baseline once more: what the table can resolve.
    SecondBaseline,
}

/// The name of the A/A line of a baseline.
pub fn again(baseline: &str) -> String {
    format!("{baseline} again")
}

/// The runs of one contestant in one case.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The contestant.
    pub contestant: String,
    /// What it is compared with.
    pub role: Role,
    /// Its runs by round; `None` in rounds that it took no part in.
    pub rounds: Vec<Option<Sample>>,
    /// Runs that were repeated because of foreign load.
    pub repeated: usize,
    /// Why it was left out, if it was.
    pub failed: Option<String>,
}

impl Line {
    pub(crate) fn new(contestant: &str, role: Role) -> Self {
        Self {
            contestant: contestant.to_owned(),
            role,
            rounds: Vec::new(),
            repeated: 0,
            failed: None,
        }
    }

    /// The runs that there are.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.rounds.iter().flatten()
    }

    /// A figure by round.
    pub fn values(&self, figure: &str) -> impl Iterator<Item = Option<f64>> {
        self.rounds.iter().map(move |sample| sample.as_ref()?.get(figure))
    }

    /// The figure's median and interval over the rounds that have it.
    pub fn estimate(&self, figure: &str) -> Option<Estimate> {
        estimate(&self.values(figure).flatten().collect::<Vec<f64>>())
    }

    /// Foreign load, the median of the runs, in %.
    pub fn foreign_pct(&self) -> Option<f64> {
        median(&self.samples().map(|sample| sample.foreign_pct).collect::<Vec<f64>>())
    }
}

/// All runs of one case.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The case's name.
    pub case: String,
    /// The program's name.
    pub program: String,
    /// The contestants, the baseline first, the A/A line last.
    pub lines: Vec<Line>,
}

impl Record {
    /// The record of a case, without any run.
    pub fn new(case: &Case) -> Self {
        let baseline = case.contestants.first().map_or("", String::as_str);
        let again =
            case.has_second_baseline.then(|| Line::new(&again(baseline), Role::SecondBaseline));
        let others = case.contestants.iter().skip(1);
        let lines = std::iter::once(Line::new(baseline, Role::Baseline))
            .chain(others.map(|name| Line::new(name, Role::Contestant)))
            .chain(again);
        Self { case: case.name.clone(), program: case.program.clone(), lines: lines.collect() }
    }

    /// A contestant's runs.
    pub fn line(&self, contestant: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.contestant == contestant)
    }

    /// The figure of two contestants in the rounds that both have.
    pub fn pairs(&self, figure: &str, base: &str, ours: &str) -> (Vec<f64>, Vec<f64>) {
        let (Some(base), Some(ours)) = (self.line(base), self.line(ours)) else {
            return Default::default();
        };
        let both = base.values(figure).zip(ours.values(figure));
        both.filter_map(|(base, ours)| Some((base?, ours?))).unzip()
    }

    /// How many times as good as `base` a contestant is, paired by round: above 1 is better.
    /// `None` where no round has both, or a value is not above 0.
    pub fn compare(&self, figure: &Figure, base: &str, ours: &str) -> Option<Comparison> {
        let (base, ours) = self.pairs(&figure.name, base, ours);
        match figure.better {
            Better::Less => compare(&base, &ours),
            Better::More => compare(&ours, &base),
        }
    }

    /// The same against `base` made worse by `margin` (0.02: 2 %): better than that loses less.
    pub fn compare_with_margin(
        &self,
        figure: &Figure,
        base: &str,
        ours: &str,
        margin: f64,
    ) -> Option<Comparison> {
        let (mut base, ours) = self.pairs(&figure.name, base, ours);
        match figure.better {
            Better::Less => {
                base.iter_mut().for_each(|value| *value /= 1.0 - margin);
                compare(&base, &ours)
            }
            Better::More => {
                base.iter_mut().for_each(|value| *value *= 1.0 - margin);
                compare(&ours, &base)
            }
        }
    }
}
