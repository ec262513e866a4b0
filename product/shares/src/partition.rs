//! Divides the iterations of one loop among the threads of a team, in proportion to their weights.
//! Pure: every thread of the team computes its own part from the same figures, and the parts fit
//! together.
//!
//! Each thread gets one run of consecutive iterations, in the order of the threads, as OpenMP's static
//! schedule has it. The counts minimise the time of the slowest thread, `max(count / weight)`:
//! Jefferson's method. That matters where iterations are few: of 12 iterations at weights 0.6 : 1.0
//! each thread must get a whole number. Only the number of iterations and the weights count, so two
//! loops with as many iterations are divided alike, as OpenMP demands of loops in one region.
//!
//! The preload library calls this inside of foreign programs, on the way into every loop: nothing here
//! allocates, blocks or panics.

/// The largest weight of a thread: the capability of the most capable CPU.
pub const MAX_WEIGHT: u32 = 1024;

/// Loops of larger teams are not divided.
pub const MAX_TEAM: usize = 512;

/// Binary digits after the point of `Level`.
const FRACTION_BITS: u32 = 20;

/// How many iterations a thread of weight 1 gets, in units of 2^-20. At most 2^20 here, so times a
/// weight it fits 32 bits.
type Level = u32;

/// The iterations of one thread: `count` of them from `first` on, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The first iteration.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// The part of thread `thread` of a team with these weights. Nothing where the loop is to be left to
/// the runtime: equal weights, a weight out of `1..=MAX_WEIGHT`, a team of one or of more than
/// `MAX_TEAM`, fewer than two iterations. All threads of a team come to the same conclusion.
pub fn divide(
    iterations: u64,
    thread: usize,
    weights: impl Iterator<Item = u32> + Clone,
) -> Option<Part> {
    let (size, total) = sum_unequal(weights.clone())?;
    if iterations < 2 || thread >= size {
        return None;
    }
    let total_wide = u64::from(total);
    // Whole multiples of the weights first: what is left is less than one iteration per unit of weight.
    let rounds = iterations.checked_div(total_wide)?;
    let rest = iterations.checked_rem(total_wide)? as u32;
    let level = find_level(rest, size as u32, total, weights.clone());
    let given = count_all_at(weights.clone(), level);
    // Threads with the same claim to the next iteration get it in their order.
    let mut left = rest.saturating_sub(given);
    let mut before = 0_u64;
    for (index, weight) in weights.enumerate() {
        let mut extra = count_at(weight, level);
        if left > 0 && count_at(weight, level.saturating_add(1)) > extra {
            extra = extra.saturating_add(1);
            left = left.saturating_sub(1);
        }
        let count = rounds.saturating_mul(u64::from(weight)).saturating_add(u64::from(extra));
        if index == thread {
            return Some(Part { first: before, count });
        }
        before = before.saturating_add(count);
    }
    None
}

/// The number of weights and their sum; nothing where they are equal or one is not allowed.
fn sum_unequal(weights: impl Iterator<Item = u32>) -> Option<(usize, u32)> {
    let (mut size, mut total) = (0_usize, 0_u32);
    let (mut least, mut most) = (u32::MAX, 0);
    for weight in weights {
        if !(1..=MAX_WEIGHT).contains(&weight) || size >= MAX_TEAM {
            return None;
        }
        size = size.saturating_add(1);
        total = total.saturating_add(weight);
        least = least.min(weight);
        most = most.max(weight);
    }
    (size > 1 && least < most).then_some((size, total))
}

/// The largest level at which the threads together get no more than `rest` iterations.
fn find_level(
    rest: u32,
    size: u32,
    total: u32,
    weights: impl Iterator<Item = u32> + Clone,
) -> Level {
    let one = 1_u64 << FRACTION_BITS;
    let at = |iterations: u32| (u64::from(iterations) << FRACTION_BITS).checked_div(total.into());
    // Without rounding, `low` would give `rest`: with it, not more. Rounding takes less than one
    // iteration of each thread, so `high` gives more. At `one` it is all of `total`.
    let mut low = at(rest).unwrap_or(0);
    let mut high = at(rest.saturating_add(size)).unwrap_or(one).saturating_add(2).min(one);
    while low.saturating_add(1) < high {
        let middle = low.midpoint(high);
        if count_all_at(weights.clone(), middle as Level) <= rest {
            low = middle;
        } else {
            high = middle;
        }
    }
    low as Level
}

/// How many iterations a thread gets at a level.
fn count_at(weight: u32, level: Level) -> u32 {
    weight.wrapping_mul(level) >> FRACTION_BITS
}

