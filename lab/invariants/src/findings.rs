//! What a checker is, what it is held to, and what it finds.

use crate::event::Event;
use crate::state::State;

/// How far a stream may deviate from each rule. Streams from an emulator, whose CPUs stand still now and
/// then, need room; simulated streams need next to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// A fair task waits this long at most, ...
    pub wait_ns: u64,
    /// ... and this much longer for each runnable fair task.
    pub wait_per_task_ns: u64,
    /// A running task may stay on a CPU that it must leave for this long.
    pub affinity_grace_ns: u64,
    /// A CPU may idle this long while a task waits for it; 0: not checked (where CPUs come and go, or
    /// the policy lets them idle).
    pub idle_grace_ns: u64,
    /// A task that must leave a shielded CPU may stay there for this long.
    pub shield_grace_ns: u64,
    /// Shares are judged over this time or longer.
    pub share_window_ns: u64,
    /// How far a share may be off, in percent of it, ...
    pub share_tolerance_pct: u64,
    /// ... and in time: the task that has its turn when a window ends is ahead.
    pub share_slack_ns: u64,
    /// How far the time that the kernel charges may be off, in percent of the time on a CPU, ...
    pub charge_tolerance_pct: u64,
    /// ... and in time.
    pub charge_slack_ns: u64,
}

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The checker that noticed it: the name of its file.
    pub invariant: &'static str,
    /// When it was noticed.
    pub time_ns: u64,
    /// What happened.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = self.time_ns / 1000;
        write!(f, "{} at {}.{:03} ms: {}", self.invariant, us / 1000, us % 1000, self.what)
    }
}

/// Violations beyond this number are only counted.
const KEPT: usize = 50;

/// What all checkers found in a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Events of the stream.
    pub events: u64,
    /// Longest wait of a fair task for its CPU.
    pub longest_wait_ns: u64,
    /// Longest time that a CPU idled while a task waited for it.
    pub longest_idle_ns: u64,
    /// Groups of tasks that shared a CPU for long enough to be judged.
    pub shares_judged: u64,
    /// Tasks whose charged time was compared.
    pub charges_judged: u64,
    /// The first violations in full.
    pub violations: Vec<Violation>,
    /// The number of all violations.
    pub count: u64,
}

impl Findings {
    pub(crate) fn add_violation(&mut self, checker: &'static str, time_ns: u64, what: String) {
        self.count += 1;
        if self.violations.len() < KEPT {
            self.violations.push(Violation { invariant: checker, time_ns, what });
        }
    }
}

/// One rule, checked event by event.
pub(crate) trait Checker {
    /// The next event; `state` is what all earlier events add up to.
    fn see(&mut self, event: &Event, state: &State, found: &mut Findings);

    /// The stream ends.
    fn end(&mut self, time_ns: u64, state: &State, found: &mut Findings);
}
