//! One thread's bounds of one loop, in the terms of LLVM's OpenMP runtime: for the four types of its
//! `__kmpc_for_static_init_4`, `_4u`, `_8` and `_8u`, any step, and bounds at the ends of the type.
//!
//! The preload library calls this on the way into every loop: nothing here allocates, blocks or panics.

use crate::partition::divide;

/// A loop as the compiler gives it to the runtime, or a thread's part of it: the first value, the last
/// value (which belongs to it), the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loop<T: Counter> {
    /// The first value of the loop variable.
    pub lower: T,
    /// No value is beyond it.
    pub upper: T,
    /// What is added at each iteration; may be negative for unsigned counters, too.
    pub step: T::Step,
}

/// The bounds of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds<T> {
    /// Its first value.
    pub lower: T,
    /// Its last value; before `lower` if the thread has no iteration.
    pub upper: T,
    /// Whether it has the loop's last iteration (`lastprivate`).
    pub has_last: bool,
}

/// The type of a loop variable.
pub trait Counter: Copy + Ord {
    /// The signed type of the same width.
    type Step: Copy;
    /// The largest number of iterations that the runtime can count in this type.
    const MAX_COUNT: u64;
    /// The largest and the smallest value.
    const ENDS: (Self, Self);
    /// The value modulo 2^64; negative values wrap.
    fn to_bits(self) -> u64;
    /// The inverse of `to_bits`: the lower bits.
    fn from_bits(bits: u64) -> Self;
    /// The step's sign and absolute value, and its value modulo 2^64.
    fn step_parts(step: Self::Step) -> (bool, u64, u64);
}

macro_rules! counter {
    ($type:ty, $step:ty, $unsigned:ty) => {
        impl Counter for $type {
            type Step = $step;
            const MAX_COUNT: u64 = <$unsigned>::MAX as u64;
            const ENDS: (Self, Self) = (<$type>::MAX, <$type>::MIN);
            fn to_bits(self) -> u64 {
                self as u64
            }
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
            fn step_parts(step: $step) -> (bool, u64, u64) {
                (step > 0, step.unsigned_abs() as u64, step as u64)
            }
        }
    };
}

counter!(i32, i32, u32);
counter!(u32, i32, u32);
counter!(i64, i64, u64);
counter!(u64, i64, u64);

impl<T: Counter> Loop<T> {
    /// How many iterations the loop has. Nothing for what the runtime treats specially or cannot
    /// count: an empty loop, a step of 0, more iterations than fit the type.
    pub fn count_iterations(&self) -> Option<u64> {
        let (is_upward, stride, _) = T::step_parts(self.step);
        let (low, high) =
            if is_upward { (self.lower, self.upper) } else { (self.upper, self.lower) };
        if low > high {
            return None;
        }
        let distance = high.to_bits().wrapping_sub(low.to_bits());
        let count = distance.checked_div(stride)?.checked_add(1)?;
        (count <= T::MAX_COUNT).then_some(count)
    }

    /// The bounds of thread `thread` of a team with these weights; nothing where the loop is to be
    /// left to the runtime (see [`divide`]).
    pub fn bounds_of(
        &self,
        thread: usize,
        weights: impl Iterator<Item = u32> + Clone,
    ) -> Option<Bounds<T>> {
        let iterations = self.count_iterations()?;
        let part = divide(iterations, thread, weights)?;
        Some(self.bounds_from(iterations, part.first, part.count))
    }

    /// The bounds of `count` iterations from `first` on, of `iterations` in all.
    pub fn bounds_from(&self, iterations: u64, first: u64, count: u64) -> Bounds<T> {
        let Some(before_end) = count.checked_sub(1) else { return self.no_bounds() };
        let (_, _, step) = T::step_parts(self.step);
        let lower = self.lower.to_bits().wrapping_add(first.wrapping_mul(step));
        let upper = lower.wrapping_add(before_end.wrapping_mul(step));
        Bounds {
            lower: T::from_bits(lower),
            upper: T::from_bits(upper),
            has_last: first.checked_add(count) == Some(iterations),
        }
    }

