//! Working sets: how much memory each process of a program referenced in one interval (paper 000,
//! `cache` selection).
//!
//! The kernel sets a referenced bit in the page table of each page that is used. At the start of an
//! interval the bits are cleared (`1` to /proc/PID/clear_refs); at its end the bits that were set
//! since are counted (`Referenced` in /proc/PID/smaps_rollup). A user may do so with their own
//! processes.
//!
//! - A page table belongs to a process, so all its threads share one working set.
//! - Page reclaim reads the same bits: under memory pressure it takes pages with a bit that was just
//!   cleared for cold pages.
//! - A page with a translation that stays in the TLB sets no new bit: the few pages that are used
//!   most may be missing.
//!
//! Both steps walk over all pages of the process: together about 25 ms for each GiB of small pages,
//! 0.2 ms of huge pages (6.18, virtual machine). So there is an allowance of CPU time. Where it does
//! not reach, the processes take turns, and each keeps its last figure until its next turn.

use std::collections::BTreeMap;

use evenkeel_capability::Snapshot;
use evenkeel_control::{Lock, read_in_time};
use procfs::ProcError;
use procfs::process::{ClearRefs, Process};

use crate::clock::own_thread_cpu_time;

/// Share of one CPU's time that may be spent on measuring: 1/100.
const COST_SHARE: u64 = 100;
/// A larger process is not measured: each step locks its page table for about 13 ms a GiB, and evenkeel
/// has to keep its intervals.
const MAX_RESIDENT_BYTES: u64 = 4 << 30;

/// The working sets of one program's processes.
#[derive(Debug)]
pub(crate) struct WorkingSets {
    processes: BTreeMap<u32, Watch>,
    /// CPU time that may be spent now; below zero after a large process.
    allowance_ns: i64,
    /// Rounds so far.
    rounds: u64,
}

/// The measurement of one process.
#[derive(Debug, Clone, Copy, Default)]
struct Watch {
    /// The last figure.
    bytes: Option<u64>,
    /// Its bits were cleared when the interval began.
    is_counting: bool,
    /// The round in which its bits were last cleared.
    cleared_at: u64,
    /// It cannot be measured; do not try again.
    has_failed: bool,
}

impl WorkingSets {
    pub(crate) fn new() -> Self {
        Self { processes: BTreeMap::new(), allowance_ns: 0, rounds: 0 }
    }

    /// Counts the memory that was referenced in the interval that has just ended, fills it into the
    /// snapshot, and clears the bits for the next interval. A process that did not run is left as it is.
    pub(crate) fn measure(&mut self, snapshot: &mut Snapshot) {
        self.rounds += 1;
        // An overdraft is paid back; unused allowance is not saved up.
        let earned_ns = (snapshot.interval_ns / COST_SHARE) as i64;
        self.allowance_ns = self.allowance_ns.saturating_add(earned_ns).min(earned_ns);

        let mut ran: BTreeMap<u32, bool> = BTreeMap::new();
        for task in &snapshot.tasks {
            *ran.entry(task.process).or_default() |= task.run_ns > 0;
        }
        self.processes.retain(|pid, _| ran.contains_key(pid));
        ran.retain(|_, ran| *ran);
        for pid in ran.keys() {
            if self.processes.entry(*pid).or_default().is_counting {
                self.step(*pid, referenced_bytes, |watch, bytes| {
                    watch.is_counting = false;
                    watch.bytes = bytes.or(watch.bytes);
                });
            }
        }

        let cleared_at = |pid: &u32| self.processes.get(pid).map_or(0, |watch| watch.cleared_at);
        let mut turns: Vec<(u64, u32)> = ran.keys().map(|pid| (cleared_at(pid), *pid)).collect();
        turns.sort_unstable();
        for (_, pid) in turns {
            if self.allowance_ns <= 0 {
                break;
            }
            let round = self.rounds;
            self.step(pid, clear, |watch, is_counting| {
                watch.is_counting = is_counting == Some(true);
                watch.cleared_at = round;
                if is_counting == Some(false) {
                    // It has grown too large: drop its figure, which would never change again.
                    watch.bytes = None;
                }
            });
        }

        for task in &mut snapshot.tasks {
            task.working_set_bytes =
                self.processes.get(&task.process).and_then(|watch| watch.bytes);
        }
    }

