//! What can be seen of a real machine's address spaces, for [`super::auto`], from /proc: the run time of
//! each thread and how often it has gone to sleep, and how often the process has read and written.
//! (These are system calls; kernels do not count what is received and sent.) Only processes of several
//! threads that use a part of a CPU are looked at thread by thread.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use evenkeel_control::Peer;
use procfs::process::{Process, Stat, all_processes};

use super::auto::{Auto, Seen, Tuning};
use super::options::Mode;
use crate::visible::{When, may_see};

/// Processes that used less of the time between two looks (one part in so many of a CPU) are left out.
const LEAST_SHARE: u32 = 8;

/// A process for good: its number, and when it was started.
pub(super) type Known = (u32, u64);

/// What a thread has had so far.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    run_ns: u64,
    sleeps: u64,
}

/// A process as of the last look.
#[derive(Debug, Clone, Default)]
struct Before {
    ticks: u64,
    /// System calls that read or wrote, up to now.
    calls: u64,
    /// By thread, if it was busy.
    threads: Option<BTreeMap<i32, Totals>>,
}

/// The helper thread's eyes, and what it has found out.
pub(crate) struct Watch {
    auto: Auto,
    at: Instant,
    before: BTreeMap<Known, Before>,
    /// What it says of each process, last.
    pub tunings: BTreeMap<u32, Tuning>,
}

impl Watch {
    /// Nothing was seen yet of spaces that aggregate in this mode.
    pub fn new(mode: Mode) -> Self {
        let (auto, before, tunings) = (Auto::new(mode), BTreeMap::new(), BTreeMap::new());
        Self { auto, at: Instant::now(), before, tunings }
    }

    /// Whether it is time for another look.
    pub fn is_due(&self) -> bool {
        self.at.elapsed() >= Duration::from_nanos(self.auto.interval_ns())
    }

    /// What it says of the processes that `peer` may know of. `started` as in [`may_see`].
    pub fn found_for(
        &self,
        peer: &Peer,
        started: impl Fn(u32) -> Option<u64>,
    ) -> BTreeMap<u32, Tuning> {
        let starts: BTreeMap<u32, u64> = self.before.keys().copied().collect();
        let is_seen = |pid: &u32| {
            let when = starts.get(pid).map_or(When::Now, |start| When::StartedAt(*start));
            may_see(peer, *pid, when, &started)
        };
        let found = self.tunings.iter().filter(|(pid, _)| is_seen(pid));
        found.map(|(pid, tuning)| (*pid, *tuning)).collect()
    }

    /// Looks at all processes but those that a request has set (`taken`).
    pub fn look(&mut self, taken: &BTreeSet<Known>) -> Vec<Tuning> {
        let running = all_processes().into_iter().flatten().flatten();
        // This process may have several threads, too, and is no program that is to be faster.
        let is_other = |it: &Process| u32::try_from(it.pid) != Ok(std::process::id());
        self.look_at(running.filter(is_other), taken)
    }

    fn look_at(
        &mut self,
        processes: impl Iterator<Item = Process>,
        taken: &BTreeSet<Known>,
    ) -> Vec<Tuning> {
        let window = self.at.elapsed();
        self.at = Instant::now();
        let least_ticks =
            window.as_secs_f64() * procfs::ticks_per_second() as f64 / f64::from(LEAST_SHARE);
        let mut now = BTreeMap::new();
        let mut seen = Vec::new();
        for process in processes {
            let Ok(stat) = process.stat() else { continue };
            let Some(known) = known(&stat).filter(|known| !taken.contains(known)) else { continue };
            if stat.num_threads < 2 {
                continue;
            }
            let ticks = stat.utime + stat.stime;
            let before = self.before.remove(&known);
            let passed = before.as_ref().map_or(0, |before| ticks.saturating_sub(before.ticks));
            let is_busy = passed as f64 >= least_ticks;
            let threads = is_busy.then(|| threads(&process));
            let earlier_calls = before.as_ref().map_or(0, |before| before.calls);
            let earlier = before.and_then(|before| before.threads);
            let calls = if is_busy { calls(&process) } else { 0 };
            // A program that is idle for a while shows nothing; that is an observation, too.
            let mut of_space = seen_of(known.0, threads.as_ref(), earlier.as_ref());
            if of_space.run_ns > 0 {
                of_space.calls = calls.saturating_sub(earlier_calls);
            }
            seen.push(of_space);
            now.insert(known, Before { ticks, calls, threads });
        }
        self.before = now;
        self.tunings.retain(|pid, _| seen.iter().any(|seen| seen.space == u64::from(*pid)));
        let tunings = self.auto.look(window.as_nanos() as u64, &seen);
        self.tunings.extend(tunings.iter().map(|tuning| (tuning.space as u32, *tuning)));
        tunings
    }
}

