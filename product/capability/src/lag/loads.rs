//! What the `lag` policy learns about a program from the work of its tasks and from the barriers that
//! were counted: how unequal the shares of a phase are, and how long a phase lasts.

use crate::snapshot::Barriers;

/// Figures of work are smoothed over about this time ...
const SMOOTHED_NS: u64 = 2_000_000_000;
/// ... and mean nothing before this: they are estimated by samples.
const KNOWN_NS: u64 = 1_000_000_000;
/// Barriers from which the time between two of them is told.
const MIN_BARRIERS: u64 = 2;
/// Time for which barriers count, and after which they are forgotten if no more are counted.
const COUNTED_NS: u64 = 500_000_000;
const FORGOTTEN_NS: u64 = 3_000_000_000;
/// Shares of a phase that differ by less than this from the middle one count as equal: 1/16.
const EQUAL_SHARE: u64 = 16;

/// The work of one task.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    /// Work received a second, in parts per million of the fastest CPU; smoothed.
    ppm: u64,
    /// Time for which that was seen.
    seen_ns: u64,
    /// Work received since the phase began.
    done_ns: u64,
    /// What it does in a whole phase, where that was seen.
    phase_ns: Option<u64>,
}

impl Load {
    /// Takes in the work of an interval.
    pub(super) fn add(&mut self, work_ns: u64, interval_ns: u64) {
        let wide = u128::from(work_ns) * 1_000_000 / u128::from(interval_ns.max(1));
        let latest_ppm = u64::try_from(wide).unwrap_or(u64::MAX).min(1_000_000);
        let window_ns = interval_ns.saturating_add(SMOOTHED_NS.min(self.seen_ns)).max(1);
        let weighted = u128::from(latest_ppm) * u128::from(interval_ns)
            + u128::from(self.ppm) * u128::from(window_ns - interval_ns);
        // The mean of two figures of at most a million.
        self.ppm = (weighted / u128::from(window_ns)) as u64;
        self.seen_ns = self.seen_ns.saturating_add(interval_ns);
        self.done_ns = self.done_ns.saturating_add(work_ns);
    }

    /// A phase has ended, `since_ns` of work ago. `phases` have passed since the last one that was seen;
    /// none: that one was not seen.
    pub(super) fn end_phase(&mut self, since_ns: u64, phases: Option<u64>) {
        if let Some(phases) = phases {
            let done_ns = self.done_ns.saturating_sub(since_ns) / phases.max(1);
            self.phase_ns = match self.phase_ns {
                // The barrier that was taken for passed a moment ago.
                Some(old_ns) if done_ns < old_ns / 2 => Some(old_ns),
                Some(old_ns) => Some(old_ns.midpoint(done_ns)),
                None => Some(done_ns),
            };
        }
        self.done_ns = since_ns;
    }

    /// Whether it has done its share of the phase, or very nearly.
    pub(super) fn is_done(&self) -> bool {
        self.phase_ns.is_some_and(|phase_ns| self.done_ns >= phase_ns - phase_ns / EQUAL_SHARE)
    }

    /// The phase has ended unseen. Returns what it has done of the next one.
    pub(super) fn begin_next_phase(&mut self) -> u64 {
        self.done_ns = self.done_ns.saturating_sub(self.phase_ns.unwrap_or(0));
        self.done_ns
    }

    /// Work received a second, once it is known.
    pub(super) fn work_ppm(&self) -> Option<u64> {
        (self.seen_ns >= KNOWN_NS).then_some(self.ppm)
    }

    /// Forgets the smoothed figure: the task's place has changed.
    pub(super) fn forget(&mut self) {
        (self.ppm, self.seen_ns) = (0, 0);
    }
}

