//! The reason for no (more) moves that the summary of a run tells: of all intervals, not of the last
//! one, in which threads may have ended already.

use std::collections::BTreeMap;

use evenkeel_capability::Reason;

/// Reasons by their rule ([`Reason::rule`]): in how many intervals each held, and the latest of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reasons(BTreeMap<&'static str, (u64, Reason)>);

impl Reasons {
    /// Counts the reason of an interval.
    pub(crate) fn count(&mut self, reason: &Reason) {
        let (count, latest) = self.0.entry(reason.rule()).or_insert_with(|| (0, reason.clone()));
        *count += 1;
        latest.clone_from(reason);
    }

    /// The reason that held in most intervals, with its latest figures.
    pub(crate) fn most_frequent(&self) -> Option<Reason> {
        self.0.values().max_by_key(|(count, _)| *count).map(|(_, reason)| reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_that_held_in_most_intervals_is_told() {
        let balanced = |spread_ppm| Reason::Balanced { spread_ppm };
        let mut reasons = Reasons::default();
        assert_eq!(reasons.most_frequent(), None);
        for reason in [balanced(1), Reason::Bound, Reason::Bound, Reason::Bound, balanced(2)] {
            reasons.count(&reason);
        }
        assert_eq!(reasons.most_frequent(), Some(Reason::Bound));
        reasons.count(&balanced(3));
        reasons.count(&balanced(4));
        assert_eq!(reasons.most_frequent(), Some(balanced(4)), "with its latest figures");
    }
}
