//! What the parts of `evenkeel irq` share.

use std::io::Write;
use std::time::Duration;

use evenkeel_irq::{Accounting, Program, ProgramError, Snapshot};
use evenkeel_journal::UndoReport;
use evenkeel_machine::CpuSet;

use crate::cli::Interval;

/// The CPUs of the program of `--for`; without it, none.
///
/// # Errors
/// All of [`ProgramError`].
pub fn cpus_of(program: Option<&Program>) -> Result<CpuSet, ProgramError> {
    program.map_or_else(|| Ok(CpuSet::new()), Program::cpus)
}

/// The time of an option.
pub fn time(interval: Interval) -> Duration {
    Duration::from_nanos(interval.ns)
}

/// Whether times were measured, and if not, why.
pub fn source_of_figures(snapshot: &Snapshot) -> String {
    let seconds = snapshot.interval_ns as f64 / 1e9;
    match &snapshot.accounting {
        Accounting::Exact => format!("Measured by BPF for {seconds:.1} s."),
        Accounting::Counts(why) => format!(
            "Counted for {seconds:.1} s, without the times of lines: {why}. Times of kernel threads are \
             the kernel's own."
        ),
    }
}

/// What was taken back, and what could not be.
pub fn say_report(report: &UndoReport) {
    for file in &report.restored_settings {
        say(&format!("{}: set back to its earlier value.", file.display()));
    }
    for kept in &report.kept_settings {
        let file = kept.file.display();
        say(&format!("{file}: left at {}, which another process set.", kept.found));
    }
    for ban in &report.lifted_bans {
        say(&format!("irqbalance (process {}) may move line {} again.", ban.pid, ban.line));
    }
    report.errors.iter().for_each(|why| warn(&why.to_string()));
}

/// Prints a line. Not by println, which panics when standard output is closed.
pub fn say(what: &str) {
    let _ = writeln!(std::io::stdout(), "{what}");
}

/// Prints an error or a warning.
pub fn warn(what: &str) {
    let _ = writeln!(std::io::stderr(), "evenkeel: {what}");
}