/// How much more than the middle task each task has to do in a phase, by its index; none unless that is
/// known of all of them and clearly unequal.
pub(super) fn handicaps_ns(loads: &[Load]) -> Option<Vec<i64>> {
    let phases_ns: Vec<u64> = loads.iter().map(|load| load.phase_ns).collect::<Option<_>>()?;
    let mut sorted = phases_ns.clone();
    sorted.sort_unstable();
    let middle_ns = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
    let is_equal = |phase_ns: &u64| phase_ns.abs_diff(middle_ns) <= middle_ns / EQUAL_SHARE;
    if phases_ns.iter().all(is_equal) {
        return None;
    }
    let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    Some(phases_ns.iter().map(|phase_ns| signed(*phase_ns) - signed(middle_ns)).collect())
}

/// The barriers that were counted lately.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Beat {
    count: u64,
    observed_ns: u64,
    /// Time since barriers were last counted.
    since_ns: u64,
}

impl Beat {
    /// An interval has gone by.
    pub(super) fn pass(&mut self, interval_ns: u64, barriers: Option<Barriers>) {
        let Some(Barriers { count, observed_ns }) = barriers.filter(|seen| seen.observed_ns > 0)
        else {
            self.since_ns = self.since_ns.saturating_add(interval_ns);
            if self.since_ns > FORGOTTEN_NS {
                *self = Self::default();
            }
            return;
        };
        self.since_ns = 0;
        if self.observed_ns > COUNTED_NS {
            (self.count, self.observed_ns) = (self.count / 2, self.observed_ns / 2);
        }
        self.count = self.count.saturating_add(u64::from(count));
        self.observed_ns = self.observed_ns.saturating_add(observed_ns);
    }

    /// Whether barriers are counted.
    pub(super) fn is_seen(&self) -> bool {
        self.observed_ns > 0
    }

    /// Mean time from one barrier to the next, where enough were counted. (No barrier at all says
    /// nothing: many runtimes have none that can be counted.)
    pub(super) fn period_ns(&self) -> Option<u64> {
        (self.count >= MIN_BARRIERS).then(|| (self.observed_ns / self.count).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_time_between_barriers_is_told_from_windows() {
        let mut beat = Beat::default();
        assert_eq!(beat.period_ns(), None);
        let seen = |count| Some(Barriers { count, observed_ns: 20 * MS });
        beat.pass(100 * MS, seen(10));
        assert_eq!(beat.period_ns(), Some(2 * MS));
        // It stays known between the windows ...
        beat.pass(2_000 * MS, None);
        assert_eq!(beat.period_ns(), Some(2 * MS));
        // ... but not for long.
        beat.pass(2_000 * MS, None);
        assert_eq!((beat.period_ns(), beat.is_seen()), (None, false));
        // A runtime without barriers that can be counted.
        beat.pass(100 * MS, seen(0));
        assert_eq!((beat.period_ns(), beat.is_seen()), (None, true));
    }

    #[test]
    fn unequal_shares_of_a_phase_are_learned() {
        let loads = |works_ms: &[u64]| -> Vec<Load> {
            let load = |work_ms: &u64| {
                let mut load = Load::default();
                load.add(50 * MS, 100 * MS);
                load.end_phase(0, None);
                load.add(2 * work_ms * MS, 1_000 * MS);
                load.end_phase(0, Some(2));
                load
            };
            works_ms.iter().map(load).collect()
        };
        assert_eq!(handicaps_ns(&[Load::default()]), None);
        assert_eq!(handicaps_ns(&loads(&[100, 104, 98])), None);
        let handicaps = handicaps_ns(&loads(&[100, 130, 100]));
        assert_eq!(handicaps, Some(vec![0, 30 * MS as i64, 0]));
    }

    #[test]
    fn work_is_known_after_some_time() {
        let mut load = Load::default();
        load.add(500 * MS, 900 * MS);
        assert_eq!(load.work_ppm(), None);
        for _ in 0..9 {
            load.add(500 * MS, 1_000 * MS);
        }
        assert!(load.work_ppm().is_some_and(|ppm| (500_000..510_000).contains(&ppm)));
        load.forget();
        assert_eq!(load.work_ppm(), None);
    }
}
