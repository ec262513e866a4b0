//! The sequential test: an interval for the mean of samples that holds at every number of samples at
//! once, so that it may be looked at after each of them.
//!
//! It is the anytime-valid t-test with a Gaussian mixture over the effect size (Lai, "On confidence
//! sequences", 1976; Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means
//! with unknown variance", arXiv 2310.03722): the scale-invariant likelihood ratio, mixed over effect
//! sizes ~ N(0, 1 / c^2), is a martingale where the mean is the true one, and exceeds 1 / alpha with a
//! probability of alpha at most, ever (Ville).

/// The interval misses the mean with this probability, over all looks.
const ALPHA: f64 = 0.05;
/// 1 / variance of the effect sizes that are looked for: a gain is many times the noise of a window.
const C2: f64 = 0.1;
/// Samples spread at least this much: windows of a regular load repeat themselves, which proves nothing.
const MIN_SPREAD: f64 = 0.004;

/// Samples, as their sums.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sequence {
    samples: u32,
    mean: f64,
    /// Sum of the squared distances from the mean.
    squares: f64,
}

impl Sequence {
    pub(super) fn add(&mut self, sample: f64) {
        // A window without any work says nothing.
        if !sample.is_finite() {
            return;
        }
        self.samples += 1;
        let distance = sample - self.mean;
        self.mean += distance / f64::from(self.samples);
        self.squares += distance * (sample - self.mean);
    }

    pub(super) fn samples(&self) -> u32 {
        self.samples
    }

    pub(super) fn mean(&self) -> f64 {
        self.mean
    }

    /// The lowest and the highest mean that the samples allow; none while there are too few.
    pub(super) fn interval(&self) -> Option<(f64, f64)> {
        if self.samples < 2 {
            return None;
        }
        let n = f64::from(self.samples);
        let spread = (self.squares / n).sqrt().max(MIN_SPREAD);
        let bound = libm::pow(((n + C2) / C2).sqrt() / ALPHA, 2.0 / n);
        let left = 1.0 - bound * C2 / (n + C2);
        (left > 0.0).then(|| {
            let radius = spread * ((bound - 1.0) / left).sqrt();
            (self.mean - radius, self.mean + radius)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Dice;
    use super::*;

    #[test]
    fn the_interval_needs_some_samples_and_shrinks() {
        let mut sequence = Sequence::default();
        let mut last = f64::INFINITY;
        for sample in 0..200 {
            assert!(sequence.interval().is_some() == (sample >= 3), "{sample}");
            if let Some((low, high)) = sequence.interval() {
                assert!(low < 0.1 && 0.1 < high && high - low < last * 1.3);
                last = high - low;
            }
            sequence.add(0.1 + if sample % 2 == 0 { 0.02 } else { -0.02 });
        }
        assert!(last < 0.02, "{last}");
        sequence.add(f64::NAN);
        assert_eq!(sequence.samples(), 200);
    }

    /// How often the interval misses the true mean at any of 300 looks.
    fn misses(noise: impl Fn(&mut Dice) -> f64) -> f64 {
        let mut dice = Dice(11);
        let runs = 1_000;
        let missed = (0..runs).filter(|_| {
            let mut sequence = Sequence::default();
            (0..300).any(|_| {
                sequence.add(noise(&mut dice));
                sequence.interval().is_some_and(|(low, high)| low > 0.0 || high < 0.0)
            })
        });
        missed.count() as f64 / f64::from(runs)
    }

    #[test]
    fn looking_all_the_time_does_not_raise_the_rate_of_false_claims() {
        for scale in [0.01, 0.05, 0.2] {
            let rate = misses(|dice| scale * dice.normal());
            assert!(rate <= 0.05, "{rate}");
        }
        // Windows in which something else happened now and then.
        let rate = misses(|dice| {
            let scale = if dice.below(10) == 0 { 0.1 } else { 0.02 };
            scale * dice.normal()
        });
        assert!(rate <= 0.05, "{rate}");
    }
}
