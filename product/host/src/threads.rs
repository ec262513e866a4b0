//! More OpenMP threads than CPUs (`--threads`): whether the program has started as many as it was told,
//! and, where it has not, why. Pure but for one look at what a process has mapped.
//!
//! Threads that were told to sleep while they wait hide nothing: from the moment that a process has as
//! many as asked, all of its run time is work. So a split needs no samples first, and is made at once.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_capability::{Snapshot, TaskId};
use evenkeel_cbinfo::{Family, Runtimes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::reading::TaskReading;

/// A thread has computed when it ran for this long.
const COMPUTED_NS: u64 = 1_000_000;
/// A program that ran for this long in all should have started its threads.
const JUDGED_NS: u64 = 1_000_000_000;

/// The threads that a program was told to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// For each CPU.
    pub per_cpu: u32,
    /// Threads that it is told to start, in all.
    pub asked: u32,
}

/// How many threads a program was told to start, and how many it has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadCount {
    /// Threads that the program was told to start.
    pub asked: u32,
    /// The most that computed in one process at the same time, as far as intervals show.
    pub most: u32,
    /// Why the program did not start them, if it ran for a second and did not.
    pub why_no_effect: Option<String>,
}

/// Watches one program.
#[derive(Debug)]
pub(crate) struct ThreadWatch {
    count: ThreadCount,
    /// Processes that have as many threads now.
    full: BTreeSet<u32>,
    is_judged: bool,
    /// All that computed in the last interval were such threads.
    were_alone: bool,
}

impl ThreadWatch {
    pub(crate) fn new(threads: Threads) -> Self {
        let count = ThreadCount { asked: threads.asked, most: 0, why_no_effect: None };
        Self { count, full: BTreeSet::new(), is_judged: false, were_alone: false }
    }

    /// Takes in the tasks of the program. Returns, once, why it does not start its threads.
    /// `families_of` tells the runtimes that a process has.
    pub(crate) fn note(
        &mut self,
        tasks: &BTreeMap<TaskId, TaskReading>,
        families_of: impl FnOnce(u32) -> BTreeSet<Family>,
    ) -> Option<&str> {
        let mut processes: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for task in tasks.values() {
            let (run_ns, threads) = processes.entry(task.process).or_default();
            *run_ns += task.run_ns;
            *threads += u32::from(task.run_ns >= COMPUTED_NS);
        }
        let most = processes.values().map(|(_, threads)| *threads).max().unwrap_or(0);
        self.count.most = self.count.most.max(most);
        self.full = processes
            .iter()
            .filter(|(_, (_, threads))| *threads >= self.count.asked)
            .map(|(process, _)| *process)
            .collect();
        if self.count.most >= self.count.asked {
            // Perhaps later than was thought.
            self.count.why_no_effect = None;
            return None;
        }
        let run_ns: u64 = processes.values().map(|(run_ns, _)| *run_ns).sum();
        if self.is_judged || run_ns < JUDGED_NS {
            return None;
        }
        self.is_judged = true;
        let (process, _) = processes.into_iter().max_by_key(|(_, (run_ns, _))| *run_ns)?;
        self.count.why_no_effect = Some(self.why_not(&families_of(process)));
        self.count.why_no_effect.as_deref()
    }

    fn why_not(&self, families: &BTreeSet<Family>) -> String {
        let ThreadCount { asked, most, .. } = self.count;
        if families.contains(&Family::GccOpenMp) || families.contains(&Family::LlvmOpenMp) {
            let noun = if most == 1 { "thread" } else { "threads" };
            format!(
                "the program runs {most} {noun} so far and not {asked}: it sets their number itself"
            )
        } else if families.contains(&Family::Mpi) {
            format!("the ranks of an MPI program are started by its launcher: start {asked} ranks")
        } else {
            "the program has no OpenMP runtime (libgomp, libomp)".to_owned()
        }
    }

    /// Whether a process has started its threads, and they still compute.
    pub(crate) fn is_full(&self, process: u32) -> bool {
        self.full.contains(&process)
    }

    /// Whether some process has: then threads that wait are asleep.
    pub(crate) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// Adds to a snapshot what is known of these threads: they sleep while they wait, and where nothing
    /// else of the program computes, their split is what its user asked for.
    pub(crate) fn tell(&mut self, snapshot: &mut Snapshot) {
        let interval_ns = snapshot.interval_ns;
        let mut are_alone = self.has_full();
        for task in &mut snapshot.tasks {
            if self.is_full(task.process) {
                // What samples take for spinning is the runtime's own work.
                (task.spun_ns, task.samples, task.changes) = (0, 0, 0);
            } else if task.computes(interval_ns) {
                are_alone = false;
            }
        }
        let seen = &mut snapshot.seen;
        seen.spinning |= self.has_full();
        seen.asked = are_alone;
        // Where they wait is known. What was measured before is of another kind.
        let has_changed = std::mem::replace(&mut self.were_alone, are_alone) != are_alone;
        seen.redefined = has_changed || (seen.redefined && !are_alone);
    }

    pub(crate) fn into_count(self) -> ThreadCount {
        self.count
    }
}

/// What the runtimes of a process are for; none where that cannot be read.
pub(crate) fn families_of(process: u32) -> BTreeSet<Family> {
    Runtimes::default().find(process).unwrap_or_default().families()
}

#[cfg(test)]
mod tests {
    use evenkeel_capability::{Seen, TaskView};

    use super::*;

    const MS: u64 = 1_000_000;

