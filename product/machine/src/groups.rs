//! Divides CPUs into disjoint groups (cores, cache domains) from sets that each CPU reports, so
//! that "shares with" is symmetrical and transitive even where firmware or a dump is not.

use std::collections::BTreeMap;

use crate::cpuset::CpuSet;

/// A division of CPUs into groups; each group is named by its lowest CPU.
pub(crate) struct Groups {
    /// Each CPU's parent, never larger than itself; the roots are the groups.
    parent: BTreeMap<u32, u32>,
}

impl Groups {
    /// Every CPU of `cpus` in a group of its own.
    pub(crate) fn alone(cpus: &CpuSet) -> Self {
        Self { parent: cpus.iter().map(|cpu| (cpu, cpu)).collect() }
    }

    /// Puts the groups of all CPUs of `set` together; CPUs that are not known are skipped.
    pub(crate) fn join(&mut self, set: &CpuSet) {
        let mut known = set.iter().filter(|cpu| self.parent.contains_key(cpu));
        let Some(mut lowest) = known.next().map(|cpu| self.of(cpu)) else { return };
        let others: Vec<u32> = known.collect();
        for cpu in others {
            let other = self.of(cpu);
            let (low, high) = (lowest.min(other), lowest.max(other));
            self.parent.insert(high, low);
            lowest = low;
        }
    }

    /// The group of a CPU: its lowest member.
    pub(crate) fn of(&self, cpu: u32) -> u32 {
        let mut cpu = cpu;
        while let Some(&parent) = self.parent.get(&cpu) {
            if parent == cpu {
                break;
            }
            cpu = parent;
        }
        cpu
    }

    /// The members of every group, by the group's lowest CPU.
    pub(crate) fn members(&self) -> BTreeMap<u32, CpuSet> {
        let mut members: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for &cpu in self.parent.keys() {
            members.entry(self.of(cpu)).or_default().insert(cpu);
        }
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_sets_become_one_group() {
        let mut groups = Groups::alone(&CpuSet::first(6));
        for set in ["2-3", "1,3", "4,99", "98"] {
            groups.join(&set.parse().unwrap());
        }
        let members: Vec<String> =
            groups.members().values().map(|members| members.to_string()).collect();
        assert_eq!(members, ["0", "1-3", "4", "5"]);
        assert_eq!(groups.of(3), 1);
    }
}
