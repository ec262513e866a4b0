//! One turn, in the guest: a contestant is started, everything is measured under it, it is ended.

use anyhow::Result;

use super::GuestBench;
use super::scheduler::{AtWork, Scheduler};
use crate::{Contestant, Only};

/// What an experiment finds there.
pub struct Inside<'a> {
    /// The contestant that is at work.
    pub contestant: &'a Contestant<Scheduler>,
    /// The guest's CPUs.
    pub cpus: usize,
    /// Time is instructions: what callbacks cost can be measured.
    pub costs: bool,
    /// Which figures are asked for; others may be given, too.
    pub only: &'a Only,
}

impl Inside<'_> {
    /// What callbacks cost is asked for, and there are some.
    pub fn measures_callbacks(&self) -> bool {
        self.costs && self.contestant.how.has_callbacks()
    }
}

/// Measures everything under this contestant, and says it on standard output.
///
/// # Errors
/// The scheduler or a program cannot be started, fails, or ends before its time.
pub fn play(
    bench: &GuestBench,
    contestant: &Contestant<Scheduler>,
    only: &Only,
    costs: bool,
) -> Result<i32> {
    let cpus = std::thread::available_parallelism()?.get();
    let scheduler = AtWork::start(contestant)?;
    let measured = (bench.measure)(&Inside { contestant, cpus, costs, only });
    // A scheduler that the kernel ended is the cause of whatever else went wrong.
    scheduler.end()?;
    let figures = measured?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(0)
}

/// The number behind these words in what a program has printed; units may stick to it.
pub fn number_after(output: &str, words: &str) -> Option<f64> {
    let (_, rest) = output.split_once(words)?;
    rest.split_whitespace().next()?.trim_end_matches('s').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_in_what_programs_print() {
        let hackbench = "Running in process mode\nEach sender will pass\nTime: 0.123\n";
        assert_eq!(number_after(hackbench, "Time:"), Some(0.123));
        let sysbench = "General statistics:\n    total time:       0.0452s\n    events: 40\n";
        assert_eq!(number_after(sysbench, "total time:"), Some(0.0452));
        assert_eq!(number_after("Time: soon", "Time:"), None);
        assert_eq!(number_after("", "Time:"), None);
    }
}