/// The name of a process for good.
pub(super) fn known(stat: &Stat) -> Option<Known> {
    Some((u32::try_from(stat.pid).ok()?, stat.starttime))
}

/// How often a process has read and written; 0 where the kernel does not count it.
fn calls(process: &Process) -> u64 {
    process.io().map_or(0, |io| io.syscr + io.syscw)
}

/// Of each thread of a process what it has had.
fn threads(process: &Process) -> BTreeMap<i32, Totals> {
    let tasks = process.tasks().into_iter().flatten().flatten();
    let totals = tasks.filter_map(|task| {
        let run_ns = task.schedstat().ok()?.sum_exec_runtime;
        let sleeps = task.status().ok()?.voluntary_ctxt_switches.unwrap_or(0);
        Some((task.tid, Totals { run_ns, sleeps }))
    });
    totals.collect()
}

/// What a process has had since the last look, at both of which it was busy. Threads that are new have
/// had all that they have meanwhile; what those had that ended is not known.
fn seen_of(
    pid: u32,
    now: Option<&BTreeMap<i32, Totals>>,
    before: Option<&BTreeMap<i32, Totals>>,
) -> Seen {
    let mut seen = Seen { space: u64::from(pid), ..Seen::default() };
    let (Some(now), Some(before)) = (now, before) else { return seen };
    for (tid, now) in now {
        let before = before.get(tid).copied().unwrap_or_default();
        let run_ns = now.run_ns.saturating_sub(before.run_ns);
        seen.run_ns += run_ns;
        seen.sleeps += now.sleeps.saturating_sub(before.sleeps);
        seen.threads += u32::from(run_ns > 0);
    }
    seen
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_threads_had_since_is_summed_up() {
        let totals = |run_ns, sleeps| Totals { run_ns, sleeps };
        let before = BTreeMap::from([(1, totals(100, 5)), (2, totals(50, 7)), (9, totals(1, 1))]);
        let now = BTreeMap::from([(1, totals(160, 9)), (2, totals(50, 7)), (3, totals(40, 2))]);
        let seen = seen_of(77, Some(&now), Some(&before));
        assert_eq!(seen, Seen { space: 77, threads: 2, run_ns: 100, sleeps: 6, calls: 0 });
        let nothing = Seen { space: 77, ..Seen::default() };
        assert_eq!(seen_of(77, Some(&now), None), nothing);
        assert_eq!(seen_of(77, None, Some(&before)), nothing);
    }

    #[test]
    fn sleeps_and_run_times_of_threads_are_the_kernels() {
        let process = Process::myself().unwrap();
        let (give, take) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let sleeper = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            // Each is a sleep, if it has to wait for it.
            while take.recv().is_ok() {
                tell.send(0).unwrap();
            }
        });
        let tid = told.recv().unwrap();
        let sleeps = || threads(&process)[&tid].sleeps;
        let before = sleeps();
        while sleeps() < before + 20 {
            give.send(()).unwrap();
            told.recv().unwrap();
        }
        drop(give);
        sleeper.join().unwrap();
        assert!(threads(&process).values().any(|one| one.run_ns > 0));
    }

    #[test]
    fn reads_and_writes_of_a_process_are_the_kernels() {
        use std::io::Write;
        let process = Process::myself().unwrap();
        if process.io().is_err() {
            println!("this kernel does not count them");
            return;
        }
        let before = calls(&process);
        let mut nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        (0..100).for_each(|_| nowhere.write_all(b"x").unwrap());
        assert!(calls(&process) >= before + 100);
    }

    #[test]
    fn what_a_request_has_set_is_left_out_and_so_is_this_process() {
        let this = || Process::myself().into_iter();
        let own = known(&Process::myself().unwrap().stat().unwrap()).unwrap();
        // A test program has several threads; another one is there until it is joined.
        let (stop, stopped) = mpsc::channel::<()>();
        let other = std::thread::spawn(move || stopped.recv().is_ok());
        let mut watch = Watch::new(Mode::default());
        watch.look_at(this(), &BTreeSet::new());
        assert!(watch.before.contains_key(&own));
        watch.look_at(this(), &[own].into());
        assert!(!watch.before.contains_key(&own));
        watch.look(&BTreeSet::new());
        assert!(!watch.before.contains_key(&own));
        drop(stop);
        assert!(!other.join().unwrap());
    }
}