    fn watch() -> ThreadWatch {
        ThreadWatch::new(Threads { per_cpu: 4, asked: 8 })
    }

    /// Threads of processes, each of which ran for so long.
    fn tasks(processes: &[(u32, &[u64])]) -> BTreeMap<TaskId, TaskReading> {
        let of = |(process, run_ms): &(u32, &[u64])| {
            let process = *process;
            let task = |(index, ms): (u32, &u64)| {
                let id = TaskId { tid: process + index, start: 1 };
                (id, TaskReading { process, run_ns: ms * MS, ..TaskReading::default() })
            };
            (0..).zip(*run_ms).map(task).collect::<Vec<_>>()
        };
        processes.iter().flat_map(of).collect()
    }

    #[test]
    fn threads_count_in_one_process_once_they_have_computed() {
        let mut watch = watch();
        let unasked = |_| -> BTreeSet<Family> { panic!("it is too early to judge") };
        // A pool that was just started, and eight processes of one thread each.
        watch.note(&tasks(&[(100, &[40, 0, 0, 0, 0, 0, 0, 0])]), unasked);
        assert!(!watch.has_full());
        let many: Vec<(u32, &[u64])> = (1..9).map(|process| (100 * process, &[50][..])).collect();
        watch.note(&tasks(&many), unasked);
        assert!(!watch.has_full());
        watch.note(&tasks(&[(7, &[30]), (100, &[2; 8])]), unasked);
        assert!(watch.has_full() && watch.is_full(100) && !watch.is_full(7));
        // The pool has ended.
        watch.note(&tasks(&[(100, &[90])]), unasked);
        assert!(!watch.has_full());
        assert_eq!(watch.into_count(), ThreadCount { asked: 8, most: 8, why_no_effect: None });
    }

    #[test]
    fn too_few_threads_are_told_once_with_the_reason() {
        use Family::{GccOpenMp, LlvmOpenMp, Mpi};
        for (families, why) in [
            (&[GccOpenMp][..], "runs 2 threads so far and not 8: it sets their number"),
            (&[LlvmOpenMp, Mpi], "it sets their number itself"),
            (&[Mpi], "start 8 ranks"),
            (&[], "no OpenMP runtime"),
        ] {
            let families: BTreeSet<Family> = families.iter().copied().collect();
            let mut watch = watch();
            let early = tasks(&[(100, &[400, 400])]);
            assert_eq!(watch.note(&early, |_| families.clone()), None);
            let late = tasks(&[(50, &[300]), (100, &[450, 450])]);
            let said = watch.note(&late, |process| {
                assert_eq!(process, 100, "the process that computes the most");
                families.clone()
            });
            assert!(said.is_some_and(|said| said.contains(why)), "{said:?}");
            assert_eq!(watch.note(&late, |_| families.clone()), None, "it was said already");
            assert!(watch.into_count().why_no_effect.is_some());
        }
    }

    /// A task of a process that ran for so much of an interval of 100 ms, and seems to have spun.
    fn view(process: u32, run_ms: u64) -> TaskView {
        TaskView {
            id: TaskId { tid: process, start: 1 },
            process,
            cpu: 0,
            queue: 0,
            run_ns: run_ms * MS,
            spun_ns: run_ms * MS / 2,
            samples: 9,
            changes: 3,
            received_ns: run_ms * MS,
            stolen_ns: 0,
            wait_ns: 0,
            sleeps: 0,
            runnable: true,
            allowed: evenkeel_machine::CpuSet::first(2),
            fixed: false,
            working_set_bytes: None,
        }
    }

    #[test]
    fn of_threads_that_were_asked_for_all_run_time_is_work() {
        let mut watch = watch();
        let mut tell = |full: &[u64], other_ms| {
            watch.note(&tasks(&[(100, full)]), |_| BTreeSet::new());
            let tasks = vec![view(100, 50), view(7, other_ms)];
            let seen = Seen { redefined: true, ..Seen::default() };
            let mut snapshot = Snapshot { interval_ns: 100 * MS, cpus: vec![], tasks, seen };
            watch.tell(&mut snapshot);
            let spun = snapshot.tasks.iter().map(|task| task.spun_ns / MS).collect::<Vec<_>>();
            (spun, snapshot.seen)
        };
        let (spun, seen) = tell(&[90], 5);
        assert_eq!((&spun[..], seen.spinning, seen.asked), (&[25, 2][..], false, false));
        // What is known before is of another kind, and so it is later.
        let (spun, seen) = tell(&[9; 8], 5);
        assert_eq!((&spun[..], seen.spinning, seen.asked), (&[0, 2][..], true, true));
        assert!(seen.redefined);
        assert!(!tell(&[9; 8], 5).1.redefined, "where they wait is known");
        // Another process spins, perhaps.
        let (spun, seen) = tell(&[9; 8], 50);
        assert_eq!((&spun[..], seen.spinning, seen.asked), (&[0, 25][..], true, false));
        assert!(seen.redefined);
        assert!(!tell(&[90], 5).1.asked);
    }

    #[test]
    fn threads_that_come_late_are_no_fault() {
        let mut watch = watch();
        let serial = tasks(&[(100, &[1500])]);
        assert!(watch.note(&serial, |_| [Family::GccOpenMp].into()).is_some());
        let parallel = tasks(&[(100, &[1500, 9, 9, 9, 9, 9, 9, 9])]);
        assert_eq!(watch.note(&parallel, |_| BTreeSet::new()), None);
        assert_eq!(watch.into_count().why_no_effect, None);
    }
}
