//! The ranks of one job: which are there, and which CPUs their launcher gave them.

use std::collections::BTreeMap;

use evenkeel_journal::TaskRef;
use evenkeel_machine::CpuSet;
use nix::errno::Errno;

use super::admission::{Refusal, refuse};
use crate::clock::{monotonic_ns, own_cpu_ns};

/// Most ranks that one job may have had: a bound for processes that join in a loop.
const MAX_RANKS: usize = 4096;

/// The ranks of one job.
#[derive(Debug)]
pub(crate) struct Ranks {
    /// Those that have not left, by process number.
    present: BTreeMap<i32, TaskRef>,
    /// All that have joined, with the CPUs that each could use when it first did.
    masks: BTreeMap<TaskRef, CpuSet>,
    pub(super) since_ns: u64,
    pub(super) startup_cpu_ns: u64,
}

impl Ranks {
    pub(super) fn new() -> Self {
        Self {
            present: BTreeMap::new(),
            masks: BTreeMap::new(),
            since_ns: monotonic_ns(),
            startup_cpu_ns: own_cpu_ns(),
        }
    }

    /// Whether this rank may join the job of this name.
    pub(super) fn check_room(&self, rank: &TaskRef, job: &str) -> Result<(), Refusal> {
        if self.masks.len() < MAX_RANKS || self.masks.contains_key(rank) {
            return Ok(());
        }
        let why = format!(
            "job {job} has had {MAX_RANKS} ranks here, and no job may have more: let {rank} join by \
             itself (evenkeel join {})",
            rank.tgid
        );
        refuse(Errno::EAGAIN, why)
    }

    pub(super) fn join(&mut self, rank: TaskRef, mask: CpuSet) {
        // A rank that joins again may be pinned by now.
        self.masks.entry(rank).or_insert(mask);
        self.present.insert(rank.tgid, rank);
    }

    /// Takes a rank out. Whether none is left. (A rank that was killed with its `run` has not left.)
    pub(super) fn leave(&mut self, pid: i32) -> bool {
        self.present.remove(&pid);
        self.present.retain(|_, rank| rank.is_alive());
        self.present.is_empty()
    }

    /// How many have joined.
    pub(super) fn count(&self) -> u32 {
        self.masks.len() as u32
    }

    /// Whether the launcher gave each rank a part of the CPUs that they have together.
    pub(super) fn are_bound(&self) -> bool {
        let all = self.masks.values().fold(CpuSet::new(), |all, mask| all.union(mask));
        self.masks.values().any(|mask| !mask.is_empty() && *mask != all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn ranks_with_other_cpus_than_each_other_are_bound() {
        let own = TaskRef::own_process().unwrap();
        for (masks, are_bound) in [
            (vec!["0"], false),
            (vec!["0-1", "0-1"], false),
            (vec!["0", "1"], true),
            (vec!["0-1", "2-3"], true),
            (vec!["0-3", "0-3", "0-1"], true),
        ] {
            let mut ranks = Ranks::new();
            for (tid, mask) in (1..).zip(&masks) {
                ranks.join(TaskRef { tid, ..own }, cpus(mask));
            }
            assert_eq!(ranks.are_bound(), are_bound, "{masks:?}");
        }
    }

    #[test]
    fn a_rank_that_joins_again_is_no_other_rank() {
        let own = TaskRef::own_process().unwrap();
        let mut ranks = Ranks::new();
        // Meanwhile it was pinned.
        ["0-1", "0", "1"].iter().for_each(|mask| ranks.join(own, cpus(mask)));
        assert_eq!((ranks.count(), ranks.are_bound()), (1, false));
    }

    #[test]
    fn a_job_that_has_had_too_many_ranks_takes_no_other() {
        let own = TaskRef::own_process().unwrap();
        let rank = |tid| TaskRef { tid, ..own };
        let mut ranks = Ranks::new();
        for tid in (1..).take(MAX_RANKS) {
            ranks.check_room(&rank(tid), "a").unwrap();
            ranks.join(rank(tid), cpus("0"));
        }
        let refusal = ranks.check_room(&rank(i32::MAX), "a").unwrap_err();
        assert!(refusal.why.starts_with("job a has had 4096 ranks here"), "{refusal}");
        ranks.check_room(&rank(1), "a").unwrap();
    }

    #[test]
    fn the_last_rank_ends_the_job_and_a_dead_one_does_not_hold_it_up() {
        let own = TaskRef::own_process().unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let other = TaskRef::of(sleeper.id() as i32).unwrap();
        let mut ranks = Ranks::new();
        ranks.join(own, cpus("0"));
        ranks.join(other, cpus("0"));
        assert!(!ranks.leave(own.tgid), "the sleeper is there");
        ranks.join(own, cpus("0"));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(ranks.leave(own.tgid), "the sleeper has ended");
    }
}