    /// Makes one step of measuring a process, takes its cost from the allowance, and its result in:
    /// `None` if the step cannot be made in time, which may be so only now. A process that has ended, or
    /// that this user may not read, has no working set; that is no error.
    fn step<T: Send + 'static>(
        &mut self,
        pid: u32,
        step: fn(u32) -> Result<T, ProcError>,
        take_in: impl FnOnce(&mut Watch, Option<T>),
    ) {
        let Some(watch) = self.processes.get_mut(&pid).filter(|watch| !watch.has_failed) else {
            return;
        };
        let with_cost = move || {
            let begin = own_thread_cpu_time();
            (step(pid), own_thread_cpu_time().saturating_sub(begin).as_nanos() as u64)
        };
        let (result, cost_ns) = match read_in_time(Lock::Memory, pid as i32, with_cost) {
            Ok((result, cost_ns)) => (result.map(Some), cost_ns),
            Err(_) => (Ok(None), 0),
        };
        match result {
            Ok(result) => take_in(watch, result),
            Err(why) => {
                tracing::debug!("the working set of process {pid} is unknown: {why}");
                *watch = Watch { has_failed: true, ..Watch::default() };
            }
        }
        self.allowance_ns = self.allowance_ns.saturating_sub_unsigned(cost_ns);
    }
}

/// Clears the referenced bits of a process; `false` if it is too large (4 GiB) to be measured.
///
/// # Errors
/// The process has ended, or this user may not read it.
pub fn clear(pid: u32) -> Result<bool, ProcError> {
    let process = Process::new(pid as i32)?;
    if process.statm()?.resident.saturating_mul(procfs::page_size()) > MAX_RESIDENT_BYTES {
        return Ok(false);
    }
    process.clear_refs(ClearRefs::PGReferencedAll)?;
    Ok(true)
}

