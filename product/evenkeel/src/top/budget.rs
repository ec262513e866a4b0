//! How often a source of figures may be read, so that its cost stays below a share of one CPU, however
//! many CPUs, lines or threads there are. Pure.

use std::time::Duration;

/// A source is read no sooner than so many times its own cost later: 1/500 of a CPU for each.
const PAUSE: u32 = 500;

/// When a source may be read again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Budget {
    next: Duration,
    has_begun: bool,
}

impl Budget {
    /// Whether it may be read now.
    pub fn is_due(&self, now: Duration) -> bool {
        now >= self.next
    }

    /// It was read, which took this much CPU time. The first reading is free: only with the second one
    /// there are figures of an interval.
    pub fn charge(&mut self, now: Duration, cost: Duration) {
        if self.has_begun {
            self.next = now + cost.saturating_mul(PAUSE);
        }
        self.has_begun = true;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_a_reading_costs_it_takes_a_small_share(
            costs in prop::collection::vec(0u64..50_000, 1..200), interval_ms in 50u64..2000,
        ) {
            let interval = Duration::from_millis(interval_ms);
            let (mut budget, mut now, mut spent) = (Budget::default(), Duration::ZERO, Duration::ZERO);
            let mut last = Duration::ZERO;
            for cost in &costs {
                while !budget.is_due(now) {
                    now += interval;
                }
                last = Duration::from_micros(*cost);
                budget.charge(now, last);
                spent += last;
            }
            // But for the first reading, and the last one, after which no time has passed yet.
            let first = Duration::from_micros(costs[0]);
            prop_assert!(spent.saturating_sub(first + last) * PAUSE <= now);
        }
    }

    #[test]
    fn a_cheap_source_is_read_each_second() {
        let mut budget = Budget::default();
        budget.charge(Duration::from_secs(6), Duration::from_secs(1));
        assert!(budget.is_due(Duration::from_millis(6100)), "the first one is free");
        budget.charge(Duration::from_secs(7), Duration::from_millis(1));
        assert!(
            budget.is_due(Duration::from_secs(8)) && !budget.is_due(Duration::from_millis(7400))
        );
    }
}
