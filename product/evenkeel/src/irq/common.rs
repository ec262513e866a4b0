//! What the parts of `evenkeel irq` share.

use std::time::Duration;

use evenkeel_irq::{Accounting, Snapshot};

use crate::cli::Interval;

/// Exit code when the program of `--for` is not there.
pub const NO_PROGRAM: i32 = 1;

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
