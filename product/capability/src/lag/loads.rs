//! What the `lag` policy learns about a program from the work of its tasks and from the barriers that
//! were counted: how unequal the shares of a phase are, and how long a phase lasts.

use crate::snapshot::Barriers;

/// Figures of work are smoothed over about this time ...
const SMOOTHED_NS: u64 = 2_000_000_000;
/// ... and mean nothing before this: they are estimated by samples.
const KNOWN_NS: u64 = 1_000_000_000;
/// Work of a task that sleeps while it waits is counted, so it is known sooner.
const COUNTED_KNOWN_NS: u64 = 200_000_000;
/// Barriers that were counted in all but this share of an interval are all that there were: 1/10.
const WHOLE_SHARE: u64 = 10;
/// Barriers from which the time between two of them is told, where all are counted, ...
const MIN_BARRIERS: u64 = 2;
/// ... and where they are counted in windows, in which one may be by chance.
const MIN_IN_WINDOWS: u64 = 3;
/// So many countings in a row in which no barrier counted tell that those before are history.
const MAX_EMPTY: u64 = 8;
/// Time for which barriers count, and after which they are forgotten if no more are counted.
const COUNTED_NS: u64 = 500_000_000;
const FORGOTTEN_NS: u64 = 3_000_000_000;
/// Shares of a phase that differ by less than this from the middle one count as equal: 1/16.
pub(super) const EQUAL_SHARE: u64 = 16;

/// The work of one task.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    /// Work received a second, in parts per million of the fastest CPU; smoothed.
    ppm: u64,
    /// Time for which that was seen.
    seen_ns: u64,
    /// It spun for a part of that.
    has_spun: bool,
    /// Work received since the phase began.
    done_ns: u64,
    /// What it does in a whole phase, where that was seen.
    phase_ns: Option<u64>,
}

impl Load {
    /// Takes in the work of an interval, in which it spun for so long.
    pub(super) fn add(&mut self, work_ns: u64, spun_ns: u64, interval_ns: u64) {
        self.has_spun |= spun_ns > 0;
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

    /// The same of a task that was never seen to spin: it needs no samples.
    pub(super) fn counted_work_ppm(&self) -> Option<u64> {
        (!self.has_spun && self.seen_ns >= COUNTED_KNOWN_NS).then_some(self.ppm)
    }

    /// Forgets the smoothed figure: the task's place has changed.
    pub(super) fn forget(&mut self) {
        (self.ppm, self.seen_ns, self.has_spun) = (0, 0, false);
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

/// Whether barriers that were counted for so long are all those of an interval.
pub(super) fn is_whole(observed_ns: u64, interval_ns: u64) -> bool {
    observed_ns >= interval_ns - interval_ns / WHOLE_SHARE
}

/// When the policy looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Looks {
    /// As the rates of the CPUs require.
    Usual,
    /// By the known length of long phases.
    ByPhase,
    /// Some times in each phase.
    Often,
}

/// The barriers that were counted lately.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Beat {
    /// Windows that were only a part of an interval, ...
    windows: u64,
    /// ... and how many countings in a row, in windows or whole intervals, had none that counts.
    empty: u64,
    count: u64,
    observed_ns: u64,
    /// Time since barriers were last counted.
    since_ns: u64,
}

impl Beat {
    /// An interval has gone by.
    pub(super) fn pass(&mut self, interval_ns: u64, barriers: Option<Barriers>, looks: Looks) {
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
            self.windows /= 2;
        }
        // An interval that is as short as a window is none of many in a row.
        let is_whole = looks != Looks::Often && is_whole(observed_ns, interval_ns);
        // Windows begin after looks. Where these follow the phases, a window of a few ms may have the
        // one barrier of a long phase again and again; but two in one window are near each other.
        let count =
            u64::from(count).saturating_sub(u64::from(!is_whole && looks == Looks::ByPhase));
        self.empty = if count > 0 { 0 } else { self.empty + 1 };
        if self.empty >= MAX_EMPTY {
            (self.windows, self.count, self.observed_ns) = (0, 0, 0);
        }
        self.windows += u64::from(!is_whole);
        self.count = self.count.saturating_add(count);
        self.observed_ns = self.observed_ns.saturating_add(observed_ns);
    }

    /// Whether barriers are counted.
    pub(super) fn is_seen(&self) -> bool {
        self.observed_ns > 0
    }

