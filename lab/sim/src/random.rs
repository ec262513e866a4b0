//! Random numbers and times that are the same on every machine.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

/// The random numbers of one task: each task has its own, so that what it does does not depend on other
/// tasks.
pub(crate) fn stream(seed: u64, task: usize) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed ^ (task as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// An exponentially distributed time with the mean `mean_ns`, at most twenty times that, from the bits
/// of a random number. (The logarithm of the crate libm is the same on every machine; the system's may
/// differ.)
pub(crate) fn about(mean_ns: u64, bits: u64) -> u64 {
    const MANTISSA: u32 = 53;
    const MOST: f64 = 20.0;
    let uniform = ((bits >> (u64::BITS - MANTISSA)) + 1) as f64 / (1u64 << MANTISSA) as f64;
    (mean_ns as f64 * (-libm::log(uniform)).min(MOST)) as u64
}

#[cfg(test)]
mod tests {
    use super::about;

    #[test]
    fn drawn_times_have_the_wanted_mean_and_bound() {
        let drawn: Vec<u64> = (0..1000u64).map(|i| about(1000, i * (u64::MAX / 1000))).collect();
        let mean = drawn.iter().sum::<u64>() / 1000;
        assert!((970..1030).contains(&mean), "{mean}");
        assert_eq!(drawn.iter().max(), Some(&20_000), "the bound is twenty times the mean");
        assert_eq!(about(1000, u64::MAX), 0);
    }
}
