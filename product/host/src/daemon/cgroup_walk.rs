//! The walk through a cgroup and those below it, for their processes. Any user may make thousands of
//! cgroups below one that is delegated, and all users share the daemon's time: so the walk has a budget,
//! which each cgroup takes from when it is found, the nearest ones first.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::admission::is_in_charge;

/// The most cgroups that are looked at for an ordinary user, each time that the daemon looks for new
/// processes in what has joined. What root has joined may hold so many of each other owner, ...
pub(crate) const MAX_CGROUPS_PER_USER: usize = 1024;
/// ... and so many of all other owners together, since one user may own thousands of user numbers
/// (`/etc/subuid`).
const MAX_CGROUPS_OF_OTHERS: usize = 4096;

/// How many cgroups may still be looked at.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
    /// For each owner, what was looked at. `None`: all count alike, no matter the owner.
    of_owners: Option<BTreeMap<u32, usize>>,
}

impl Budget {
    /// For what an ordinary user has joined.
    pub fn of_user() -> Self {
        Self { left: MAX_CGROUPS_PER_USER, of_owners: None }
    }

    /// For what root, or the user of the daemon, has joined: their own cgroups have no limit.
    pub fn in_charge() -> Self {
        Self { left: MAX_CGROUPS_OF_OTHERS, of_owners: Some(BTreeMap::new()) }
    }

    /// Whether the last cgroup that was allowed was looked at.
    pub fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// Whether cgroups of this owner are not counted.
    fn is_free(&self, owner: u32) -> bool {
        self.of_owners.is_some() && is_in_charge(owner)
    }

    /// Whether one more may be looked at, of this owner; that is in the budget then.
    fn take(&mut self, owner: u32) -> bool {
        if self.is_free(owner) {
            return true;
        }
        if let Some(of_owners) = &mut self.of_owners {
            let taken = of_owners.entry(owner).or_default();
            if *taken == MAX_CGROUPS_PER_USER {
                return false;
            }
            *taken += usize::from(self.left > 0);
        }
        let has_room = self.left > 0;
        self.left -= usize::from(has_room);
        has_room
    }
}

/// The process numbers in a cgroup and the cgroups below it, as far as the budget goes; none if it does
/// not exist.
pub(crate) fn in_cgroup(dir: &Path, budget: &mut Budget) -> Vec<i32> {
    let owner_of = |dir: &Path| std::fs::symlink_metadata(dir).map(|found| found.uid());
    let (mut found, mut next) = (Vec::new(), VecDeque::new());
    next.extend(owner_of(dir).ok().filter(|owner| budget.take(*owner)).map(|_| dir.to_owned()));
    while let Some(dir) = next.pop_front() {
        // Any number of them may be in a folder of a user: what is refused there is not even counted.
        let is_open_ended = !owner_of(&dir).is_ok_and(|owner| budget.is_free(owner));
        let list = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        found.extend(list.lines().filter_map(|line| line.parse::<i32>().ok()));
        let below = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        for below in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let path = below.path();
            let Ok(owner) = owner_of(&path) else { continue };
            if budget.take(owner) {
                next.push_back(path);
            } else if is_open_ended {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    fn with_room(left: usize) -> Budget {
        Budget { left, of_owners: None }
    }

    #[test]
    fn as_many_cgroups_are_looked_at_as_the_budget_allows() {
        let root = tempfile::tempdir().unwrap();
        for at in 1..=20 {
            let dir = root.path().join(at.to_string()).join("below");
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cgroup.procs"), format!("{at}\n")).unwrap();
        }
        std::fs::write(root.path().join("cgroup.procs"), "1000\n1001\n").unwrap();
        let look = |left: usize| {
            let mut budget = with_room(left);
            (in_cgroup(root.path(), &mut budget).len(), budget.left)
        };
        assert_eq!([look(0), look(1), look(41), look(50)], [(0, 0), (2, 0), (22, 0), (22, 9)]);
        // The nearest ones come first.
        assert_eq!([look(11), look(25)], [(2, 0), (6, 0)]);
        assert!(in_cgroup(Path::new("/no/such"), &mut with_room(9)).is_empty());
    }

    #[test]
    fn an_owner_takes_no_budget_of_another_one_and_all_together_have_a_limit() {
        let mut budget = Budget::in_charge();
        assert!((0..10 * MAX_CGROUPS_OF_OTHERS).all(|_| budget.take(0)), "root has no limit");
        let mut count =
            |owner| (0..2 * MAX_CGROUPS_PER_USER).filter(|_| budget.take(owner)).count();
        // No test runs as one of these.
        let [first, second, third] = [3_000_000_000, 3_000_000_001, 3_000_000_002];
        let most = MAX_CGROUPS_PER_USER;
        assert_eq!([count(first), count(second), count(first)], [most, most, 0]);
        let others: usize = (third..third + 100).map(count).sum();
        assert_eq!(others, MAX_CGROUPS_OF_OTHERS - 2 * MAX_CGROUPS_PER_USER);
        let owners = budget.of_owners.as_ref().unwrap();
        assert!(owners.values().sum::<usize>() == MAX_CGROUPS_OF_OTHERS && budget.is_used_up());
        assert!(budget.take(0));
    }

    /// A user's part of a slice that root has joined: the rest of the slice is looked at all the same.
    #[test]
    fn the_cgroups_of_a_user_below_those_of_root_have_a_limit() {
        if !nix::unistd::geteuid().is_root() {
            let test = "the_cgroups_of_a_user_below_those_of_root_have_a_limit";
            return evenkeel_skip::skip(test, "only root gives folders to other users");
        }
        let slice = tempfile::tempdir().unwrap();
        let make = |name: &str, owner: Option<u32>| {
            let dir = slice.path().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("cgroup.procs"), "7\n").unwrap();
            chown(&dir, owner, None).unwrap();
        };
        make("service", None);
        make("user", Some(4711));
        for at in 0..MAX_CGROUPS_PER_USER + 50 {
            make(&format!("user/{at}"), Some(4711));
        }
        make("service/part", None);
        let found = in_cgroup(slice.path(), &mut Budget::in_charge());
        assert_eq!(found.len(), 2 + MAX_CGROUPS_PER_USER);
        // Where all others have used theirs up, root's are looked at still.
        let mut used_up = Budget { left: 0, ..Budget::in_charge() };
        assert_eq!(in_cgroup(slice.path(), &mut used_up).len(), 2);
    }
}
