//! How often a task sleeps: whether it waits for others more often than it could be moved.
//!
//! One interval tells little, so sleeps are counted over some time. Being preempted is no sleep: on a
//! CPU with noise that happens all the time. Nor are a few sleeps within a moment more than one
//! ([`crate::ONE_SLEEP_NS`]).

/// Time for which sleeps count, and not less than so many of the shortest long phase.
const COUNTED_NS: u64 = 500_000_000;
const COUNTED_PHASES: u64 = 5;
/// Sleeps that tell how often a task sleeps.
const MIN_SLEEPS: u64 = 3;

/// The sleeps of one task lately.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sleeps {
    count: u64,
    elapsed_ns: u64,
}

impl Sleeps {
    /// An interval has gone by. A phase of `long_ns` is worth balancing in.
    pub(super) fn add(&mut self, count: u32, interval_ns: u64, long_ns: u64) {
        if self.elapsed_ns > COUNTED_NS.max(long_ns.saturating_mul(COUNTED_PHASES)) {
            (self.count, self.elapsed_ns) = (self.count / 2, self.elapsed_ns / 2);
        }
        self.count = self.count.saturating_add(u64::from(count));
        self.elapsed_ns = self.elapsed_ns.saturating_add(interval_ns);
    }

    /// Mean time from one sleep to the next, where that is less than `long_ns`.
    pub(super) fn short_phase_ns(&self, long_ns: u64) -> Option<u64> {
        // From the first sleep to the last one there is one phase less.
        let is_often = self.count >= MIN_SLEEPS && self.elapsed_ns / (self.count - 1) < long_ns;
        is_often.then(|| self.elapsed_ns / self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LONG_NS: u64 = 100 * MS;

    /// What is said after each interval of this length, where a task sleeps so often.
    fn said(interval_ms: u64, sleeps: impl IntoIterator<Item = u32>) -> Vec<Option<u64>> {
        let mut task = Sleeps::default();
        let after = |count| {
            task.add(count, interval_ms * MS, LONG_NS);
            task.short_phase_ns(LONG_NS).map(|phase_ns| phase_ns / MS)
        };
        sleeps.into_iter().map(after).collect()
    }

    #[test]
    fn many_sleeps_show_at_once_and_one_in_each_interval_after_some() {
        assert_eq!(said(50, [10, 10]), [Some(5), Some(5)]);
        assert_eq!(said(50, [1, 1, 1, 1]), [None, None, Some(50), Some(50)]);
    }

    #[test]
    fn sleeps_at_the_ends_of_long_phases_are_no_short_phases() {
        for intervals in [2, 3, 6] {
            let phases = (0..60).map(|at| u32::from(at % intervals == 0));
            assert_eq!(said(50, phases), [None; 60], "each {intervals} intervals");
        }
        assert_eq!(said(1_000, [7; 9]), [None; 9]);
        assert!(said(1_000, [20; 9]).iter().all(Option::is_some));
    }

    /// Figures from /proc, at looks each 400 ms.
    #[test]
    fn long_intervals_do_not_hide_that_phases_are_short() {
        let mut task = Sleeps::default();
        let after = |_| {
            task.add(1, 400 * MS, 800 * MS);
            task.short_phase_ns(800 * MS).is_some()
        };
        assert!((0..40).map(after).skip(3).all(|is_short| is_short));
    }
}
