//! The progress display: what runs now, and what became of runs that do not count.

use indicatif::{ProgressBar, ProgressStyle};

use crate::{Progress, interrupt};

/// A line on the terminal; nothing where standard error is not one. It is drawn only between runs:
/// a clock that ticks on it would disturb what is measured.
pub struct Display {
    bar: ProgressBar,
}

impl Default for Display {
    fn default() -> Self {
        Self::new()
    }
}

impl Display {
    /// Nothing is known yet.
    pub fn new() -> Self {
        let bar = ProgressBar::new(1);
        if let Ok(style) = ProgressStyle::with_template(
            "[{elapsed_precise}] {bar:24} {pos}/{len} runs, {eta} left, {msg}",
        ) {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// Says what is done apart from the runs.
    pub fn message(&self, text: &str) {
        self.bar.set_message(text.to_owned());
        self.bar.tick();
    }

    /// A sentence that stays on the screen.
    pub fn say(&self, text: &str) {
        self.bar.suspend(|| eprintln!("{text}"));
    }

    /// Shows what happens.
    pub fn show(&self, progress: &Progress<'_>) {
        match progress {
            Progress::Begin { case, program, contestant, round, done, planned } => {
                self.bar.set_length(*planned as u64);
                self.bar.set_position(*done as u64);
                let separator = if program.is_empty() { "" } else { ", " };
                self.message(&format!("{case}{separator}{program}: {contestant}, run {round}"));
            }
            Progress::Disturbed { contestant, foreign_pct } => self.say(&format!(
                "{contestant}: other programs took {foreign_pct:.0} % of the CPU time, once more"
            )),
            // After a signal that asks for the end, everything fails for that reason.
            Progress::Failed { .. } if interrupt::asked().is_some() => {}
            Progress::Failed { contestant, error } => {
                self.say(&format!("{contestant} is left out from here on: {error:#}"));
            }
            Progress::NeverQuiet => self.say(
                "Other programs keep this machine busy: disturbed runs count from here on as they \
                 are. Better measure again when it is quiet.",
            ),
            Progress::More { undecided } => {
                self.say(&format!("{undecided} rows are undecided and get more runs"));
            }
            Progress::OutOfTime { undecided } => {
                self.say(&format!("{undecided} rows stay undecided: the time is up"));
            }
        }
    }

    /// Takes the line away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
