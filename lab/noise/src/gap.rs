//! How much of a CPU is taken away, measured from the outside: an independent truth.
//!
//! A thread pinned to the CPU does nothing but read the clock. Where two readings are further
//! apart than usual, something else had the CPU: an interrupt, a softirq, another task, the
//! hypervisor. Their sum is the time stolen from the thread. This is the fixed-time-quantum idea
//! of Netgauge's noise benchmark; it needs no help from the kernel, so it can judge accounting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::time::ClockId;
use serde::Serialize;

use super::{NoiseError, check_online, thread};

const NAME: &str = "evenkeel-gap";
/// A gap this much longer than the usual step is time stolen, in ns. An ordinary step is 20 to 60
/// ns; the cheapest interrupt costs more than 1 µs.
const THRESHOLD_NS: u64 = 2_000;
/// Steps from which the usual one is taken.
const STEPS: usize = 1_001;
/// The longest window.
const MAX_WINDOW: Duration = Duration::from_secs(60);
/// The longest window at real-time priority: no ordinary task runs meanwhile.
const MAX_FIFO_WINDOW: Duration = Duration::from_millis(200);

/// After a window at real-time priority, this share of it is left to ordinary tasks: 1/8. The kernel
/// grants them a twentieth of each second, at once (50 ms, by a deadline server, or by throttling
/// real-time tasks), once windows in a row have left them less, and that would count as stolen.
const REST_SHARE: u32 = 8;

/// What the measuring thread competes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapPriority {
    /// An ordinary task: everything that runs on the CPU counts as stolen.
    Ordinary,
    /// SCHED_FIFO 1: only interrupts, softirqs, steal and other real-time tasks count. Takes the
    /// CPU from ordinary tasks meanwhile, so for at most 200 ms.
    Fifo,
}

/// What was taken from a CPU in a window of time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GapReport {
    /// The CPU.
    pub cpu: u32,
    /// The length of the window, in ns.
    pub wall_ns: u64,
    /// The time that something else had the CPU, in ns.
    pub stolen_ns: u64,
    /// How often.
    pub gaps: u64,
    /// The longest time at once, in ns.
    pub longest_ns: u64,
    /// The usual step between two clock readings, in ns: the resolution.
    pub step_ns: u64,
}

impl GapReport {
    /// The stolen share of the window, 0..=1.
    pub fn share(&self) -> f64 {
        if self.wall_ns == 0 { 0.0 } else { self.stolen_ns as f64 / self.wall_ns as f64 }
    }
}

/// Measures a CPU for a window of time, at most 60 s; returns at its end, at real-time priority a little
/// later.
///
/// # Errors
/// The CPU is not online or not allowed, the window is empty or too long, or (`Fifo`) the
/// privilege is missing.
pub fn measure(cpu: u32, window: Duration, priority: GapPriority) -> Result<GapReport, NoiseError> {
    check_online(cpu)?;
    let longest = if priority == GapPriority::Fifo { MAX_FIFO_WINDOW } else { MAX_WINDOW };
    if window.is_zero() || window > longest {
        return Err(NoiseError::Refused(format!(
            "a gap window of {window:?}: it must be more than 0 and at most {longest:?}"
        )));
    }
    let setup = move || {
        thread::pin(cpu)?;
        if priority == GapPriority::Fifo {
            thread::become_fifo(1)?;
        }
        Ok(())
    };
    let handle = thread::start(NAME, setup, move |()| watch(cpu, window))?;
    let report = thread::finish(NAME, handle);
    if priority == GapPriority::Fifo {
        std::thread::sleep(window / REST_SHARE);
    }
    report
}

/// How long the generators watch to find what their work costs the CPU.
const COST_WINDOW: Duration = Duration::from_millis(60);

/// The share of the CPU that interrupts and the like take without the noise, 0..=1.
pub(super) fn quiet_share(cpu: u32) -> Result<f64, NoiseError> {
    Ok(measure(cpu, COST_WINDOW, GapPriority::Fifo)?.share())
}

