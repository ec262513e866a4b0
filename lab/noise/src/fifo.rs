//! A real-time thief: a SCHED_FIFO thread that spins and sleeps in turn.
//!
//! It is a thread of this process, so it goes with it, and it looks at its limit in each period.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::time::ClockId;

use super::{Generator, NoiseConfig, NoiseError, Tally, thread};

const NAME: &str = "evenkeel-fifo";
const PRIORITY: i32 = 50;

/// The running thread.
pub(super) struct Fifo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<Tally>>>,
}

impl Fifo {
    pub(super) fn start(cpu: u32, config: &NoiseConfig) -> Result<Self, NoiseError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, config) = (Arc::clone(&stop), *config);
        let setup = move || {
            thread::pin(cpu)?;
            thread::become_fifo(PRIORITY)
        };
        let thread = thread::start(NAME, setup, move |()| steal(&config, &seen))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Each period takes what is still missing of its CPU time. That counts what the thread costs
/// besides spinning (going to sleep and waking up, 10 us and more in a VM), so that the duty is
/// right for short periods too. Never more than the busy time of the wall clock at once.
fn steal(config: &NoiseConfig, stop: &AtomicBool) -> Tally {
    let (busy_ns, period_ns) = (config.busy_us * 1_000, config.period_us * 1_000);
    let used = || thread::now_ns(ClockId::CLOCK_THREAD_CPUTIME_ID);
    let used_before = used();
    let mut due = used_before;
    let start = thread::monotonic_ns();
    let end = start + config.limit.as_nanos() as u64;
    let mut next = start;
    let mut now = start;
    while now < end && !stop.load(Ordering::Relaxed) {
        due += busy_ns;
        let until = now + busy_ns;
        while now < until && used() < due {
            now = thread::monotonic_ns();
        }
        next += period_ns;
        if next < now {
            // Missed a whole period (the CPU itself was away): drop it, do not make up for it.
            next = now + period_ns - busy_ns;
        }
        thread::sleep_until(next);
        now = thread::monotonic_ns();
    }
    let busy_ns = used() - used_before;
    Tally { wall_ns: now - start, busy_ns, seen_ns: busy_ns, ..Tally::default() }
}

impl Generator for Fifo {
    fn stop(&mut self) -> Result<Tally, NoiseError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take() {
            Some(handle) => thread::finish(NAME, handle),
            None => Ok(Tally::default()),
        }
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
