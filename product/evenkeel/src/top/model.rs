//! All that one screen of `evenkeel top` shows, as one value. `sources` reads it; `tables`,
//! `explanation` and `view` only look at it.

use std::collections::BTreeMap;

use evenkeel_host::doctor::Asymmetry;
use evenkeel_host::{Accounting, Gain, ProgramStatus, Proven, ThreadTimes};
use evenkeel_keel::Statistics;
use schemars::JsonSchema;
use serde::Serialize;

use super::interrupts::Rate;

/// One complete reading.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// The name of this machine.
    pub host: String,
    /// When it was read, in ns of the monotonic clock; 0: not yet.
    pub at_ns: u64,
    /// The CPUs.
    pub cpus: Cpus,
    /// The programs that are balanced, as their balancers publish them.
    pub programs: Vec<Program>,
    /// Programs were balanced in an earlier reading, and have ended.
    pub have_ended: bool,
    /// How often each line and each softirq came; none: no interval has passed yet.
    pub interrupts: Option<Vec<Rate>>,
    /// The keel, if it runs.
    pub keel: Option<Keel>,
    /// What cannot be seen, or could not be read, and why.
    pub notes: Vec<String>,
}

/// The online CPUs.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct Cpus {
    /// Number and relative speed, 1..=1024.
    #[serde(skip)]
    pub speeds: Vec<(u32, u32)>,
    /// What they gave in the last interval; none: no interval has passed yet.
    pub figures: Option<Asymmetry>,
    /// Why the figures are not exact, if they are not.
    pub why_not_exact: Option<String>,
}

/// A balanced program.
#[derive(Debug, Clone)]
pub struct Program {
    /// What its balancer publishes.
    pub status: ProgramStatus,
    /// Where the time of its threads went in the last seconds.
    pub threads: Vec<ThreadTimes>,
    /// These are from /proc, since its balancer observes nothing at the moment.
    pub is_from_proc: bool,
}

/// The keel that runs.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct Keel {
    /// Its policies, its counters since it was loaded, and its CPUs.
    pub statistics: Statistics,
    /// How often each counter went up in a second; empty: no interval has passed yet.
    pub per_s: BTreeMap<String, f64>,
    /// What the counters mean.
    #[serde(skip)]
    pub meanings: BTreeMap<String, String>,
    /// The last answers of its gate, oldest first.
    pub answers: Vec<evenkeel_keel::Decision>,
}

/// Where the time of a program's threads went, as shares of it in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// On a CPU, and not known to wait there.
    pub work_pct: f64,
    /// On a CPU, but spinning; none where that is not known.
    pub spin_pct: Option<f64>,
    /// Runnable without a CPU.
    pub queue_pct: f64,
    /// Asleep.
    pub sleep_pct: f64,
}

impl Times {
    /// Of all these threads together; none where there is no thread, or no time.
    pub fn of(threads: &[ThreadTimes]) -> Option<Self> {
        let sum = |of: fn(&ThreadTimes) -> u64| threads.iter().map(of).sum::<u64>() as f64;
        let run = sum(|thread| thread.run_ns);
        let (queue, sleep) = (sum(|thread| thread.queued_ns), sum(|thread| thread.slept_ns));
        let all = run + queue + sleep;
        // A thread that did not run cannot have spun.
        let is_known = threads.iter().all(|thread| thread.spun.is_some() || thread.run_ns == 0);
        let spun =
            |thread: &ThreadTimes| thread.spun.map_or(0.0, |share| share.at) * thread.run_ns as f64;
        let spun = (is_known && run > 0.0).then(|| threads.iter().map(spun).sum::<f64>());
        let pct = |part: f64| part * 100.0 / all;
        (all > 0.0).then(|| Self {
            work_pct: pct(run - spun.unwrap_or(0.0)),
            spin_pct: spun.map(pct),
            queue_pct: pct(queue),
            sleep_pct: pct(sleep),
        })
    }
}

impl Model {
    /// Whether anything was read.
    pub fn is_read(&self) -> bool {
        self.at_ns > 0
    }
}

impl Program {
    /// Its command line.
    pub fn command(&self) -> String {
        self.status.command.join(" ")
    }

    /// What is changed for it at the moment, in one word.
    pub fn lever(&self) -> &'static str {
        let status = &self.status;
        match (&status.shares, status.accounting) {
            _ if status.dry_run => "watched",
            (Some(shares), _) if shares.is_on => "loops",
            _ if status.resting => "resting",
            (_, Accounting::None) => "none",
            _ => "threads",
        }
    }

    /// What its lever gains: that of divided loops where they are measured, else that of moves.
    pub fn gain(&self) -> &Gain {
        let of_loops = self.status.shares.as_ref().map(|shares| &shares.gain);
        of_loops.filter(|gain| gain.proven != Proven::Nothing).unwrap_or(&self.status.gain)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_host::{Share, SharesStatus};

    use super::*;
    use crate::top::sample;

    fn thread(run_ns: u64, spun: Option<f64>, queued_ns: u64, slept_ns: u64) -> ThreadTimes {
        let spun = spun.map(|at| Share { at, low: at, high: at });
        ThreadTimes { tid: 1, run_ns, spun, queued_ns, slept_ns }
    }

    #[test]
    fn the_times_of_threads_are_added_and_shares_of_all_their_time() {
        assert_eq!(Times::of(&[]), None);
        assert_eq!(Times::of(&[thread(0, None, 0, 0)]), None);
        let times =
            Times::of(&[thread(80, Some(0.25), 20, 0), thread(20, Some(0.0), 0, 80)]).unwrap();
        assert_eq!((times.work_pct, times.spin_pct), (40.0, Some(10.0)));
        assert_eq!((times.queue_pct, times.sleep_pct), (10.0, 40.0));
        // Of one thread it is not known whether it worked.
        let times = Times::of(&[thread(50, Some(0.5), 0, 0), thread(50, None, 0, 0)]).unwrap();
        assert_eq!((times.work_pct, times.spin_pct), (100.0, None));
    }

    #[test]
    fn a_lever_is_named_by_what_is_done_now() {
        let mut program = sample::program(7, "lu");
        assert_eq!(program.lever(), "threads");
        program.status.resting = true;
        assert_eq!(program.lever(), "resting");
        program.status.accounting = Accounting::None;
        assert_eq!(program.lever(), "resting", "barriers come too often from its first sign on");
        program.status.resting = false;
        assert_eq!(program.lever(), "none");
        let gain = Gain { proven: Proven::Gains, ratio: Some(1.5), ..Gain::default() };
        program.status.shares =
            Some(SharesStatus { is_on: true, gain: gain.clone(), ..SharesStatus::default() });
        assert_eq!((program.lever(), program.gain()), ("loops", &gain));
        program.status.dry_run = true;
        assert_eq!(program.lever(), "watched");
    }
}
