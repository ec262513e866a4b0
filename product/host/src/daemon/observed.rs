//! The programs that other processes balance with this daemon's figures: those of `evenkeel run` without
//! privileges. They are followed by cbinfo, and not balanced here.

use std::collections::BTreeMap;

use evenkeel_journal::TaskRef;
use nix::errno::Errno;

use super::admission::{Refusal, refuse};
use crate::reading::Reading;

/// Most ranks that one program may have besides its first process.
const MAX_RANKS: usize = 512;

/// A program that is only observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Observed {
    /// The user that asked for its figures.
    pub uid: u32,
    /// The process that did: it is observed for as long as that process lives.
    pub asker: TaskRef,
    /// The program's first process.
    pub root: TaskRef,
}

/// The programs that are only observed, by number.
#[derive(Debug, Default)]
pub(crate) struct Observations {
    programs: BTreeMap<u32, Observed>,
    /// The first processes of the other ranks, where a program is a job.
    ranks: BTreeMap<u32, Vec<TaskRef>>,
}

impl Observations {
    pub fn insert(&mut self, program: u32, observed: Observed) {
        self.programs.insert(program, observed);
    }

    pub fn remove(&mut self, program: u32) {
        self.programs.remove(&program);
        self.ranks.remove(&program);
    }

    /// Whether a program may have another rank: a bound for processes that are observed in a loop.
    pub fn check_room(&mut self, program: u32) -> Result<(), Refusal> {
        let ranks = self.ranks.entry(program).or_default();
        if ranks.len() >= MAX_RANKS {
            ranks.retain(TaskRef::is_alive);
        }
        if ranks.len() < MAX_RANKS {
            return Ok(());
        }
        refuse(Errno::EAGAIN, format!("program {program} has {MAX_RANKS} ranks already"))
    }

    /// Notes another rank of a program.
    pub fn add_rank(&mut self, program: u32, rank: TaskRef) {
        self.ranks.entry(program).or_default().push(rank);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.programs.len()
    }

    /// How many a user has.
    pub fn count_of(&self, uid: u32) -> usize {
        self.programs.values().filter(|observed| observed.uid == uid).count()
    }

    /// The users that have one.
    pub fn users(&self) -> impl Iterator<Item = u32> {
        self.programs.values().map(|observed| observed.uid)
    }

    /// The program of this number.
    pub fn get(&self, program: u32) -> Option<&Observed> {
        self.programs.get(&program)
    }

    /// The number of a program that is observed just so.
    pub fn find(&self, wanted: &Observed) -> Option<u32> {
        let mut programs = self.programs.iter();
        programs.find(|(_, observed)| *observed == wanted).map(|(program, _)| *program)
    }

    /// The program that a process belongs to, by this reading or because it is the first process.
    pub fn program_of(&self, process: i32, reading: &Reading) -> Option<u32> {
        let has_process = |program: &u32| {
            let tasks = reading.tasks_of(*program).into_iter().flatten();
            tasks.map(|(_, task)| task.process as i32).any(|of| of == process)
        };
        let is_first = |root: &TaskRef| root.tgid == process && root.is_alive();
        let is_of = |(program, observed): &(&u32, &Observed)| {
            let mut ranks = self.ranks.get(program).into_iter().flatten();
            is_first(&observed.root) || ranks.any(is_first) || has_process(program)
        };
        self.programs.iter().find(is_of).map(|(program, _)| *program)
    }

    /// Those that no process asks for any more.
    pub fn over(&self) -> Vec<u32> {
        let over = self.programs.iter().filter(|(_, observed)| !observed.asker.is_alive());
        over.map(|(program, _)| *program).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_part_of_their_program_and_bounded() {
        let own = TaskRef::own_process().unwrap();
        let dead = TaskRef { tid: 4_194_305, tgid: 4_194_305, start_time_ticks: 1 };
        let mut observations = Observations::default();
        observations.insert(3, Observed { uid: 7, asker: own, root: dead });
        let of_own =
            |observations: &Observations| observations.program_of(own.tgid, &Reading::default());
        assert_eq!(of_own(&observations), None);
        observations.check_room(3).unwrap();
        observations.add_rank(3, own);
        assert_eq!(of_own(&observations), Some(3));
        for _ in 1..MAX_RANKS {
            observations.add_rank(3, dead);
        }
        // Those that have ended make room.
        observations.check_room(3).unwrap();
        for _ in 1..MAX_RANKS {
            observations.add_rank(3, own);
        }
        assert_eq!(observations.check_room(3).unwrap_err().errno, Errno::EAGAIN);
        observations.remove(3);
        assert_eq!(of_own(&observations), None);
    }
}
