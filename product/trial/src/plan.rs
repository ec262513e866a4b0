//! How many rounds a trial has, and when a run is repeated.

use std::time::Duration;

use anyhow::{Result, ensure};
use evenkeel_stats::MAX_RUNS;

/// How many runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Rounds that each case gets, at least 1.
    pub initial_runs: usize,
    /// Rounds that are added before the rows are judged again, at least 1.
    pub step: usize,
    /// Rounds that no row exceeds, at least `initial_runs`.
    pub max_runs: usize,
    /// A run with more foreign load is repeated, in %.
    pub max_foreign_pct: f64,
    /// Repeats of one run at most; then its least disturbed repeat counts. Of all runs at most
    /// every other one is repeated: on a machine that is never quiet repeats would be in vain.
    pub max_repeats: usize,
    /// After this time no round is added and no run repeated; the initial rounds are always made.
    pub budget: Duration,
    /// What is to be shown beside that.
    pub margin: Option<Margin>,
}

/// A contestant that is to be shown, in each case that has it, to lose less than a margin against the
/// baseline. How many rounds that takes follows from the spread of the rounds so far. They are made at
/// once, so that they are one look more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margin {
    /// The contestant.
    pub contestant: &'static str,
    /// Above 0 and below 1: 0.02 is 2 %.
    pub margin: f64,
    /// Of how many such tests it is one, by which the verdicts are corrected.
    pub tests: usize,
    /// Rounds that no case exceeds because of it.
    pub max_runs: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            initial_runs: 5,
            step: 5,
            max_runs: MAX_RUNS,
            max_foreign_pct: 5.0,
            max_repeats: 3,
            budget: Duration::from_secs(30 * 60),
            margin: None,
        }
    }
}

impl Plan {
    /// A fixed number of rounds, judged once.
    pub fn fixed(runs: usize) -> Self {
        Self { initial_runs: runs, max_runs: runs, ..Self::default() }
    }

    /// How often the rows are judged at most: what the verdicts are corrected for.
    pub fn looks(&self) -> usize {
        let more = self.max_runs.saturating_sub(self.initial_runs).div_ceil(self.step.max(1));
        1 + more + usize::from(self.margin.is_some())
    }

    pub(crate) fn check(&self) -> Result<()> {
        let Self { initial_runs, step, max_runs, .. } = *self;
        ensure!(
            initial_runs > 0 && step > 0,
            "an experiment needs at least 1 run and steps of at least 1 run"
        );
        ensure!(
            max_runs >= initial_runs,
            "at most {max_runs} runs, but {initial_runs} to begin with: raise the maximum"
        );
        if let Some(Margin { margin, .. }) = self.margin {
            ensure!(
                margin > 0.0 && margin < 1.0,
                "a margin of {margin}: give more than 0 and less than 1"
            );
        }
        Ok(())
    }
}
