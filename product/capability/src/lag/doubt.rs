//! How far the lead of a task may be wrong. Spinning is told from work by samples, and few samples tell
//! little: of 32 samples in an interval of 64 ms, a task that spins for a fifth of its time shows from
//! 3 to 10, so its work is known to some 5 ms only. Tasks that wait for each other every few ms are
//! level, but their leads seem to drift apart by that much in each interval.

use crate::snapshot::TaskView;

/// A lag counts from so many of its standard errors on. Drift is looked at again and again, so two would
/// be exceeded soon.
const SIGNIFICANT: u64 = 3;
const NS_PER_US: u64 = 1_000;
const ALL_PPM: u128 = 1_000_000;

/// What is known of the error of one task's lead, since its phase began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Doubt {
    samples: u64,
    /// Samples that found it spinning.
    spun: u64,
    /// The squares of the standard errors of all intervals together, in us^2.
    variance_us2: u64,
}

impl Doubt {
    /// Takes in an interval in which the task received `received_ns`, spinning included.
    pub(super) fn add(&mut self, view: &TaskView, received_ns: u64) {
        let samples = u64::from(view.samples);
        let spun_ns = u128::from(view.spun_ns.min(view.run_ns));
        // To the nearest: the time was calculated from the samples, and rounded down.
        let run_ns = u128::from(view.run_ns.max(1));
        let spun = (u128::from(samples) * spun_ns + run_ns / 2) / run_ns;
        self.samples += samples;
        // At most the number of samples.
        self.spun += spun as u64;
        if self.samples == 0 {
            return;
        }
        // The variance of a share p that is told by n samples: p (1 - p) / n. The share is that of the
        // whole phase: where no sample found the task spinning, nothing is in doubt.
        let wide = u128::from(self.samples);
        let spread_ppm =
            u128::from(self.spun) * (wide - u128::from(self.spun)) * ALL_PPM / wide / wide;
        let received_us = u128::from(received_ns / NS_PER_US);
        let variance =
            received_us * received_us * spread_ppm / ALL_PPM / u128::from(samples.max(1));
        let variance = u64::try_from(variance).unwrap_or(u64::MAX);
        self.variance_us2 = self.variance_us2.saturating_add(variance);
    }

    /// A difference between the leads of two tasks below this may be nothing, in ns.
    pub(super) fn least_lag_ns(self, other: Self) -> u64 {
        let error_us = self.variance_us2.saturating_add(other.variance_us2).isqrt();
        error_us.saturating_mul(SIGNIFICANT * NS_PER_US)
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_machine::CpuSet;

    use super::*;
    use crate::snapshot::TaskId;

    const MS: u64 = 1_000_000;

    fn interval(ms: u64, samples: u32, spun_ms: u64) -> TaskView {
        TaskView {
            id: TaskId { tid: 1, start: 1 },
            process: 1,
            cpu: 0,
            queue: 0,
            run_ns: ms * MS,
            spun_ns: spun_ms * MS,
            samples,
            received_ns: ms * MS,
            stolen_ns: 0,
            wait_ns: 0,
            sleeps: 0,
            runnable: true,
            allowed: CpuSet::first(2),
            fixed: false,
            working_set_bytes: None,
        }
    }

    fn after(intervals: &[TaskView]) -> Doubt {
        let mut doubt = Doubt::default();
        intervals.iter().for_each(|view| doubt.add(view, view.received_ns));
        doubt
    }

    #[test]
    fn a_single_sample_that_found_it_spinning_counts() {
        let mut doubt = Doubt::default();
        // As `host` calculates it from one sample of 32, rounded down.
        let run_ns = 63_987_123;
        let view = TaskView { run_ns, spun_ns: run_ns / 32, ..interval(64, 32, 0) };
        doubt.add(&view, run_ns);
        assert!(doubt.least_lag_ns(Doubt::default()) > 5 * MS, "{doubt:?}");
    }

    #[test]
    fn what_never_spun_is_not_in_doubt_and_what_is_not_sampled_neither() {
        let known = after(&[interval(64, 32, 0), interval(64, 0, 0), interval(64, 0, 20)]);
        assert_eq!(known.least_lag_ns(known), 0);
        assert_eq!(after(&[interval(64, 0, 20)]).least_lag_ns(Doubt::default()), 0);
    }

    #[test]
    fn doubt_grows_with_the_root_of_the_time_and_shrinks_with_that_of_the_samples() {
        let one = interval(64, 32, 16);
        // 64 ms * sqrt(1/4 * 3/4 / 32), three times.
        let first_ns = after(std::slice::from_ref(&one)).least_lag_ns(Doubt::default());
        assert!(first_ns.abs_diff(14_697_000) < 10_000, "{first_ns}");
        let four = vec![one; 4];
        let fourth_ns = after(&four).least_lag_ns(Doubt::default());
        assert!(fourth_ns.abs_diff(2 * first_ns) < 10_000, "{fourth_ns}");
        let finer_ns = after(&[interval(64, 128, 16)]).least_lag_ns(Doubt::default());
        assert!(finer_ns.abs_diff(first_ns / 2) < 10_000, "{finer_ns}");
        // Both tasks are in doubt.
        let both_ns = after(&four[..2]).least_lag_ns(after(&four[..2]));
        assert!(both_ns.abs_diff(fourth_ns) < 10_000, "{both_ns}");
    }

    #[test]
    fn the_largest_figures_do_no_harm() {
        let all = TaskView {
            run_ns: u64::MAX,
            spun_ns: u64::MAX / 2,
            received_ns: u64::MAX,
            samples: u32::MAX,
            ..interval(1, 1, 1)
        };
        let doubt = after(&[all.clone(), all]);
        assert!(doubt.least_lag_ns(doubt) > 0);
    }
}