    /// Bounds without an iteration: the runtime's own (one value beyond the upper bound), but at the
    /// end of the type one value less, where the runtime's would wrap around.
    fn no_bounds(&self) -> Bounds<T> {
        let (is_upward, _, _) = T::step_parts(self.step);
        let outward = if is_upward { 1 } else { u64::MAX };
        let end = if is_upward { T::ENDS.0 } else { T::ENDS.1 };
        let upper = self.upper.to_bits();
        let (lower, upper) = if self.upper == end {
            (upper, upper.wrapping_sub(outward))
        } else {
            (upper.wrapping_add(outward), upper)
        };
        Bounds { lower: T::from_bits(lower), upper: T::from_bits(upper), has_last: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<T: Counter>(
        lower: T,
        upper: T,
        step: T::Step,
        weights: &[u32],
    ) -> Option<Vec<Bounds<T>>> {
        let whole = Loop { lower, upper, step };
        (0..weights.len()).map(|thread| whole.bounds_of(thread, weights.iter().copied())).collect()
    }

    fn bounds<T>(lower: T, upper: T, has_last: bool) -> Bounds<T> {
        Bounds { lower, upper, has_last }
    }

    #[test]
    fn steps_and_signs() {
        let weights = [1, 3];
        assert_eq!(all(0, 7, 1, &weights), Some(vec![bounds(0, 1, false), bounds(2, 7, true)]));
        assert_eq!(
            all(10, -5, -2, &weights),
            Some(vec![bounds(10, 8, false), bounds(6, -4, true)])
        );
        assert_eq!(
            all(20_u32, 3, -4, &weights),
            Some(vec![bounds(20, 20, false), bounds(16, 4, true)])
        );
    }

    #[test]
    fn ends_of_the_types() {
        let weights = [1, 1, 2];
        let ends = all(i32::MIN, i32::MAX, i32::MAX, &weights).unwrap();
        let [first, second, third] = [i32::MIN, -1, i32::MAX - 1];
        let expected = [(first, false), (second, false), (third, true)];
        assert_eq!(ends, expected.map(|(value, last)| bounds(value, value, last)));
        let down = all(i64::MAX, i64::MIN, i64::MIN, &[1, 2]).unwrap();
        assert_eq!(down, [bounds(i64::MAX, i64::MAX, false), bounds(-1, -1, true)]);
    }

    #[test]
    fn a_thread_without_iterations_has_none_at_the_ends_of_the_type_too() {
        let weights = [1024, 1, 1];
        let up = all(u32::MAX - 1, u32::MAX, 1, &weights).unwrap();
        assert_eq!(up[0], bounds(u32::MAX - 1, u32::MAX, true));
        assert_eq!(up[1], bounds(u32::MAX, u32::MAX - 1, false));
        let down = all(1_u64, 0, -1, &weights).unwrap();
        assert_eq!(down[1], bounds(0, 1, false));
        assert_eq!(all(0, 1, 1, &weights).unwrap()[1], bounds(2, 1, false));
    }

    #[test]
    fn the_runtime_keeps_empty_endless_and_countless_loops() {
        let weights = [1, 2];
        assert_eq!(all(1, 0, 1, &weights), None);
        assert_eq!(all(0, 1, -1, &weights), None);
        assert_eq!(all(0, 100, 0, &weights), None);
        assert_eq!(all(i32::MIN, i32::MAX, 1, &weights), None);
        assert_eq!(all(0, u64::MAX, 1, &weights), None);
        assert_eq!(all(0_u32, 0, 1, &weights), None);
        assert_eq!(
            Loop { lower: 0, upper: u64::MAX - 1, step: 1 }.count_iterations(),
            Some(u64::MAX)
        );
    }
}
