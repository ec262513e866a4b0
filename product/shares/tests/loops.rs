//! Random loops of all four types, with any step, bounds, team and weights: against the loop as one
//! thread would run it, each iteration belongs to exactly one thread, in order, and the thread that is
//! told so has the last one.

use std::env;
use std::fmt::Debug;

use evenkeel_shares::bounds::{Bounds, Counter, Loop};
use evenkeel_shares::partition::MAX_WEIGHT;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const LOOPS: u64 = 1_000_000;

struct Draws(Xoshiro256PlusPlus);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit
    }

    /// Small numbers, and bits of any number, as often as each other; now and then the ends of types.
    fn bits(&mut self) -> u64 {
        match self.below(8) {
            0 => u64::MAX / 2 + self.below(3),
            1 => (1 << 31) + self.below(3) - 1,
            2 => u64::MAX - self.below(3),
            3..=5 => self.below(200).wrapping_sub(100),
            _ => self.0.next_u64() >> self.below(64),
        }
    }

    fn weights(&mut self) -> Vec<u32> {
        // Each thread looks at all weights, so large teams are seldom.
        let size = match self.below(512) {
            0 => 100 + self.below(300),
            1..=24 => 9 + self.below(40),
            _ => 2 + self.below(7),
        };
        let few = self.below(3) == 0;
        let most = if few { 3 } else { u64::from(MAX_WEIGHT) };
        (0..size).map(|_| 1 + self.below(most) as u32).collect()
    }
}

/// The number of iterations, counted in wider numbers.
fn iterations(lower: i128, upper: i128, step: i128) -> i128 {
    match step {
        0 => 0,
        1.. if lower <= upper => (upper - lower) / step + 1,
        ..0 if lower >= upper => (lower - upper) / -step + 1,
        _ => 0,
    }
}

/// Checks a loop; returns whether it was divided.
fn check<T>(draws: &mut Draws) -> bool
where
    T: Counter + Into<i128> + Debug,
    T::Step: Into<i128> + Debug,
    T: Drawn,
{
    let (lower, upper) = (T::from_bits(draws.bits()), T::from_bits(draws.bits()));
    let (lower, upper) = if draws.below(4) == 0 { (lower, upper) } else { T::sort(lower, upper) };
    let mut step = T::step_from(draws.bits());
    if draws.below(3) == 0 {
        step = T::step_from(1 + draws.below(3));
    }
    let (lower, upper) =
        if step.into() < 0 && draws.below(4) > 0 { (upper, lower) } else { (lower, upper) };
    let weights = draws.weights();
    let whole = Loop { lower, upper, step };
    let count = iterations(lower.into(), upper.into(), step.into());
    let bounds: Vec<Option<Bounds<T>>> =
        (0..weights.len()).map(|thread| whole.bounds_of(thread, weights.iter().copied())).collect();
    let equal = weights.iter().all(|weight| *weight == weights[0]);
    if equal || count < 2 || count > i128::from(T::MAX_COUNT) {
        assert!(bounds.iter().all(Option::is_none), "{whole:?} {weights:?}");
        return false;
    }
    let step: i128 = step.into();
    let mut next: i128 = lower.into();
    let mut lasts = 0;
    for (thread, part) in bounds.iter().enumerate() {
        assert!(part.is_some(), "{whole:?} {weights:?}: no bounds for {thread}");
        let Some(part) = part else { continue };
        let (low, high): (i128, i128) = (part.lower.into(), part.upper.into());
        let own = iterations(low, high, step);
        let last = lower.into() + (count - 1) * step;
        let reaches_last = own > 0 && low + (own - 1) * step == last;
        assert_eq!(part.has_last, reaches_last, "{whole:?} {weights:?} {thread}");
        lasts += i32::from(part.has_last);
        if own > 0 {
            assert_eq!(low, next, "{whole:?} {weights:?} {thread}");
            // The bound is the last iteration itself, so that `<=` and `!=` both end there.
            assert_eq!(low + (own - 1) * step, high, "{whole:?} {weights:?} {thread}");
            next = high + step;
        }
    }
    assert_eq!(next, lower.into() + count * step, "{whole:?} {weights:?}");
    assert_eq!(lasts, 1, "{whole:?} {weights:?}");
    true
}

trait Drawn: Counter {
    fn step_from(bits: u64) -> Self::Step;
    fn sort(a: Self, b: Self) -> (Self, Self) {
        (a.min(b), a.max(b))
    }
}

macro_rules! drawn {
    ($($type:ty, $step:ty);*) => {$(
        impl Drawn for $type {
            fn step_from(bits: u64) -> $step {
                bits as $step
            }
        }
    )*};
}

drawn!(i32, i32; u32, i32; i64, i64; u64, i64);

#[test]
fn each_iteration_of_a_million_random_loops_is_executed_once_and_in_order() {
    let seed = env::var("EVENKEEL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut draws = Draws(Xoshiro256PlusPlus::seed_from_u64(seed));
    let divided = (0..LOOPS)
        .filter(|number| match number % 4 {
            0 => check::<i32>(&mut draws),
            1 => check::<u32>(&mut draws),
            2 => check::<i64>(&mut draws),
            _ => check::<u64>(&mut draws),
        })
        .count() as u64;
    // The test would say nothing if most loops were left to the runtime.
    assert!(divided > LOOPS / 2, "{divided} of {LOOPS} loops were divided");
}
