//! When a program is sampled often: while its tasks spin much although they are exchanged. Then how long
//! its phases are must be known well.

use evenkeel_capability::Snapshot;

/// It is sampled often for so long after the last interval with a reason for it.
const LINGER_NS: u64 = 2_000_000_000;
/// Spinning counts for so much time of a program's tasks, ...
const COUNTED_NS: u64 = 2_000_000_000;
/// ... and is much from this share of it on: 1/8.
const MUCH_SHARE: u64 = 8;

/// What tells that of one program.
#[derive(Default)]
pub(super) struct Often {
    until_ns: u64,
    /// Time that its tasks ran lately while they were sampled, and the part of it that they spun, in ns.
    run_ns: u64,
    spun_ns: u64,
}

impl Often {
    /// Takes in an interval, at the beginning of which tasks were exchanged or not.
    pub(super) fn take_in(&mut self, snapshot: &Snapshot, has_exchanged: bool, now_ns: u64) {
        if self.run_ns > COUNTED_NS {
            (self.run_ns, self.spun_ns) = (self.run_ns / 2, self.spun_ns / 2);
        }
        for task in snapshot.tasks.iter().filter(|task| task.samples > 0) {
            self.run_ns += task.run_ns;
            self.spun_ns += task.spun_ns;
        }
        if has_exchanged && self.spun_ns.saturating_mul(MUCH_SHARE) > self.run_ns {
            self.until_ns = now_ns + LINGER_NS;
        }
    }

    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.until_ns > now_ns
    }
}
