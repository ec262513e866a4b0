//! Which processes requests have set: the configuration and the helper leave these alone, also if the
//! request has switched them off. Each is looked up in /proc once a second, so they are bounded by user.

use std::collections::BTreeMap;

use super::quota::MAX_PER_USER;
use super::watch::Known;

/// The last request that has set a process.
struct Asked {
    /// The user other than root that asked.
    user: Option<u32>,
    /// How many requests there were until then.
    order: u64,
}

/// The processes that requests have set.
#[derive(Default)]
pub(super) struct Given {
    asked: BTreeMap<Known, Asked>,
    requests: u64,
}

impl Given {
    /// Remembers a process that `user` has set; `None`: root. Of a user, only as many are remembered as
    /// may aggregate at a time. Beyond that, a process that does not aggregate is forgotten, the first
    /// that was set: the configuration or the helper may set it again. The request is not refused for
    /// that, because the quota is of processes that aggregate.
    pub fn remember(
        &mut self,
        process: Known,
        user: Option<u32>,
        aggregates: impl Fn(Known) -> bool,
    ) {
        self.requests += 1;
        self.asked.insert(process, Asked { user, order: self.requests });
        let Some(user) = user else { return };
        if self.of_user(user).count() <= MAX_PER_USER {
            return;
        }
        let first = self
            .of_user(user)
            .min_by_key(|(process, asked)| (aggregates(**process), asked.order))
            .map(|(process, _)| *process);
        if let Some(first) = first {
            self.asked.remove(&first);
        }
    }

    fn of_user(&self, user: u32) -> impl Iterator<Item = (&Known, &Asked)> {
        self.asked.iter().filter(move |(_, asked)| asked.user == Some(user))
    }

    /// Whether a request has set this process.
    pub fn contains(&self, process: &Known) -> bool {
        self.asked.contains_key(process)
    }

    /// All that are remembered.
    pub fn processes(&self) -> impl Iterator<Item = Known> {
        self.asked.keys().copied()
    }

    /// Forgets those for which this is false.
    pub fn retain(&mut self, stays: impl Fn(Known) -> bool) {
        self.asked.retain(|process, _| stays(*process));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = MAX_PER_USER as u32;

    #[test]
    fn the_latest_of_each_user_are_remembered_and_all_of_root() {
        let mut given = Given::default();
        for pid in 1..=3 * MOST {
            for (start, user) in [(1, Some(7)), (2, Some(8)), (3, None)] {
                given.remember((pid, start), user, |_| false);
            }
        }
        let of = |start: u64| {
            let processes = given.processes().filter(|process| process.1 == start);
            processes.map(|process| process.0).collect::<Vec<u32>>()
        };
        let latest: Vec<u32> = (2 * MOST + 1..=3 * MOST).collect();
        assert_eq!((of(1), of(2)), (latest.clone(), latest));
        assert_eq!(of(3).len(), 3 * MAX_PER_USER);
    }

    #[test]
    fn what_aggregates_is_remembered_before_what_was_switched_off() {
        let mut given = Given::default();
        (1..=MOST).for_each(|pid| given.remember((pid, 1), Some(7), |_| true));
        given.remember((MOST + 1, 1), Some(7), |process| process.0 != 5);
        assert!(!given.contains(&(5, 1)));
        assert!([1, MOST, MOST + 1].iter().all(|pid| given.contains(&(*pid, 1))));
        // All others aggregate.
        given.remember((MOST + 2, 1), Some(7), |process| process.0 != MOST + 2);
        assert!(!given.contains(&(MOST + 2, 1)) && given.contains(&(1, 1)));
    }

    #[test]
    fn a_process_that_is_set_again_takes_no_more_room() {
        let mut given = Given::default();
        (1..=MOST).for_each(|pid| given.remember((pid, 1), Some(7), |_| false));
        given.remember((1, 1), Some(7), |_| false);
        assert_eq!(given.processes().count(), MAX_PER_USER);
        // Root's word is the last one now.
        given.remember((1, 1), None, |_| false);
        given.remember((MOST + 1, 1), Some(7), |_| false);
        assert_eq!(given.processes().count(), MAX_PER_USER + 1);
    }
}
