//! How a program waits: the share of its run time in which its threads spin until another arrives, and
//! the barriers that it passes. Shares are estimates by samples, and each carries its error.

use std::fmt;

use evenkeel_capability::Barriers;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The waiting of a program over some time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waits {
    /// What is known of waiting that spins.
    pub spinning: Spinning,
    /// Barriers, where they were counted.
    pub barriers: Option<Barriers>,
}

/// What is known of waiting that spins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Spinning {
    /// It was not looked for: the CPUs are alike, fewer than two tasks ran, or barriers came too often
    /// from the first sign of unequal CPUs on.
    #[default]
    NotLookedFor,
    /// It looks like work. Why it cannot be told from it:
    Unverified(String),
    /// It was told from work, by samples of the run time.
    Seen {
        /// Samples.
        samples: u64,
        /// How many of them found a task that waits.
        spun: u64,
    },
}

/// One thread over some time, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadTimes {
    /// Thread id.
    pub tid: u32,
    /// On a CPU, less what irq, softirq and steal took.
    pub run_ns: u64,
    /// The part of it in which it waited for other tasks by spinning; none if that is not known.
    pub spun: Option<Share>,
    /// Runnable, but not on a CPU; or on one that an interrupt or the hypervisor took.
    pub queued_ns: u64,
    /// Neither: it slept.
    pub slept_ns: u64,
}

/// A share, 0..=1, estimated by samples, with the limits that hold it in 95 of 100 cases.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    /// The estimate.
    pub at: f64,
    /// It is hardly smaller.
    pub low: f64,
    /// It is hardly larger.
    pub high: f64,
}

/// The normal distribution's quantile for 95 % between both limits.
const Z: f64 = 1.96;

impl Share {
    /// The share of which `found` of `samples` samples tell (Wilson's interval); `None` without a
    /// sample.
    pub fn of(found: u64, samples: u64) -> Option<Self> {
        if samples == 0 {
            return None;
        }
        let n = samples as f64;
        let at = found.min(samples) as f64 / n;
        let center = (at + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
        let half = Z / (1.0 + Z * Z / n) * (at * (1.0 - at) / n + Z * Z / (4.0 * n * n)).sqrt();
        // At a share of 0 or 1 the limit is the estimate, but for rounding.
        Some(Self { at, low: (center - half).clamp(0.0, at), high: (center + half).clamp(at, 1.0) })
    }
}

impl Waits {
    /// The mean time between two barriers in ns, if any were seen.
    pub fn phase_ns(&self) -> Option<u64> {
        let Barriers { count, observed_ns } = self.barriers?;
        observed_ns.checked_div(u64::from(count))
    }

    /// Whether there is nothing to tell.
    pub fn is_nothing(&self) -> bool {
        self.spinning == Spinning::NotLookedFor && self.barriers.is_none()
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| 100.0 * share;
        write!(f, "{:.0} % ({:.0}-{:.0})", percent(self.at), percent(self.low), percent(self.high))
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.spinning {
            Spinning::NotLookedFor => {
                write!(
                    f,
                    "spinning not looked for: the CPUs were alike, or fewer than two tasks computed"
                )?;
            }
            Spinning::Unverified(why) => write!(f, "spinning unverified: {why}")?,
            Spinning::Seen { samples, spun } => match Share::of(*spun, *samples) {
                Some(share) => write!(f, "spins for {share} of its run time")?,
                None => write!(f, "did not run")?,
            },
        }
        if let (Some(Barriers { count, observed_ns }), Some(phase_ns)) =
            (self.barriers, self.phase_ns())
        {
            let per_s = f64::from(count) * 1e9 / observed_ns.max(1) as f64;
            write!(
                f,
                "; {per_s:.0} barriers a second, a phase of {:.1} ms",
                phase_ns as f64 / 1e6
            )?;
        } else if self.barriers.is_some() {
            write!(f, "; no barrier seen")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The number of successes in `samples` draws of probability `share`.
    fn draw(random: &mut impl FnMut() -> u64, share: f64, samples: u64) -> u64 {
        let unit = |random: &mut dyn FnMut() -> u64| (random() >> 11) as f64 / (1u64 << 53) as f64;
        (0..samples).filter(|_| unit(random) < share).count() as u64
    }

    /// xorshift64*.
    fn random(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed | 1;
        move || {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            state.wrapping_mul(0x2545_F491_4F6C_DD1D)
        }
    }

    proptest! {
        #[test]
        fn the_limits_enclose_the_estimate(samples in 1u64..1_000_000, part in 0.0..=1.0f64) {
            let found = (samples as f64 * part) as u64;
            let share = Share::of(found, samples).unwrap();
            prop_assert!(0.0 <= share.low && share.low <= share.at, "{share:?}");
            prop_assert!(share.at <= share.high && share.high <= 1.0, "{share:?}");
            // Four times the samples halve the error, or nearly so near 0 and 1.
            let finer = Share::of(4 * found, 4 * samples).unwrap();
            let width = |share: Share| share.high - share.low;
            prop_assert!(width(finer) < 0.75 * width(share), "{share:?} {finer:?}");
            // What two seconds at 500 a second tell is within three points.
            if samples >= 1100 {
                prop_assert!(width(share) <= 0.06, "{share:?}");
            }
        }

        #[test]
        fn the_limits_hold_the_share_in_95_of_100_cases(
            seed in any::<u64>(), share in 0.02..0.98f64, samples in 100u64..1500,
        ) {
            const TIMES: u64 = 400;
            let mut random = random(seed);
            let holds = (0..TIMES).filter(|_| {
                let found = draw(&mut random, share, samples);
                let seen = Share::of(found, samples).unwrap();
                seen.low <= share && share <= seen.high
            });
            // 95 % of 400 are 380; five standard deviations below are 358. (The discrete steps of small
            // counts cost some more.)
            let holds = holds.count();
            prop_assert!(holds >= 350, "{holds} of {TIMES}");
        }
    }

    #[test]
    fn no_sample_tells_nothing() {
        assert_eq!(Share::of(0, 0), None);
    }

    #[test]
    fn it_is_told_in_words() {
        let barriers = Some(Barriers { count: 10, observed_ns: 20_000_000 });
        let spinning = Spinning::Seen { samples: 1000, spun: 230 };
        let text = Waits { spinning, barriers }.to_string();
        assert_eq!(
            text,
            "spins for 23 % (20-26) of its run time; 500 barriers a second, a phase of 2.0 ms"
        );
        let unverified = Waits { spinning: Spinning::Unverified("why".into()), barriers: None };
        assert_eq!(unverified.to_string(), "spinning unverified: why");
        let none = Some(Barriers { count: 0, observed_ns: 20_000_000 });
        let waits = Waits { spinning: Spinning::Seen { samples: 0, spun: 0 }, barriers: none };
        assert_eq!(
            (waits.phase_ns(), waits.to_string()),
            (None, "did not run; no barrier seen".into())
        );
        assert!(Waits::default().is_nothing() && !waits.is_nothing());
    }
}