/// Memory that a process has referenced since the last [`clear`].
///
/// # Errors
/// The process has ended, or this user may not read it.
pub fn referenced_bytes(pid: u32) -> Result<u64, ProcError> {
    let maps = Process::new(pid as i32)?.smaps_rollup()?.memory_map_rollup;
    Ok(maps.iter().filter_map(|map| map.extension.map.get("Referenced")).sum())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Lines, Write};
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

    use evenkeel_capability::{Seen, TaskId, TaskView};

    use super::*;

    const MIB: u64 = 1 << 20;
    const PAGE: usize = 4096;
    const ROLE: &str = "EVENKEEL_TEST_TOUCHER";

    /// A process that touches as many MiB of its memory as it is told, more than a TLB covers, so that
    /// each touch sets a bit.
    struct Toucher {
        process: Child,
        orders: ChildStdin,
        answers: Lines<BufReader<ChildStdout>>,
    }

    impl Toucher {
        fn start() -> Self {
            let name = "working_set::tests::role_of_the_toucher";
            let mut process = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", name, "--nocapture", "--test-threads=1"])
                .env(ROLE, "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let orders = process.stdin.take().unwrap();
            let answers = BufReader::new(process.stdout.take().unwrap()).lines();
            Self { process, orders, answers }
        }

        fn touch(&mut self, mib: u64) {
            writeln!(self.orders, "{mib}").unwrap();
            assert!(self.answers.any(|line| line.unwrap().ends_with("touched")));
        }

        fn pid(&self) -> u32 {
            self.process.id()
        }

        /// Its working set, as `sets` fills it in, in MiB.
        fn working_set(&self, sets: &mut WorkingSets) -> Option<u64> {
            let mut snapshot = snapshot(&[(self.pid(), 1)]);
            sets.measure(&mut snapshot);
            snapshot.tasks[0].working_set_bytes.map(|bytes| bytes / MIB)
        }
    }

    impl Drop for Toucher {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[test]
    #[ignore = "a role"]
    fn role_of_the_toucher() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        let mut memory = vec![0u8; 64 * MIB as usize];
        for order in std::io::stdin().lines() {
            let bytes = order.unwrap().parse::<usize>().unwrap() * MIB as usize;
            for page in memory[..bytes].chunks_mut(PAGE) {
                page[0] = std::hint::black_box(page[0]).wrapping_add(1);
            }
            println!("touched");
        }
    }

    /// One second in which each of these processes has run for some time, in one thread.
    fn snapshot(ran_ns: &[(u32, u64)]) -> Snapshot {
        let tasks = ran_ns.iter().map(|(pid, run_ns)| TaskView {
            id: TaskId { tid: *pid, start: 1 },
            process: *pid,
            cpu: 0,
            queue: 0,
            run_ns: *run_ns,
            spun_ns: 0,
            samples: 0,
            changes: 0,
            received_ns: *run_ns,
            stolen_ns: 0,
            wait_ns: 0,
            sleeps: 1,
            runnable: true,
            allowed: evenkeel_machine::CpuSet::first(1),
            fixed: false,
            working_set_bytes: None,
        });
        let tasks = tasks.collect();
        Snapshot { interval_ns: 1_000_000_000, cpus: vec![], tasks, seen: Seen::default() }
    }

    #[test]
    fn memory_that_was_touched_in_the_interval_counts() {
        let mut toucher = Toucher::start();
        let mut sets = WorkingSets::new();
        toucher.touch(64);
        assert_eq!(toucher.working_set(&mut sets), None, "nothing was counted yet");
        // A TLB covers a dozen MiB: these may be missing.
        for (mib, expected) in [(64, 48..80), (24, 10..40), (0, 0..10), (64, 48..80)] {
            toucher.touch(mib);
            let counted = toucher.working_set(&mut sets).unwrap();
            assert!(expected.contains(&counted), "{counted} MiB instead of {mib}");
        }
    }

    #[test]
    fn a_process_that_did_not_run_keeps_its_figure() {
        let mut toucher = Toucher::start();
        let mut sets = WorkingSets::new();
        toucher.touch(64);
        toucher.working_set(&mut sets);
        toucher.touch(64);
        let before = toucher.working_set(&mut sets);
        let mut idle = snapshot(&[(toucher.pid(), 0)]);
        sets.measure(&mut idle);
        assert_eq!(idle.tasks[0].working_set_bytes.map(|bytes| bytes / MIB), before);
    }

    #[test]
    fn a_process_that_has_ended_has_no_working_set() {
        let mut toucher = Toucher::start();
        let mut sets = WorkingSets::new();
        toucher.touch(1);
        toucher.working_set(&mut sets);
        toucher.touch(1);
        assert!(toucher.working_set(&mut sets).is_some());
        toucher.process.kill().unwrap();
        toucher.process.wait().unwrap();
        for _ in 0..3 {
            assert_eq!(toucher.working_set(&mut sets), None);
        }
        sets.measure(&mut snapshot(&[]));
        assert!(sets.processes.is_empty());
    }

    #[test]
    fn processes_take_turns_with_a_small_allowance() {
        let mut touchers = [Toucher::start(), Toucher::start()];
        for toucher in &mut touchers {
            toucher.touch(64);
        }
        let mut sets = WorkingSets::new();
        let mut view = snapshot(&[(touchers[0].pid(), 1), (touchers[1].pid(), 1)]);
        // 10 us an interval: each process costs many of them.
        view.interval_ns = 10_000 * COST_SHARE;
        let mut turns = Vec::new();
        for round in 1..10_000 {
            sets.measure(&mut view);
            let cleared = sets.processes.iter().filter(|(_, watch)| watch.cleared_at == round);
            let cleared: Vec<u32> = cleared.map(|(pid, _)| *pid).collect();
            assert!(cleared.len() <= 1, "one uses up the allowance");
            turns.extend(cleared);
        }
        assert!(turns.len() > 4 && turns.len() < 2_000, "{}", turns.len());
        assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
    }
}