/// How many iterations all threads together get at a level.
fn count_all_at(weights: impl Iterator<Item = u32>, level: Level) -> u32 {
    weights.fold(0, |sum, weight| sum.wrapping_add(count_at(weight, level)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(iterations: u64, weights: &[u32]) -> Option<Vec<u64>> {
        (0..weights.len())
            .map(|thread| Some(divide(iterations, thread, weights.iter().copied())?.count))
            .collect()
    }

    #[test]
    fn few_iterations_are_divided_for_the_slowest_thread() {
        // 4 : 8 would take 8 units, 5 : 7 takes 8.3, 6 : 6 takes 10.
        assert_eq!(counts(12, &[614, 1024]), Some(vec![4, 8]));
        assert_eq!(counts(2, &[614, 1024]), Some(vec![1, 1]));
        assert_eq!(counts(2, &[300, 1024]), Some(vec![0, 2]));
        assert_eq!(counts(7, &[512, 1024, 512, 1024]), Some(vec![1, 3, 1, 2]));
    }

    #[test]
    fn many_iterations_are_divided_in_proportion() {
        assert_eq!(counts(1_638_000, &[614, 1024]), Some(vec![614_000, 1_024_000]));
        let huge = counts(u64::MAX, &[1, 1024]).unwrap();
        assert_eq!(huge.iter().copied().reduce(u64::wrapping_add), Some(u64::MAX));
        assert_eq!(huge[0], u64::MAX / 1025);
    }

    #[test]
    fn the_runtime_keeps_what_is_equal_or_odd() {
        for weights in [&[][..], &[7], &[5, 5, 5], &[0, 5], &[5, 1025], &[u32::MAX, 1]] {
            assert_eq!(divide(100, 0, weights.iter().copied()), None, "{weights:?}");
        }
        assert_eq!(divide(1, 0, [1, 2].into_iter()), None);
        assert_eq!(divide(0, 0, [1, 2].into_iter()), None);
        assert_eq!(divide(100, 2, [1, 2].into_iter()), None);
        let weights = |size: usize| (0..size).map(|thread| 1 + (thread as u32 & 1));
        assert_eq!(divide(100, 0, weights(MAX_TEAM + 1)), None);
        assert!(divide(100, 0, weights(MAX_TEAM)).is_some());
    }

    #[test]
    fn the_largest_team_of_the_largest_weights_does_not_overflow() {
        let weights = |thread: usize| if thread == 0 { 1 } else { MAX_WEIGHT };
        for iterations in [2, 511, 512, 523_264, 523_265, 523_263, u64::MAX] {
            let sum = (0..MAX_TEAM)
                .map(|thread| divide(iterations, thread, (0..MAX_TEAM).map(weights)).unwrap())
                .fold(0, |first, part| {
                    assert_eq!(part.first, first);
                    first + part.count
                });
            assert_eq!(sum, iterations);
        }
    }

    /// Iterations handed out one by one, each to the thread that would end first with it.
    fn one_by_one(iterations: u64, weights: &[u32]) -> Vec<u64> {
        let mut counts = vec![0_u64; weights.len()];
        for _ in 0..iterations {
            let earliest = (0..weights.len())
                .min_by(|&a, &b| {
                    let end_a = (counts[a] + 1) * u64::from(weights[b]);
                    let end_b = (counts[b] + 1) * u64::from(weights[a]);
                    end_a.cmp(&end_b)
                })
                .unwrap();
            counts[earliest] += 1;
        }
        counts
    }

    /// The time of the slowest thread.
    fn slowest(counts: &[u64], weights: &[u32]) -> f64 {
        let times =
            counts.iter().zip(weights).map(|(count, weight)| *count as f64 / f64::from(*weight));
        times.fold(0.0, f64::max)
    }

    proptest! {
        #[test]
        fn the_parts_are_consecutive_and_whole(
            iterations in prop_oneof![2_u64..5000, any::<u64>().prop_map(|it| it.max(2))],
            weights in prop::collection::vec(1_u32..=MAX_WEIGHT, 2..80),
        ) {
            let parts: Vec<_> = (0..weights.len())
                .filter_map(|thread| divide(iterations, thread, weights.iter().copied()))
                .collect();
            let equal = weights.iter().all(|weight| *weight == weights[0]);
            prop_assert_eq!(parts.len(), if equal { 0 } else { weights.len() });
            if !equal {
                let end = parts.iter().fold(0, |first, part| {
                    assert_eq!(part.first, first);
                    first + part.count
                });
                prop_assert_eq!(end, iterations);
            }
        }

        #[test]
        fn no_division_is_faster(
            iterations in 2_u64..600,
            weights in prop::collection::vec(1_u32..=MAX_WEIGHT, 2..9),
        ) {
            prop_assume!(weights.iter().any(|weight| *weight != weights[0]));
            let ours = slowest(&counts(iterations, &weights).unwrap(), &weights);
            let best = slowest(&one_by_one(iterations, &weights), &weights);
            // The level is exact to 2^-20 of an iteration per unit of weight.
            prop_assert!(ours <= best + 2e-6, "{} is slower than {}", ours, best);
        }
    }
}
