//! The programs that other processes balance with this daemon's figures: those of `evenkeel run` without
//! privileges. They are followed by cbinfo, and not balanced here.

use std::collections::BTreeMap;

use evenkeel_journal::TaskRef;

use crate::reading::Reading;

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
}

impl Observations {
    pub fn insert(&mut self, program: u32, observed: Observed) {
        self.programs.insert(program, observed);
    }

    pub fn remove(&mut self, program: u32) {
        self.programs.remove(&program);
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
        let is_of = |(program, observed): &(&u32, &Observed)| {
            observed.root.tgid == process && observed.root.is_alive() || has_process(program)
        };
        self.programs.iter().find(is_of).map(|(program, _)| *program)
    }

    /// Those that no process asks for any more.
    pub fn over(&self) -> Vec<u32> {
        let over = self.programs.iter().filter(|(_, observed)| !observed.asker.is_alive());
        over.map(|(program, _)| *program).collect()
    }
}
