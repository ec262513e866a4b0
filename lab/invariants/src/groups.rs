//! The tree of cgroups, and what a task weighs in it. A cgroup competes in its parent like one task of
//! the cgroup's weight, while a task of it is runnable. Its runnable tasks and active child groups share
//! what it gets.

use std::collections::BTreeMap;

/// The number of the root. Its tasks and child groups share the machine.
const ROOT: u64 = 0;
/// Fractions of a weight, so that shares of shares stay exact.
const FRACTION: u32 = 32;

#[derive(Debug, Clone, Copy, Default)]
struct Group {
    /// The parent's number, and the weight in it; none: no event has named the group.
    place: Option<(u64, u64)>,
    /// The weights of its runnable tasks and active child groups.
    active: u64,
}

/// All cgroups that events have named, and those of tasks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups(BTreeMap<u64, Group>);

impl Groups {
    /// From now on a group has this parent, and this weight in it.
    pub fn place(&mut self, group: u64, parent: u64, weight: u32) {
        let weight = u64::from(weight);
        let of = self.0.entry(group).or_default();
        let (before, is_active) = (of.place.replace((parent, weight)), of.active > 0);
        if is_active {
            if let Some((parent, weight)) = before {
                self.count(parent, weight, false);
            }
            self.count(parent, weight, true);
        }
    }

    /// A task or a child group of this weight becomes active in a group, or ceases to be.
    pub fn count(&mut self, group: u64, weight: u64, comes: bool) {
        let (mut at, mut weight) = (group, weight);
        // What is active in the root does not matter: nothing is above it.
        while at != ROOT {
            let of = self.0.entry(at).or_default();
            let before = of.active;
            of.active = if comes { before + weight } else { before.saturating_sub(weight) };
            let is_news = (before == 0) != (of.active == 0);
            match of.place {
                Some(place) if is_news => (at, weight) = place,
                _ => break,
            }
        }
    }

    /// What a task of this weight in a group weighs beside all tasks of the machine; none: its group's
    /// place is not known.
    pub fn weigh(&self, weight: u32, group: u64) -> Option<u64> {
        let (mut weight, mut at) = (u128::from(weight) << FRACTION, group);
        while at != ROOT {
            let of = self.0.get(&at)?;
            let (parent, share) = of.place?;
            weight = weight * u128::from(share) / u128::from(of.active.max(1));
            at = parent;
        }
        u64::try_from(weight).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NICE_0: u32 = 1024;

    /// Group 1 with child groups 2 and 3, of weights 1 : 3.
    fn nested() -> Groups {
        let mut groups = Groups::default();
        groups.place(1, ROOT, NICE_0);
        groups.place(2, 1, NICE_0);
        groups.place(3, 1, 3 * NICE_0);
        groups
    }

    fn weight(groups: &Groups, group: u64) -> Option<u64> {
        groups.weigh(NICE_0, group).map(|weight| weight >> (FRACTION - 10))
    }

    #[test]
    fn active_groups_share_what_their_parent_gets() {
        let mut groups = nested();
        let whole = u64::from(NICE_0) << 10;
        groups.count(2, NICE_0.into(), true);
        assert_eq!(weight(&groups, 2), Some(whole), "alone");
        groups.count(3, NICE_0.into(), true);
        groups.count(3, NICE_0.into(), true);
        assert_eq!(
            (weight(&groups, 2), weight(&groups, 3)),
            (Some(whole / 4), Some(whole * 3 / 8))
        );
        groups.place(3, 1, NICE_0);
        assert_eq!((weight(&groups, 2), weight(&groups, 3)), (Some(whole / 2), Some(whole / 4)));
        groups.count(2, NICE_0.into(), false);
        assert_eq!(weight(&groups, 3), Some(whole / 2));
        assert_eq!(weight(&groups, ROOT), Some(whole));
    }

    #[test]
    fn deep_groups_weigh_as_their_outermost_one() {
        let mut groups = Groups::default();
        for group in 1..=60 {
            groups.place(group, group - 1, 100 * NICE_0);
        }
        groups.count(60, NICE_0.into(), true);
        assert_eq!(weight(&groups, 60), Some(u64::from(100 * NICE_0) << 10));
    }

    #[test]
    fn a_group_that_no_event_has_named_is_not_weighed() {
        let mut groups = nested();
        groups.count(9, NICE_0.into(), true);
        assert_eq!(weight(&groups, 9), None);
        groups.place(8, 9, NICE_0);
        assert_eq!(weight(&groups, 8), None, "the parent's place is not known");
        groups.place(9, ROOT, NICE_0);
        assert_eq!(weight(&groups, 9), Some(u64::from(NICE_0) << 10));
    }
}
