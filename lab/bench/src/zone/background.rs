//! The background: threads that keep the CPUs busy for a part of the time, or for all of it beside
//! programs that stress memory, disks and network. It counts the threads' work and their migrations to
//! other last-level caches.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_journal::affinity;
use evenkeel_machine::{CpuSet, Machine};
use nix::sched::sched_getcpu;
use nix::unistd::gettid;

use crate::keel::HACKBENCH;
use evenkeel_experiment::command::Running;
use evenkeel_experiment::guest::hogs::compute;

/// Threads for each CPU: together they keep it as busy as it is to be.
const THREADS: usize = 2;
/// The period of the first thread. Each further one has a longer period, so that their phases drift.
const PERIOD: Duration = Duration::from_micros(3_100);
const LONGER: Duration = Duration::from_micros(370);

/// A stress program, where it is installed; [`HACKBENCH`] runs beside it, threads that send each other
/// messages.
pub const STRESS: &str = "/usr/bin/stress-ng";

/// How busy the CPUs are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Busy for so many percent of the time.
    Percent(u32),
    /// Busy all the time, beside programs that stress disks, network and message queues.
    Full,
}

impl Load {
    /// All loads that are measured.
    pub const ALL: [Self; 6] = [
        Self::Percent(20),
        Self::Percent(40),
        Self::Percent(60),
        Self::Percent(75),
        Self::Percent(95),
        Self::Full,
    ];
    /// The loads at which the gate is to make a difference.
    pub const BAND: [Self; 3] = [Self::Percent(40), Self::Percent(60), Self::Percent(75)];
    /// The load at which all levels are compared: there they differ most.
    pub const LEVELS: [Self; 1] = [Self::Percent(60)];
    /// That load and the paper's, for the paper's own way.
    pub const PAPER: [Self; 2] = [Self::Percent(60), Self::Full];

    /// Whether a figure of this name is measured at this load.
    pub fn has(self, figure: &str) -> bool {
        figure.ends_with(&format!("-{self}"))
    }

    fn percent(self) -> u32 {
        match self {
            Self::Percent(percent) => percent,
            Self::Full => 100,
        }
    }
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}"),
            Self::Full => f.write_str("full"),
        }
    }
}

/// What the threads have done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Steps of computation.
    pub work: u64,
    /// Times that a thread ran under another last-level cache than before.
    pub moves: u64,
}

#[derive(Default)]
struct Shared {
    end: AtomicBool,
    work: AtomicU64,
    moves: AtomicU64,
    /// The last-level cache of each CPU.
    caches: BTreeMap<usize, u32>,
}

impl Shared {
    /// The cache under which the calling thread runs; `None`: not known.
    fn cache(&self) -> Option<u32> {
        self.caches.get(&sched_getcpu().ok()?).copied()
    }
}

/// The load, until it is dropped.
pub struct Background {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    _programs: Vec<Running>,
}

impl Background {
    /// Starts it on so many CPUs; `still`: each thread is pinned to one of them.
    ///
    /// # Errors
    /// The machine cannot be read, or a thread or a program cannot be started.
    pub fn start(load: Load, cpus: usize, still: bool) -> Result<Self> {
        let machine = Machine::from_sysfs(Path::new("/"))?;
        let caches = machine.cpus.iter().map(|cpu| (cpu.id as usize, cpu.llc)).collect();
        let shared = Arc::new(Shared { caches, ..Shared::default() });
        let mut background = Self { shared, threads: Vec::new(), _programs: Vec::new() };
        for number in 0..THREADS * cpus {
            let shared = Arc::clone(&background.shared);
            let period = PERIOD + LONGER * number as u32;
            let busy = period * load.percent() / 100 / THREADS as u32;
            let only = still.then(|| CpuSet::from_iter([(number % cpus) as u32]));
            let thread = std::thread::Builder::new()
                .spawn(move || work_and_sleep(&shared, busy, period - busy, only))
                .context("cannot start a thread of the background")?;
            background.threads.push(thread);
        }
        if load == Load::Full {
            for mut command in stress_programs(cpus) {
                if Path::new(command.get_program()).exists() {
                    background._programs.push(Running::start(&mut command)?);
                }
            }
        }
        Ok(background)
    }

    /// The work and migrations of its threads so far.
    pub fn done(&self) -> Done {
        Done {
            work: self.shared.work.load(Ordering::Relaxed),
            moves: self.shared.moves.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // These threads do not panic.
            let _ = thread.join();
        }
    }
}

/// Programs that keep CPUs, memory, disks, network and message queues busy until they are ended.
fn stress_programs(cpus: usize) -> [Command; 2] {
    let mut stress = Command::new(STRESS);
    stress.args(["--quiet", "--temp-path", "/tmp", "--cpu", &cpus.div_ceil(2).to_string()]);
    stress.args(["--io", "1", "--udp", "1", "--msg", "1", "--timeout", "600"]);
    let mut hackbench = Command::new(HACKBENCH);
    // Threads, which end with their process; more loops than it has time for.
    hackbench.args(["--threads", "--pipe", "--groups", "1", "--fds", &cpus.to_string()]);
    hackbench.args(["--loops", "1000000000"]);
    [stress, hackbench]
}

/// Works and sleeps in turn.
fn work_and_sleep(shared: &Shared, busy: Duration, rest: Duration, only: Option<CpuSet>) {
    if let Some(cpus) = only {
        // If the pin fails, the thread migrates, and that is counted.
        let _ = affinity::set(gettid().as_raw(), &cpus);
    }
    let mut before = shared.cache();
    while !shared.end.load(Ordering::Relaxed) {
        let until = Instant::now() + busy;
        while Instant::now() < until {
            compute();
            shared.work.fetch_add(1, Ordering::Relaxed);
            let here = shared.cache();
            if here != before {
                shared.moves.fetch_add(1, Ordering::Relaxed);
                before = here;
            }
        }
        std::thread::sleep(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_background_works_and_ends() {
        let background = Background::start(Load::Percent(10), 1, false).unwrap();
        let mut patience = 10_000;
        while background.done().work < 10 {
            std::thread::sleep(Duration::from_millis(1));
            patience -= 1;
            assert!(patience > 0, "no work was done");
        }
        let shared = Arc::clone(&background.shared);
        drop(background);
        assert_eq!(Arc::strong_count(&shared), 1, "a thread still works");
    }
}
