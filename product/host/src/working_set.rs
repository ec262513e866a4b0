//! Working sets: how much memory each process of the program referenced in one interval (paper 000,
//! `cache` selection).
//!
//! The kernel notes in the page tables which pages are referenced. At the start of an interval the
//! notes are wiped (`1` to /proc/PID/clear_refs), at its end those that were made since are counted
//! (`Referenced` in /proc/PID/smaps_rollup). Anyone may do so with processes of their own.
//!
//! - Page tables belong to a process: its threads have one working set together.
//! - The kernel's page reclaim reads the same notes: under memory pressure it takes pages whose
//!   notes were just wiped for cold ones.
//! - A page whose translation stays in the TLB all the time leaves no new note: the few pages that
//!   are used most may be missing.
//!
//! Both steps walk over all pages of the process: together about 25 ms a GiB of small pages, 0.2 ms
//! of huge ones (6.18, virtual machine). So there is an allowance of CPU time; where it does not
//! reach, each process waits for its turn, and its last figure stands until then.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_capability::Snapshot;
use nix::time::{ClockId, clock_gettime};
use procfs::ProcError;
use procfs::process::{ClearRefs, Process};

/// Share of one CPU's time that may be spent: 1/100.
const COST_SHARE: u64 = 100;
/// A larger process is not measured: the program's page tables are locked for about 13 ms a GiB,
/// and evenkeel has to keep its intervals.
const MAX_RESIDENT_BYTES: u64 = 4 << 30;

/// The working sets of one program's processes.
#[derive(Debug)]
pub(crate) struct WorkingSets {
    processes: BTreeMap<u32, Watch>,
    /// CPU time that may be spent now; below zero after a large process.
    allowance_ns: i64,
    /// Looks so far.
    looks: u64,
}

/// What is known of a process.
#[derive(Debug, Clone, Copy, Default)]
struct Watch {
    /// The last figure.
    bytes: Option<u64>,
    /// Its notes were wiped when the interval began.
    is_counting: bool,
    /// The look at which its notes were last wiped.
    wiped_at: u64,
    /// It cannot be measured, and is not tried again.
    has_failed: bool,
}

impl WorkingSets {
    pub(crate) fn new() -> Self {
        Self { processes: BTreeMap::new(), allowance_ns: 0, looks: 0 }
    }

    /// Counts what was referenced in the interval that has just ended, fills it in, and wipes for
    /// the next interval. Processes that did not run are left as they are: what they reference is
    /// seen when they have run.
    pub(crate) fn measure(&mut self, snapshot: &mut Snapshot) {
        self.looks += 1;
        // What was overdrawn is owed from now on; what was not used is not saved up.
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
                self.step(*pid, |watch| {
                    watch.is_counting = false;
                    watch.bytes = Some(referenced_bytes(*pid)?);
                    Ok(())
                });
            }
        }

        let wiped_at = |pid: &u32| self.processes.get(pid).map_or(0, |watch| watch.wiped_at);
        let mut turns: Vec<(u64, u32)> = ran.keys().map(|pid| (wiped_at(pid), *pid)).collect();
        turns.sort_unstable();
        for (_, pid) in turns {
            if self.allowance_ns <= 0 {
                break;
            }
            let look = self.looks;
            self.step(pid, |watch| {
                watch.is_counting = wipe(pid)?;
                watch.wiped_at = look;
                if !watch.is_counting {
                    // Too large by now: an old figure would stand for ever.
                    watch.bytes = None;
                }
                Ok(())
            });
        }

        for task in &mut snapshot.tasks {
            task.working_set_bytes =
                self.processes.get(&task.process).and_then(|watch| watch.bytes);
        }
    }

    /// One step of measuring a process, paid for from the allowance. A process that has ended, or is
    /// not ours to look into, has no working set; that is no error.
    fn step(&mut self, pid: u32, step: impl FnOnce(&mut Watch) -> Result<(), ProcError>) {
        let Some(watch) = self.processes.get_mut(&pid).filter(|watch| !watch.has_failed) else {
            return;
        };
        let begin = own_cpu_time();
        if let Err(why) = step(watch) {
            tracing::debug!("the working set of process {pid} is unknown: {why}");
            *watch = Watch { has_failed: true, ..Watch::default() };
        }
        let cost_ns = own_cpu_time().saturating_sub(begin).as_nanos();
        self.allowance_ns = self.allowance_ns.saturating_sub_unsigned(cost_ns as u64);
    }
}

/// Forgets what a process has referenced so far, unless it is too large (4 GiB): then `false`.
///
/// # Errors
/// The process has ended, or is not ours to look into.
pub fn wipe(pid: u32) -> Result<bool, ProcError> {
    let process = Process::new(pid as i32)?;
    if process.statm()?.resident.saturating_mul(procfs::page_size()) > MAX_RESIDENT_BYTES {
        return Ok(false);
    }
    process.clear_refs(ClearRefs::PGReferencedAll)?;
    Ok(true)
}

/// Memory that a process has referenced since the last [`wipe`].
///
/// # Errors
/// The process has ended, or is not ours to look into.
pub fn referenced_bytes(pid: u32) -> Result<u64, ProcError> {
    let maps = Process::new(pid as i32)?.smaps_rollup()?.memory_map_rollup;
    Ok(maps.iter().filter_map(|map| map.extension.map.get("Referenced")).sum())
}

/// CPU time of the calling thread.
fn own_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Lines, Write};
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

    use evenkeel_capability::{TaskId, TaskView};

    use super::*;

    const MIB: u64 = 1 << 20;
    const PAGE: usize = 4096;
    const ROLE: &str = "EVENKEEL_TEST_TOUCHER";

    /// A process that touches as many MiB of its memory as it is told; more than a TLB covers, so
    /// that each touch leaves a note.
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
            received_ns: *run_ns,
            stolen_ns: 0,
            wait_ns: 0,
            switches: 1,
            runnable: true,
            allowed: evenkeel_machine::CpuSet::first(1),
            fixed: false,
            working_set_bytes: None,
        });
        Snapshot { interval_ns: 1_000_000_000, cpus: vec![], tasks: tasks.collect() }
    }

    #[test]
    fn what_was_touched_in_the_interval_counts() {
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
    fn who_did_not_run_keeps_its_figure() {
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
    fn who_is_gone_has_none() {
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
    fn where_the_allowance_is_small_processes_take_turns() {
        let mut touchers = [Toucher::start(), Toucher::start()];
        for toucher in &mut touchers {
            toucher.touch(64);
        }
        let mut sets = WorkingSets::new();
        let mut view = snapshot(&[(touchers[0].pid(), 1), (touchers[1].pid(), 1)]);
        // 10 us an interval: each process costs many of them.
        view.interval_ns = 10_000 * COST_SHARE;
        let mut turns = Vec::new();
        for look in 1..10_000 {
            sets.measure(&mut view);
            let wiped = sets.processes.iter().filter(|(_, watch)| watch.wiped_at == look);
            let wiped: Vec<u32> = wiped.map(|(pid, _)| *pid).collect();
            assert!(wiped.len() <= 1, "one is dear enough");
            turns.extend(wiped);
        }
        assert!(turns.len() > 4 && turns.len() < 2_000, "{}", turns.len());
        assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
    }
}