/// The share that they take while `work` runs in the calling thread: `work` is to go on until its
/// argument says that the measurement is done.
pub(super) fn share_during<T>(
    cpu: u32,
    work: impl FnOnce(&AtomicBool) -> Result<T, NoiseError>,
) -> Result<(f64, T), NoiseError> {
    let done = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&done);
    let watch = move |()| {
        let report = measure(cpu, COST_WINDOW, GapPriority::Fifo);
        tell.store(true, Ordering::Relaxed);
        report
    };
    let watcher = thread::start(NAME, || Ok(()), watch)?;
    let made = work(&done);
    let report = thread::finish(NAME, watcher)??;
    Ok((report.share(), made?))
}

fn watch(cpu: u32, window: Duration) -> GapReport {
    let step_ns = usual_step_ns();
    let mut tally = Gaps { threshold_ns: step_ns + THRESHOLD_NS, step_ns, ..Gaps::default() };
    let start = thread::monotonic_ns();
    let end = start + window.as_nanos() as u64;
    let mut last = start;
    while last < end {
        let now = thread::now_ns(ClockId::CLOCK_MONOTONIC);
        tally.step(now - last);
        last = now;
    }
    GapReport {
        cpu,
        wall_ns: last - start,
        stolen_ns: tally.stolen_ns,
        gaps: tally.gaps,
        longest_ns: tally.longest_ns,
        step_ns,
    }
}

/// The median of many steps: no gap can move it.
fn usual_step_ns() -> u64 {
    let mut steps = [0; STEPS];
    let mut last = thread::monotonic_ns();
    for step in &mut steps {
        let now = thread::monotonic_ns();
        *step = now - last;
        last = now;
    }
    steps.sort_unstable();
    steps[STEPS / 2]
}

#[derive(Debug, Default)]
struct Gaps {
    threshold_ns: u64,
    step_ns: u64,
    stolen_ns: u64,
    gaps: u64,
    longest_ns: u64,
}

impl Gaps {
    fn step(&mut self, length_ns: u64) {
        if length_ns <= self.threshold_ns {
            return;
        }
        // One step of the gap was the thread's own.
        let stolen_ns = length_ns - self.step_ns;
        self.stolen_ns += stolen_ns;
        self.gaps += 1;
        self.longest_ns = self.longest_ns.max(stolen_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_steps_are_stolen_time() {
        let mut gaps = Gaps { threshold_ns: 2_030, step_ns: 30, ..Gaps::default() };
        for length_ns in [30, 31, 2_030, 2_031, 5_030, 29] {
            gaps.step(length_ns);
        }
        assert_eq!((gaps.stolen_ns, gaps.gaps, gaps.longest_ns), (2_001 + 5_000, 2, 5_000));
    }

    #[test]
    fn windows_are_bounded() {
        let second = Duration::from_secs(1);
        for (window, priority) in [
            (Duration::ZERO, GapPriority::Ordinary),
            (61 * second, GapPriority::Ordinary),
            (second, GapPriority::Fifo),
        ] {
            let error = measure(0, window, priority).unwrap_err();
            assert!(matches!(error, NoiseError::Refused(_)), "{error}");
        }
        let error = measure(5_000, second, GapPriority::Ordinary).unwrap_err();
        assert!(matches!(error, NoiseError::NoSuchCpu { .. }), "{error}");
    }

    #[test]
    fn a_window_is_covered() {
        let window = Duration::from_millis(20);
        let report = measure(0, window, GapPriority::Ordinary).unwrap();
        assert!(report.wall_ns >= 20_000_000);
        assert!(report.stolen_ns <= report.wall_ns);
        assert!(report.step_ns > 0 && report.step_ns < THRESHOLD_NS, "{report:?}");
        assert!((0.0..=1.0).contains(&report.share()));
    }
}
