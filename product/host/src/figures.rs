//! The figures that a daemon hands to a `run` without privileges: where the time of each CPU went, and
//! what the tasks of the requesting user got. Both ends of the request `figures` use these values.
//!
//! Of a program, a user sees the tasks of the processes that belong to it when it asks. A set-user-id
//! child belongs to another user and is left out, and so is whatever process has got the number of one
//! that ended meanwhile.

use std::collections::BTreeMap;

use evenkeel_capability::TaskId;
use evenkeel_control::{Lock, Peer, read_in_time};
use procfs::process::Process;
use serde::{Deserialize, Serialize};

use crate::reading::{CpuReading, ProgramReading, Reading, TaskReading};

/// The answer to the request `figures`: counters, of which only differences mean something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub at_ns: u64,
    /// By CPU number.
    pub cpus: BTreeMap<u32, CpuFigures>,
    /// The user's tasks in the program.
    pub tasks: Vec<TaskFigures>,
}

/// The figures of a CPU. The time of all programs but the one that is asked for is foreign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuFigures {
    /// The speed that weights [`TaskReading::received_ns`], 1..=1024.
    pub speed: u32,
    /// Its counters.
    pub reading: CpuReading,
}

/// The figures of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFigures {
    /// The task.
    pub task: TaskId,
    /// Its counters.
    pub reading: TaskReading,
}

/// To which user a process belongs, and when it was started, in clock ticks since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub uid: u32,
    pub start: u64,
}

impl Owner {
    /// The owner of the process that has this number now; `None`: there is none, or it cannot be read in
    /// time, so its tasks are left out of this answer. The user is the effective one, and root where the
    /// process may not be traced by its user: so the kernel decides for the files in /proc/PID.
    pub fn of(process: u32) -> Option<Self> {
        // Both are read through one descriptor, so they are of one process.
        let pid = i32::try_from(process).ok()?;
        let process = Process::new(pid).ok()?;
        let uid = process.uid().ok()?;
        let start = read_in_time(Lock::Exec, pid, move || process.stat()).ok()?.ok()?.starttime;
        Some(Self { uid, start })
    }
}

impl Figures {
    /// What `peer` may see of `program` in a reading. `owner_of` is asked after the reading was taken,
    /// once for each process.
    pub(crate) fn for_peer(
        reading: &Reading,
        speed_of: impl Fn(u32) -> u32,
        program: Option<u32>,
        peer: &Peer,
        mut owner_of: impl FnMut(u32) -> Option<Owner>,
    ) -> Self {
        let nothing = ProgramReading::default();
        let own = program.and_then(|program| reading.programs.get(&program)).unwrap_or(&nothing);
        let cpus = reading.cpus.iter().map(|(cpu, reading)| {
            let used_ns = own.used_ns.get(cpu).copied().unwrap_or(0);
            let others_ns = reading.observed_ns.saturating_sub(used_ns);
            let foreign_ns = reading.foreign_ns + others_ns;
            let reading = CpuReading { foreign_ns, observed_ns: 0, ..*reading };
            (*cpu, CpuFigures { speed: speed_of(*cpu), reading })
        });
        let mut owners: BTreeMap<u32, Option<Owner>> = BTreeMap::new();
        let mut is_seen = |task: TaskId, process: u32| {
            let owner = owners.entry(process).or_insert_with(|| owner_of(process));
            // No process is younger than its threads: one that is has got its number since the reading.
            owner.is_some_and(|owner| owner.start <= task.start && peer.may_steer(owner.uid))
        };
        let tasks = own.tasks.iter().filter(|(task, reading)| is_seen(**task, reading.process));
        Self {
            at_ns: reading.at_ns,
            tasks: tasks
                .map(|(task, reading)| TaskFigures { task: *task, reading: *reading })
                .collect(),
            cpus: cpus.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: u32 = 3;
    const OTHER_PROGRAM: u32 = 4;

    fn task(tid: u32, start: u64, process: u32) -> (TaskId, TaskReading) {
        let reading = TaskReading { process, run_ns: u64::from(tid), ..TaskReading::default() };
        (TaskId { tid, start }, reading)
    }

    fn reading() -> Reading {
        let cpu = CpuReading { foreign_ns: 100, observed_ns: 70, ..CpuReading::default() };
        let own = ProgramReading {
            tasks: [task(10, 500, 10), task(11, 510, 10), task(20, 520, 20), task(30, 530, 30)]
                .into(),
            used_ns: [(0, 50)].into(),
            ..ProgramReading::default()
        };
        let other =
            ProgramReading { tasks: [task(40, 100, 40)].into(), ..ProgramReading::default() };
        Reading {
            at_ns: 9,
            cpus: [(0, cpu)].into(),
            programs: [(PROGRAM, own), (OTHER_PROGRAM, other)].into(),
        }
    }

    const USER: Peer = Peer { uid: 7, pid: 0 };
    const ROOT: Peer = Peer { uid: 0, pid: 0 };

    /// The threads that `peer` sees.
    fn seen(peer: &Peer, owners: &[(u32, u32, u64)]) -> Vec<u32> {
        let owner_of = |process| {
            let found = owners.iter().find(|(pid, _, _)| *pid == process);
            found.map(|(_, uid, start)| Owner { uid: *uid, start: *start })
        };
        let figures = Figures::for_peer(&reading(), |_| 512, Some(PROGRAM), peer, owner_of);
        figures.tasks.iter().map(|figures| figures.task.tid).collect()
    }

    #[test]
    fn a_user_sees_its_own_tasks_of_its_own_program() {
        assert_eq!(seen(&USER, &[(10, 7, 500), (20, 7, 520), (30, 7, 530)]), [10, 11, 20, 30]);
        // Process 20 is set-user-id.
        assert_eq!(seen(&USER, &[(10, 7, 500), (20, 0, 520), (30, 7, 530)]), [10, 11, 30]);
        assert_eq!(seen(&ROOT, &[(10, 7, 500), (20, 0, 520), (30, 7, 530)]), [10, 11, 20, 30]);
    }

    #[test]
    fn a_process_that_ended_since_the_reading_is_not_shown_by_the_next_one_with_its_number() {
        // Process 30 has ended. Number 20 belongs to a process that the user started after the reading.
        assert_eq!(seen(&USER, &[(10, 7, 500), (20, 7, 521)]), [10, 11]);
        assert_eq!(seen(&ROOT, &[(10, 7, 500), (20, 7, 521)]), [10, 11]);
    }

    #[test]
    fn time_of_all_other_programs_is_foreign() {
        let figures =
            |program| Figures::for_peer(&reading(), |_| 512, program, &USER, |_| None).cpus[&0];
        // Without a program all that cbinfo follows is; with one, its own 50 ns are not.
        assert_eq!(figures(None).reading.foreign_ns, 170);
        assert_eq!(figures(Some(PROGRAM)).reading.foreign_ns, 120);
        assert_eq!((figures(None).speed, figures(None).reading.observed_ns), (512, 0));
    }

    #[test]
    fn this_process_belongs_to_its_user() {
        let owner = Owner::of(std::process::id()).unwrap();
        assert_eq!(owner.uid, nix::unistd::geteuid().as_raw());
        let own = evenkeel_journal::TaskRef::own_process().unwrap();
        assert_eq!(owner.start, own.start_time_ticks);
        assert_eq!(Owner::of(u32::MAX), None);
    }
}
