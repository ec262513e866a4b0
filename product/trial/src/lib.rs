//! A trial: contestants run in turn, A B C A B C ..., are paired run by run, and are judged.
//!
//! Whatever changes on the machine meanwhile meets all contestants alike, so that only differences
//! within a round count. All experiments of the laboratory stand on this crate, which is the product's
//! because comparing a user's own program is. The trial itself ([`run`]) does no I/O and reads no
//! clock: runs, clock and progress are the caller's ([`Caller`]). What callers need for that is here,
//! too: a command that is run and timed, Ctrl-C, a progress display, and a page for the result.
//!
//! | file | what it holds |
//! |---|---|
//! | `plan` | how many rounds, and when a run is repeated |
//! | `record` | what the runs gave, by case, contestant and round |
//! | `course` | the turns: rounds, repeats, more rounds for undecided rows |
//! | `judge` | comparisons with the baseline and their verdicts |
//! | `claim` | whether an interval shows what was claimed |
//! | `command` | one command, run to its end: its time, and what it printed |
//! | `foreign` | what other programs take of the machine during a run |
//! | `interrupt` | Ctrl-C and its kind, noted |
//! | `display` | progress on the terminal |
//! | `page` | a report as one HTML file: style, tables, machine, command to repeat |
//! | `chart` | intervals and verdicts as a chart for such a page |

pub mod chart;
mod claim;
pub mod command;
mod course;
pub mod display;
pub mod foreign;
pub mod interrupt;
mod judge;
pub mod page;
mod plan;
mod record;

use std::time::Duration;

use anyhow::Result;

pub use claim::{Claim, Reached};
pub use course::run;
pub use evenkeel_stats::{Estimate, Verdict};
pub use judge::{Judgement, judge};
pub use plan::{Margin, Plan};
pub use record::{Figures, Line, Record, Role, Sample, again};

/// A figure that is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// Its name in [`Figures`].
    pub name: String,
    /// Which direction is better.
    pub better: Better,
}

/// Which direction of a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// A time, a cost.
    Less,
    /// A rate, an index.
    More,
}

/// A setting with its contestants; the first contestant is the baseline of the others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Case {
    /// What the machine is like meanwhile, for example the noise.
    pub name: String,
    /// What runs on it; empty where the case says that already.
    pub program: String,
    /// The contestants, the baseline first.
    pub contestants: Vec<String>,
    /// Each round begins with a reference run: the program undisturbed. It is no row.
    pub has_reference: bool,
    /// The baseline takes one more turn in each round, for the A/A row.
    pub has_second_baseline: bool,
}

/// What takes a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// The program undisturbed.
    Reference,
    /// The contestant with this index.
    Contestant(usize),
    /// Contestant 0 once more, for the A/A row.
    SecondBaseline,
}

/// One turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The index of the case.
    pub case: usize,
    /// What runs.
    pub seat: Seat,
    /// The round of this case, from 0.
    pub round: usize,
}

/// What a trial needs of its caller.
pub trait Caller {
    /// Runs what has its turn, once.
    ///
    /// # Errors
    /// It cannot run. The contestant is left out from here on.
    fn run(&mut self, turn: Slot) -> Result<Sample>;

    /// The time since any fixed moment.
    fn elapsed(&self) -> Duration;

    /// Adds figures that follow from the run and the reference of its round.
    fn relate(&self, _reference: &Sample, _sample: &mut Sample) {}

    /// Is told what happens.
    fn show(&mut self, _progress: &Progress<'_>) {}
}

/// What happens, for a progress display.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A run begins.
    Begin {
        /// The case.
        case: &'a str,
        /// The program.
        program: &'a str,
        /// The contestant.
        contestant: &'a str,
        /// The round, from 1.
        round: usize,
        /// Runs that are done, repeats not counted.
        done: usize,
        /// Runs that are planned by now, repeats not counted.
        planned: usize,
    },
    /// Foreign load disturbed the run, which is repeated.
    Disturbed {
        /// The contestant.
        contestant: &'a str,
        /// The foreign load, in %.
        foreign_pct: f64,
    },
    /// A contestant cannot run and is left out from here on.
    Failed {
        /// The contestant.
        contestant: &'a str,
        /// Why.
        error: &'a anyhow::Error,
    },
    /// The machine is never quiet: runs are not repeated any more unless that changes.
    NeverQuiet,
    /// Rows are still undecided and get more runs.
    More {
        /// How many rows.
        undecided: usize,
    },
    /// Rows get as many rounds more as it takes to show that they lose less than a margin.
    ForMargin {
        /// How many rounds.
        rounds: usize,
    },
    /// Rows are still undecided, but the time is up.
    OutOfTime {
        /// How many rows.
        undecided: usize,
    },
}
