//! The progress display: what runs now, and what became of runs that do not count.

use std::fmt;

use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};

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
        Self::counting("runs")
    }

    /// The same where not runs are counted but something else, like `cells`.
    pub fn counting(what: &str) -> Self {
        let bar = ProgressBar::new(1);
        let template =
            format!("[{{elapsed_precise}}] {{bar:24}} {{pos}}/{{len}} {what}, {{left}}, {{msg}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style.with_key("left", left));
        }
        Self { bar }
    }

    /// Shows how many of all are done, and what comes now.
    pub fn step(&self, done: u64, planned: u64, now: &str) {
        self.bar.set_length(planned);
        self.bar.set_position(done);
        self.message(now);
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
        if let Progress::Begin { case, program, contestant, round, done, planned } = progress {
            let place = place(case, program);
            let now = format!("{place}: {contestant}, run {round}");
            self.step(*done as u64, *planned as u64, &now);
        } else if let Some(sentence) = sentence(progress) {
            self.say(&sentence);
        }
    }

    /// Takes the line away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The time that is left. Before anything is done, nothing is known of it.
fn left(state: &ProgressState, text: &mut dyn fmt::Write) {
    // The bar's text takes all that is written.
    let _ = match state.pos() {
        0 => text.write_str("time left unknown yet"),
        _ => write!(text, "{:#} left", HumanDuration(state.eta())),
    };
}

/// Case and program, as far as they have names.
fn place(case: &str, program: &str) -> String {
    let separator = if case.is_empty() || program.is_empty() { "" } else { ", " };
    format!("{case}{separator}{program}")
}

/// What is worth a sentence that stays: all but the begin of a run.
fn sentence(progress: &Progress<'_>) -> Option<String> {
    Some(match progress {
        Progress::Begin { .. } => return None,
        Progress::Disturbed { contestant, foreign_pct } => {
            format!(
                "{contestant}: other programs took {foreign_pct:.0} % of the CPU time, once more"
            )
        }
        // After a signal that asks for the end, everything fails for that reason.
        Progress::Failed { .. } if interrupt::asked().is_some() => return None,
        Progress::Failed { contestant, error } => {
            format!("{contestant} is left out from here on: {error:#}")
        }
        Progress::NeverQuiet => {
            "Other programs keep this machine busy: disturbed runs count from here \
                                 on as they are. Better measure again when it is quiet."
                .to_owned()
        }
        Progress::More { undecided: 1 } => "1 row is undecided and gets more runs".to_owned(),
        Progress::More { undecided } => format!("{undecided} rows are undecided and get more runs"),
        Progress::ForMargin { rounds } => {
            format!("rounds more, to show that it loses less than the margin: {rounds}")
        }
        Progress::OutOfTime { undecided: 1 } => "1 row stays undecided: the time is up".to_owned(),
        Progress::OutOfTime { undecided } => {
            format!("{undecided} rows stay undecided: the time is up")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_or_a_program_without_a_name_leaves_no_comma() {
        assert_eq!(place("", "sleep"), "sleep");
        assert_eq!(place("quiet", ""), "quiet");
        assert_eq!(place("quiet", "ep"), "quiet, ep");
    }

    #[test]
    fn steps_are_counted_against_all_that_are_planned() {
        let display = Display::counting("cells");
        display.step(3, 7, "softirq");
        assert_eq!((display.bar.position(), display.bar.length()), (3, Some(7)));
        assert_eq!(display.bar.message(), "softirq");
    }

    #[test]
    fn one_row_is_no_plural() {
        let said = |progress| sentence(&progress).unwrap();
        let more = |undecided| said(Progress::More { undecided });
        assert_eq!(more(1), "1 row is undecided and gets more runs");
        assert_eq!(more(2), "2 rows are undecided and get more runs");
        let out_of_time = |undecided| said(Progress::OutOfTime { undecided });
        assert_eq!(out_of_time(1), "1 row stays undecided: the time is up");
        assert_eq!(out_of_time(2), "2 rows stay undecided: the time is up");
    }
}
