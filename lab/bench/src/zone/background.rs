//! What else goes on: threads that keep the CPUs busy to a part, or everything that a machine can be
//! pestered with.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use nix::sched::sched_getcpu;
use nix::unistd::gettid;

use crate::keel::HACKBENCH;
use evenkeel_experiment::command::Running;
use evenkeel_experiment::guest::hogs::compute;

/// Threads for each CPU: together they want what the CPU is to be busy.
const THREADS: usize = 2;
/// Of the first one; each further one has a longer period, so that they meet in all ways.
const PERIOD: Duration = Duration::from_micros(3_100);
const LONGER: Duration = Duration::from_micros(370);

/// Programs that pester a machine, if they are installed: [`HACKBENCH`] by threads that send each other
/// messages.
pub const STRESS: &str = "/usr/bin/stress-ng";

/// How busy the CPUs are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// So many percent of the time.
    Percent(u32),
    /// All the time, and disks, network and messages besides.
    Full,
}

impl Load {
    /// All that are measured.
    pub const ALL: [Self; 6] = [
        Self::Percent(20),
        Self::Percent(40),
        Self::Percent(60),
        Self::Percent(75),
        Self::Percent(95),
        Self::Full,
    ];
    /// Where the gate is to make a difference.
    pub const BAND: [Self; 3] = [Self::Percent(40), Self::Percent(60), Self::Percent(75)];
    /// Where all levels are compared: there they differ most.
    pub const LEVELS: [Self; 1] = [Self::Percent(60)];

    /// Whether a figure by this name is measured beside it.
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

/// What was done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    /// Steps of computation.
    pub work: u64,
    /// Times that a thread found itself on another CPU than before.
    pub moves: u64,
}

#[derive(Default)]
struct Shared {
    end: AtomicBool,
    work: AtomicU64,
    moves: AtomicU64,
}

/// The load, until it is dropped.
pub struct Background {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    _programs: Vec<Running>,
}

impl Background {
    /// Starts it on so many CPUs; `still`: each thread may use one of them only.
    ///
    /// # Errors
    /// A thread or a program cannot be started.
    pub fn start(load: Load, cpus: usize, still: bool) -> Result<Self> {
        let mut background =
            Self { shared: Arc::default(), threads: Vec::new(), _programs: Vec::new() };
        for number in 0..THREADS * cpus {
            let shared = Arc::clone(&background.shared);
            let period = PERIOD + LONGER * number as u32;
            let busy = period * load.percent() / 100 / THREADS as u32;
            let only = still.then(|| CpuSet::from_iter([(number % cpus) as u32]));
            let thread = std::thread::Builder::new()
                .spawn(move || pester(&shared, busy, period - busy, only))
                .context("cannot start a thread of the background")?;
            background.threads.push(thread);
        }
        if load == Load::Full {
            for mut command in pests(cpus) {
                if Path::new(command.get_program()).exists() {
                    background._programs.push(Running::start(&mut command)?);
                }
            }
        }
        Ok(background)
    }

    /// What its threads have done so far.
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
            // They have nothing to panic about.
            let _ = thread.join();
        }
    }
}

/// What keeps CPUs, memory, disks, network and message queues busy until it is ended.
fn pests(cpus: usize) -> [Command; 2] {
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
fn pester(shared: &Shared, busy: Duration, rest: Duration, only: Option<CpuSet>) {
    if let Some(cpus) = only {
        // Where it may not, it moves, and that is counted.
        let _ = affinity::set(gettid().as_raw(), &cpus);
    }
    let mut before = sched_getcpu().ok();
    while !shared.end.load(Ordering::Relaxed) {
        let until = Instant::now() + busy;
        while Instant::now() < until {
            compute();
            shared.work.fetch_add(1, Ordering::Relaxed);
            let here = sched_getcpu().ok();
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
    fn it_works_and_ends() {
        let background = Background::start(Load::Percent(10), 1, false).unwrap();
        let mut patience = 10_000;
        while background.done().work < 10 {
            std::thread::sleep(Duration::from_millis(1));
            patience -= 1;
            assert!(patience > 0, "nothing is done");
        }
        let shared = Arc::clone(&background.shared);
        drop(background);
        assert_eq!(Arc::strong_count(&shared), 1, "a thread still works");
    }
}
