//! How long the program's phases last, learned from the barriers that were seen, and what follows
//! for the next look.
//!
//! A barrier is seen where half of the tasks have slept and run again (`memory.rs`), or where the
//! program's runtime was seen to pass one (`Seen::barriers`). The better a program is balanced, the less
//! its tasks wait there, so that one barrier or another stays unseen: where the time between two of them
//! is a multiple of the length that was learned, it is taken for so many phases.

/// Phases from which their length is learned.
const KNOWN: usize = 3;
/// Their lengths may differ from the middle one by this share of it: 1/4.
const VARIATION_SHARE: u64 = 4;
/// A barrier is timed to a part of an interval: a phase must last this many for its length to mean
/// something.
const MIN_INTERVALS: u64 = 3;
/// Barriers in a row that may stay unseen.
const MAX_UNSEEN: u64 = 4;

#[derive(Debug, Clone, Default)]
pub(super) struct Phases {
    /// Time since the last barrier that was seen; none before the first one.
    since_ns: Option<u64>,
    /// The last lengths, in turn.
    lengths_ns: [u64; KNOWN],
    /// Lengths noted so far.
    noted: usize,
}

impl Phases {
    /// An interval has gone by. If a barrier was seen in it, it was `barrier_ago_ns` before its end.
    pub(super) fn pass(&mut self, interval_ns: u64, barrier_ago_ns: Option<u64>) {
        let since_ns = self.since_ns.map(|since_ns| since_ns.saturating_add(interval_ns));
        let Some(ago_ns) = barrier_ago_ns else {
            self.since_ns = since_ns;
            return;
        };
        if let Some(since_ns) = since_ns {
            self.note(since_ns.saturating_sub(ago_ns), interval_ns);
        }
        self.since_ns = Some(ago_ns);
    }

    fn note(&mut self, from_barrier_to_barrier_ns: u64, interval_ns: u64) {
        if from_barrier_to_barrier_ns < interval_ns.saturating_mul(MIN_INTERVALS) {
            self.noted = 0;
            return;
        }
        let passed = self.passed_in(from_barrier_to_barrier_ns);
        self.lengths_ns[self.noted % KNOWN] = from_barrier_to_barrier_ns / passed;
        self.noted += 1;
    }

    /// Whether looks follow them.
    pub(super) fn are_known(&self) -> bool {
        self.length_ns().is_some()
    }

    /// Length of a phase, where the last ones were about equally long.
    fn length_ns(&self) -> Option<u64> {
        if self.noted < KNOWN {
            return None;
        }
        let mut lengths_ns = self.lengths_ns;
        lengths_ns.sort_unstable();
        let middle_ns = lengths_ns[KNOWN / 2];
        let is_near =
            |length_ns: &u64| length_ns.abs_diff(middle_ns) <= middle_ns / VARIATION_SHARE;
        lengths_ns.iter().all(is_near).then_some(middle_ns)
    }

    /// How many phases passed in this time, as far as their length is known; at least one.
    pub(super) fn passed_in(&self, time_ns: u64) -> u64 {
        self.length_ns().map_or(1, |length_ns| {
            let nearest = time_ns.saturating_add(length_ns / 2) / length_ns.max(1);
            nearest.clamp(1, MAX_UNSEEN + 1)
        })
    }

    /// Length of the next interval, which is to be `interval_ns` at most: half of what is left of the
    /// phase, but at least the shortest. A task that gets the fast CPU for the one half leaves it for
    /// the other; as the halves become shorter and shorter, the tasks reach the barrier together. The
    /// last look before the expected end is less than a shortest interval away from it.
    pub(super) fn towards_the_end(&self, interval_ns: u64, min_interval_ns: u64) -> u64 {
        let half_ns = self.to_end_ns().map_or(u64::MAX, |to_end_ns| to_end_ns / 2);
        interval_ns.min(half_ns).max(min_interval_ns)
    }

    /// Time until the present phase is expected to end, > 0; none where that cannot be told.
    fn to_end_ns(&self) -> Option<u64> {
        let (length_ns, since_ns) = (self.length_ns()?, self.since_ns?);
        (since_ns / length_ns <= MAX_UNSEEN).then(|| length_ns - since_ns % length_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Barriers after phases of these lengths (ms), at looks every `interval_ms`.
    fn seen(lengths_ms: &[u64], interval_ms: u64) -> Phases {
        let mut phases = Phases::default();
        let (mut now_ms, mut barrier_ms) = (0, 1);
        for length_ms in std::iter::once(&0).chain(lengths_ms) {
            barrier_ms += length_ms;
            while now_ms + interval_ms < barrier_ms {
                now_ms += interval_ms;
                phases.pass(interval_ms * MS, None);
            }
            now_ms += interval_ms;
            phases.pass(interval_ms * MS, Some((now_ms - barrier_ms) * MS));
        }
        phases
    }

    #[test]
    fn steady_phases_are_learned() {
        assert_eq!(seen(&[2_000; 2], 100).length_ns(), None);
        assert_eq!(seen(&[2_000; 3], 100).length_ns(), Some(2_000 * MS));
        assert_eq!(seen(&[9_000, 2_000, 1_900, 2_300], 100).length_ns(), Some(2_000 * MS));
        // 99 ms of the fourth are over.
        assert_eq!(seen(&[2_000; 3], 100).to_end_ns(), Some(1_901 * MS));
    }

    #[test]
    fn phases_that_vary_or_are_short_change_nothing() {
        let lengths: [(&[u64], u64); 5] = [
            (&[2_000, 2_000, 2_600], 100),
            (&[2_000, 700, 1_300, 3_100, 900], 100),
            (&[2_000, 2_000, 2_000, 1_000], 100),
            (&[299; 9], 100),
            (&[2_000; 9], 1_000),
        ];
        for (lengths_ms, interval_ms) in lengths {
            let phases = seen(lengths_ms, interval_ms);
            assert_eq!(phases.to_end_ns(), None, "{lengths_ms:?}");
            assert_eq!(phases.towards_the_end(interval_ms * MS, MS), interval_ms * MS);
        }
    }

    #[test]
    fn barriers_that_stay_unseen_are_counted() {
        let mut phases = seen(&[2_000, 2_000, 2_000, 6_100, 4_000], 100);
        assert_eq!(phases.length_ns(), Some(2_000 * MS));
        let left_ns = phases.to_end_ns();
        phases.pass(8_000 * MS, None);
        assert_eq!(phases.to_end_ns(), left_ns);
        // In the long run that is guessing.
        phases.pass(2_000 * MS, None);
        assert_eq!(phases.to_end_ns(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn there_is_a_look_shortly_before_each_expected_end(
            length_ms in 300..10_000u64,
            min_ms in 1..100u64,
            usual_ms in 100..1_000u64,
        ) {
            let mut phases = seen(&[length_ms; 3], 100);
            let mut left_ns = phases.to_end_ns();
            prop_assert!(left_ns.is_some());
            while let Some(to_end_ns) = left_ns {
                let next_ns = phases.towards_the_end(usual_ms * MS, min_ms * MS);
                prop_assert!((min_ms * MS..=usual_ms * MS).contains(&next_ns));
                // The last look before the end.
                prop_assert!(next_ns < to_end_ns || to_end_ns <= min_ms * MS);
                phases.pass(next_ns, None);
                left_ns = phases.to_end_ns();
            }
        }
    }
}
