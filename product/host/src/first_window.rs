//! A window for barriers before anything else is loaded: where the tasks of a program wait for each
//! other so often that no exchange can follow, to load the whole accounting would only cost time. What
//! that takes of any CPU such a program loses as a whole, since all its tasks wait for the last one.
//!
//! It decides only where that is certain: barriers are counted (libgomp, glibc), they come very often,
//! and no more tasks of the program compute than there are CPUs, since more could be split unevenly.
//! What it cannot see is that one task has more work than the others, so it does not decide for long.
//! Everything else is left to the whole accounting.

use std::collections::BTreeMap;
use std::fs;

use evenkeel_capability::Barriers as Counted;
use evenkeel_cbinfo::{Barriers, Error, Window, child_processes};

use crate::clock::monotonic_ns;

/// How long barriers are counted.
const LENGTH_NS: u64 = 25_000_000;
/// Shorter phases are too short whatever the noise is: a tenth of the shortest interval of the lag
/// policy.
const SHORT_NS: u64 = 5_000_000;
/// A task computes if it ran for this part of the window: 1/50.
const COMPUTES_SHARE: u64 = 50;
/// A program with more processes is left to the whole accounting.
const MOST_PROCESSES: usize = 64;
/// For the one program there is.
const PROGRAM: u32 = 1;

/// A window that is open.
pub(crate) struct FirstWindow {
    barriers: Barriers,
    root: u32,
    /// The run time of each task when it was opened.
    ran_ns: BTreeMap<u32, u64>,
    ends_ns: u64,
}

impl FirstWindow {
    /// Begins to count the barriers of a process and its descendants.
    ///
    /// # Errors
    /// The kernel refuses, or this process lacks the privilege.
    pub(crate) fn open(root: u32) -> Result<Self, Error> {
        let processes = processes_of(root);
        let mut barriers = Barriers::load()?;
        for tgid in &processes {
            barriers.watch(*tgid, PROGRAM)?;
        }
        barriers.open_window()?;
        let (ran_ns, ends_ns) = (run_times_ns(&processes), monotonic_ns() + LENGTH_NS);
        Ok(Self { barriers, root, ran_ns, ends_ns })
    }

    /// When it is to be closed, on the monotonic clock.
    pub(crate) fn ends_ns(&self) -> u64 {
        self.ends_ns
    }

    /// Ends it, and unloads everything. Returns the barriers, if they come too often for moves on so
    /// many CPUs.
    ///
    /// # Errors
    /// What was counted cannot be read.
    pub(crate) fn close(mut self, cpus: usize) -> Result<Option<Counted>, Error> {
        let window = self.barriers.close_window()?;
        let processes = processes_of(self.root);
        if processes.len() > MOST_PROCESSES {
            return Ok(None);
        }
        let computing = run_times_ns(&processes).into_iter().filter(|(tid, now_ns)| {
            let then_ns = self.ran_ns.get(tid).copied().unwrap_or(0);
            now_ns.saturating_sub(then_ns) >= window.observed_ns / COMPUTES_SHARE
        });
        Ok(too_many(&window, computing.count(), cpus))
    }
}

/// A process and its descendants, but not many more than [`MOST_PROCESSES`].
fn processes_of(root: u32) -> Vec<u32> {
    let mut processes = vec![root];
    let mut next = 0;
    while next < processes.len() && processes.len() <= MOST_PROCESSES {
        let room = MOST_PROCESSES + 1 - processes.len();
        processes.extend(child_processes(processes[next]).into_iter().take(room));
        next += 1;
    }
    processes
}

/// The barriers in a window in which so many tasks computed, if they come too often.
fn too_many(window: &Window, computing: usize, cpus: usize) -> Option<Counted> {
    let observed_ns = window.observed_ns;
    // A region of OpenMP begins at another word than that of its barriers.
    let most = window.wakes.iter().map(|wakes| wakes.count).max()?;
    let is_short = observed_ns < most.saturating_mul(SHORT_NS);
    let count = u32::try_from(most).unwrap_or(u32::MAX);
    (is_short && (2..=cpus).contains(&computing)).then_some(Counted { count, observed_ns })
}

/// How long each task of these processes has run (the kernel's Documentation/scheduler/sched-stats.rst).
/// Where the kernel does not tell, none seems to compute.
fn run_times_ns(processes: &[u32]) -> BTreeMap<u32, u64> {
    let tasks_of =
        |tgid| fs::read_dir(format!("/proc/{tgid}/task")).into_iter().flatten().flatten();
    let run_time_ns = |task: fs::DirEntry| {
        let tid = task.file_name().to_str()?.parse().ok()?;
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some((tid, times.split(' ').next()?.parse().ok()?))
    };
    processes.iter().flat_map(tasks_of).filter_map(run_time_ns).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_cbinfo::Wakes;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn only_certain_cases_are_decided() {
        let decided = |counts: &[u64], computing, cpus| {
            let wakes = counts.iter().zip(0..).map(|(count, address)| Wakes {
                program: PROGRAM,
                tgid: 7,
                address,
                count: *count,
            });
            let window = Window { observed_ns: 30 * MS, wakes: wakes.collect() };
            let counted = too_many(&window, computing, cpus)?;
            assert_eq!(counted.observed_ns, 30 * MS);
            Some(counted.count)
        };
        assert_eq!(decided(&[3, 20], 2, 2), Some(20), "the busiest word counts");
        assert_eq!(decided(&[20], 1, 2), None, "one task computes");
        assert_eq!(decided(&[20], 3, 2), None, "a split may gain");
        assert_eq!(decided(&[7], 2, 2), Some(7));
        assert_eq!(decided(&[6], 2, 2), None, "5 ms are not certain");
        assert_eq!(decided(&[], 2, 2), None, "no barrier");
        assert_eq!(decided(&[0], 2, 2), None, "no barrier");
    }

    #[test]
    fn descendants_are_found_up_to_a_limit() {
        // What runs in the background has no input but by a descriptor of its own.
        let many = format!("exec 3<&0; for i in $(seq {MOST_PROCESSES}); do cat <&3 & done; cat");
        for (script, least) in [("sh -c 'cat; true'; true", 3), (&many, MOST_PROCESSES + 1)] {
            let mut shell = std::process::Command::new("sh");
            let shell = shell.args(["-c", script]).stdin(std::process::Stdio::piped());
            let mut child = shell.spawn().unwrap();
            // The last one of them waits for the end of the input.
            while processes_of(child.id()).len() < least {
                std::thread::yield_now();
            }
            assert!(processes_of(child.id()).len() <= MOST_PROCESSES + 1);
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    #[test]
    fn the_run_time_of_a_task_grows() {
        let (own, tid) = (std::process::id(), nix::unistd::gettid().as_raw() as u32);
        let ran_ns = || run_times_ns(&[own, u32::MAX]).get(&tid).copied();
        let Some(before_ns) = ran_ns() else {
            return evenkeel_skip::skip("the_run_time_of_a_task_grows", "no schedstat here");
        };
        while ran_ns() < Some(before_ns + MS) {
            std::hint::spin_loop();
        }
    }
}
