//! What the parts of `evenkeel irq` share.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use evenkeel_irq::{Accounting, Aim, Cpu, Event, Snapshot};
use evenkeel_journal::UndoReport;

use crate::cli::Interval;

/// What is done while interrupts are watched, for the terminal.
pub const WATCHING: &str = "watching interrupts";

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

/// Why a plan with this aim for these CPUs has no move.
pub fn why_none(aim: Aim, cpus: &[Cpu]) -> String {
    let why = match aim {
        Aim::Level => "no move makes the largest share clearly smaller",
        Aim::SourceAware => "what each busy source brings is received on its CPU, or not on one",
    };
    let is_for_program = cpus.iter().any(|cpu| cpu.protected);
    // The planner then moves interrupts among all CPUs, as without `--for`.
    if is_for_program && cpus.iter().all(|cpu| cpu.protected || cpu.isolated) {
        return format!("the program leaves no other CPU, and among its own {why}");
    }
    why.to_owned()
}

/// Says what happened, in words or as a line of JSON.
///
/// # Errors
/// JSON cannot hold it.
pub fn say_event(event: &Event, is_json: bool) -> Result<()> {
    let line = if is_json { serde_json::to_string(event)? } else { event.to_string() };
    say(&line);
    Ok(())
}

/// Says what was taken back, in words or as a line of JSON, and what could not be.
///
/// # Errors
/// JSON cannot hold it.
pub fn say_report(report: &UndoReport, is_json: bool) -> Result<()> {
    let lines = if is_json {
        vec![serde_json::to_string(&serde_json::json!({ "undone": report }))?]
    } else {
        taken_back(report)
    };
    lines.iter().for_each(|line| say(line));
    report.errors.iter().for_each(|why| warn(&why.to_string()));
    Ok(())
}

/// What was taken back and what was left, in words, without what could not be.
pub fn taken_back(report: &UndoReport) -> Vec<String> {
    let restored = report.restored_settings.iter();
    let restored =
        restored.map(|file| format!("{}: set back to its earlier value.", file.display()));
    let kept = report.kept_settings.iter().map(|kept| {
        let file = kept.file.display();
        format!("{file}: left at {}, which another process set.", kept.found)
    });
    let lifted = report
        .lifted_bans
        .iter()
        .map(|ban| format!("irqbalance (process {}) may move line {} again.", ban.pid, ban.line));
    let restored_tables = report
        .restored_tables
        .iter()
        .map(|device| format!("{device}: has its earlier RSS indirection table again."));
    let kept_tables = report.kept_tables.iter().map(|kept| {
        let (device, found) = (&kept.device, &kept.found);
        format!("{device}: left with the RSS indirection table of another process ({found}).")
    });
    restored.chain(kept).chain(restored_tables).chain(kept_tables).chain(lifted).collect()
}

/// Prints a line. Not by println, which panics when standard output is closed.
pub fn say(what: &str) {
    let _ = writeln!(std::io::stdout(), "{what}");
}

/// Prints an error or a warning.
pub fn warn(what: &str) {
    let _ = writeln!(std::io::stderr(), "evenkeel: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_may_use_all_cpus_is_why_no_interrupt_leaves_them() {
        let cpu = |number, protected, isolated| Cpu {
            number,
            isolated,
            protected,
            other_ns: 0,
            net_rx: 0,
        };
        let why = |cpus: &[Cpu]| why_none(Aim::Level, cpus);
        let every = why(&[cpu(0, true, false), cpu(1, true, false), cpu(2, false, true)]);
        assert!(
            every.starts_with("the program leaves no other CPU, and among its own "),
            "{every}"
        );
        for cpus in
            [[cpu(0, true, false), cpu(1, false, false)], [0, 1].map(|n| cpu(n, false, true))]
        {
            assert!(why(&cpus).starts_with("no move makes"), "{cpus:?}");
        }
    }
}
