//! How long the slaves of a group run the address space of their master: the purpose of groups in paper
//! 003. It is measured under every scheduler, whether it aggregates or not.

use std::collections::BTreeMap;

/// A group of CPUs.
#[derive(Debug)]
struct Group {
    master: usize,
    slaves: Vec<usize>,
    /// The number of busy slaves, and of those that run the master's address space.
    busy: u64,
    same: u64,
    /// The time up to which the sums are counted.
    since_ns: u64,
}

/// All groups, and the sums of their times.
#[derive(Debug, Default)]
pub struct CoScheduling {
    groups: Vec<Group>,
    /// The group of each CPU, if it has one.
    group_of: Vec<Option<usize>>,
    /// The address space that runs on each CPU.
    spaces: Vec<Option<u32>>,
    /// Time that slaves were busy while their master was.
    pub together_ns: u64,
    /// Of that, the time in which they ran the master's address space.
    pub same_ns: u64,
}

impl CoScheduling {
    /// Groups by the roles of CPUs: role 2k is the master of group k, 2k + 1 a slave of it.
    pub fn new(roles: &BTreeMap<u32, u16>) -> Self {
        let size = roles.keys().last().map_or(0, |last| *last as usize + 1);
        let mut coscheduling =
            Self { group_of: vec![None; size], spaces: vec![None; size], ..Self::default() };
        for (master, role) in roles.iter().filter(|(_, role)| *role % 2 == 0) {
            let is_slave = |(_, other): &(&u32, &u16)| **other == role + 1;
            let slaves = roles.iter().filter(is_slave).map(|(cpu, _)| *cpu as usize);
            let (master, slaves) = (*master as usize, slaves.collect());
            let group = Group { master, slaves, busy: 0, same: 0, since_ns: 0 };
            for cpu in group.slaves.iter().chain([&group.master]) {
                coscheduling.group_of[*cpu] = Some(coscheduling.groups.len());
            }
            coscheduling.groups.push(group);
        }
        coscheduling
    }

    /// From now on a task of this address space runs on the CPU, or none.
    pub fn change(&mut self, now_ns: u64, cpu: u32, space: Option<u32>) {
        let cpu = cpu as usize;
        let Some(group) = self.group_of.get(cpu).copied().flatten() else { return };
        if self.spaces[cpu] == space {
            return;
        }
        self.count(group, now_ns);
        let before = std::mem::replace(&mut self.spaces[cpu], space);
        let group = &mut self.groups[group];
        if group.master == cpu {
            let runs_it = |slave: &&usize| space.is_some() && self.spaces[**slave] == space;
            group.same = group.slaves.iter().filter(runs_it).count() as u64;
            return;
        }
        let master = self.spaces[group.master];
        let is_same = |space: Option<u32>| u64::from(space.is_some() && space == master);
        group.busy = group.busy + u64::from(space.is_some()) - u64::from(before.is_some());
        group.same = group.same + is_same(space) - is_same(before);
    }

    /// Counts the time up to the end.
    pub fn end(&mut self, now_ns: u64) {
        (0..self.groups.len()).for_each(|group| self.count(group, now_ns));
    }

    fn count(&mut self, group: usize, now_ns: u64) {
        let group = &mut self.groups[group];
        let passed = now_ns - group.since_ns;
        group.since_ns = now_ns;
        if self.spaces[group.master].is_some() {
            self.together_ns += passed * group.busy;
            self.same_ns += passed * group.same;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slaves_are_compared_with_the_master_of_their_group() {
        let mut coscheduling = CoScheduling::new(&[(0, 0), (1, 1), (2, 2), (3, 3)].into());
        for (cpu, space) in [(0, 7), (1, 7), (2, 8), (3, 7)] {
            coscheduling.change(0, cpu, Some(space));
        }
        coscheduling.change(10, 3, Some(8));
        coscheduling.change(15, 0, None);
        coscheduling.end(20);
        // Group 0: both busy for 15, always with the same space; group 1: for 20, for the last 10 of
        // these.
        assert_eq!((coscheduling.together_ns, coscheduling.same_ns), (15 + 20, 15 + 10));
    }

    #[test]
    fn cpus_without_a_role_do_not_count() {
        let mut coscheduling = CoScheduling::new(&[(0, 0)].into());
        coscheduling.change(0, 0, Some(1));
        coscheduling.change(0, 5, Some(1));
        coscheduling.end(10);
        assert_eq!(coscheduling.together_ns, 0);
    }
}