    /// Mean time from one barrier to the next, where that is below `long_ns`: of barriers that are
    /// counted in windows, with a margin. (No barrier at all says nothing: many runtimes have none that
    /// can be counted.)
    pub(super) fn short_period_ns(&self, long_ns: u64) -> Option<u64> {
        let least = if self.windows == 0 { MIN_BARRIERS } else { MIN_IN_WINDOWS };
        if self.count < least {
            return None;
        }
        // Twice the standard deviation less than what was counted. What comes regularly is once more
        // often in a window than in another, a variance of 1/4; what comes by chance varies by its
        // number.
        let variance = self.windows.min(self.count.saturating_mul(4));
        let deviation_milli = variance.saturating_mul(1_000_000).isqrt();
        let least_milli = self.count.saturating_mul(1_000).saturating_sub(deviation_milli);
        let is_short =
            u128::from(least_milli) * u128::from(long_ns) > u128::from(self.observed_ns) * 1_000;
        is_short.then(|| (self.observed_ns / self.count).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_time_between_barriers_is_told_from_windows() {
        let mut beat = Beat::default();
        let period_ms = |beat: &Beat| beat.short_period_ns(100 * MS).map(|ns| ns / MS);
        assert_eq!(period_ms(&beat), None);
        let seen = |count| Some(Barriers { count, observed_ns: 20 * MS });
        beat.pass(100 * MS, seen(10), Looks::Usual);
        assert_eq!(period_ms(&beat), Some(2));
        // It stays known between the windows ...
        beat.pass(2_000 * MS, None, Looks::Usual);
        assert_eq!(period_ms(&beat), Some(2));
        // ... but not for long.
        beat.pass(2_000 * MS, None, Looks::Usual);
        assert_eq!((period_ms(&beat), beat.is_seen()), (None, false));
        // A runtime without barriers that can be counted.
        beat.pass(100 * MS, seen(0), Looks::Usual);
        assert_eq!((period_ms(&beat), beat.is_seen()), (None, true));
    }

    /// Whether barriers are said to come often after each of 200 windows of 12 ms, one in each second or
    /// a little more.
    fn often(phase_ms: u64, looks: Looks) -> Vec<bool> {
        let mut beat = Beat::default();
        let (mut from_ms, mut random) = (0, phase_ms);
        let after = |_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            from_ms += 1_000 + (random >> 33) % 200;
            let count = (from_ms + 12) / phase_ms - from_ms / phase_ms;
            let seen = Barriers { count: count as u32, observed_ns: 12 * MS };
            beat.pass(1_100 * MS, Some(seen), looks);
            beat.short_period_ns(100 * MS).is_some()
        };
        (0..200).map(after).collect()
    }

    #[test]
    fn windows_tell_short_phases_and_hardly_ever_take_a_long_one_for_short() {
        for phase_ms in 1..=20 {
            let often = often(phase_ms, Looks::Usual);
            let first = often.iter().position(|is_often| *is_often);
            assert!(first.is_some_and(|first| first < 30), "{phase_ms} ms: {first:?}");
            let later = often[30..].iter().filter(|is_often| **is_often).count();
            assert!(later >= 150, "{phase_ms} ms: {later} of 170");
        }
        let long = (128..400).flat_map(|phase_ms| often(phase_ms, Looks::Usual));
        let wrong = long.filter(|is_often| *is_often).count();
        assert!(wrong < 200 * 272 / 200, "{wrong} of {}", 200 * 272);
        // Whatever the windows show where looks follow phases.
        assert!((12..400).all(|phase_ms| !often(phase_ms, Looks::ByPhase).contains(&true)));
    }

    #[test]
    fn short_phases_that_are_over_are_forgotten() {
        let mut beat = Beat::default();
        let mut pass = |count| {
            beat.pass(1_000 * MS, Some(Barriers { count, observed_ns: 12 * MS }), Looks::Usual);
            beat.short_period_ns(100 * MS).is_some()
        };
        assert!((0..40).all(|_| pass(6)));
        assert_eq!((0..20).map(|_| pass(0)).filter(|is_short| *is_short).count(), 7);
    }

    #[test]
    fn unequal_shares_of_a_phase_are_learned() {
        let loads = |works_ms: &[u64]| -> Vec<Load> {
            let load = |work_ms: &u64| {
                let mut load = Load::default();
                load.add(50 * MS, 0, 100 * MS);
                load.end_phase(0, None);
                load.add(2 * work_ms * MS, 0, 1_000 * MS);
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
        load.add(500 * MS, 0, 900 * MS);
        assert_eq!(load.work_ppm(), None);
        for _ in 0..9 {
            load.add(500 * MS, 0, 1_000 * MS);
        }
        assert!(load.work_ppm().is_some_and(|ppm| (500_000..510_000).contains(&ppm)));
        load.forget();
        assert_eq!(load.work_ppm(), None);
    }
}
