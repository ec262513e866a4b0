//! What it costs to see waiting: a system call of a task that is not followed, with and without the
//! windows in which barriers are counted; and a sample of what a CPU does.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_cbinfo::{Cbinfo, Waiting};
use evenkeel_host::{FIRST_HERTZ, WINDOW_EVERY_NS, WINDOW_NS, rate_for};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, getppid};
use serde::Serialize;

use crate::stats::{Estimate, estimate, median};
use evenkeel_experiment::interrupt;
use evenkeel_experiment::output::Output;

/// Pairs of a second with windows and one without.
const PAIRS: u32 = 20;
/// Pairs of an open window and a closed one, and how long each is.
const WINDOWS: u32 = 100;
const OPEN: Duration = Duration::from_millis(20);
/// Pairs of a while with samples and one without.
const SAMPLED: u32 = 20;
const SAMPLED_FOR: Duration = Duration::from_millis(500);
/// Where the bystander notes how far it is.
const CALLS_A_NOTE: u64 = 64;
/// Shorter gaps between two readings of the clock are no interrupt, longer ones no single interrupt.
const GAPS_NS: std::ops::Range<u64> = 400..60_000;

/// What to do.
#[derive(Debug)]
pub struct Options {
    /// Where to write the figures as JSON.
    pub json: Option<PathBuf>,
}

/// All figures.
#[derive(Debug, Serialize)]
struct Report {
    /// A bystander's getppid(2), in ns, while no window is open and while one is: medians.
    call_ns: f64,
    call_in_window_ns: f64,
    /// What the windows of the balancer cost a loop of such calls, in per cent.
    windows_pct: Interval,
    /// One sample: the interrupt and the program in it, in ns.
    sample_ns: Interval,
    /// Samples a second of the first two seconds and later, and what they cost a CPU in per cent.
    first_hertz: u64,
    first_pct: f64,
    later_hertz: u64,
    later_pct: f64,
}

/// A median with its 95 % interval.
#[derive(Debug, Serialize)]
struct Interval {
    median: f64,
    low: f64,
    high: f64,
}

impl From<Estimate> for Interval {
    fn from(estimate: Estimate) -> Self {
        Self { median: estimate.median, low: estimate.lo, high: estimate.hi }
    }
}

/// Measures, prints, and writes the JSON. Returns the exit code.
///
/// # Errors
/// cbinfo cannot be loaded, or the kernel refuses what it attaches.
pub fn run(options: &Options) -> Result<i32> {
    let json = options.json.as_deref().map(Output::prepare).transpose()?;
    let report = measure()?;
    println!(
        "getppid of a task that is not followed: {:.0} ns, {:.0} ns while a window is open",
        report.call_ns, report.call_in_window_ns
    );
    println!(
        "windows of {} ms in each second cost it {:.2} % ({:.2} to {:.2})",
        WINDOW_NS / 1_000_000,
        report.windows_pct.median,
        report.windows_pct.low,
        report.windows_pct.high
    );
    println!(
        "a sample takes {:.1} us ({:.1} to {:.1}): {:.3} % of a CPU at {} Hz for the first two seconds, \
         {:.3} % at {} Hz later",
        report.sample_ns.median / 1e3,
        report.sample_ns.low / 1e3,
        report.sample_ns.high / 1e3,
        report.first_pct,
        report.first_hertz,
        report.later_pct,
        report.later_hertz
    );
    if let Some(output) = json {
        output.write(&serde_json::to_string_pretty(&report)?)?;
    }
    Ok(0)
}

fn measure() -> Result<Report> {
    let mut cbinfo = Cbinfo::open(&[])?;
    let later_hertz = rate_for(cbinfo.interrupt_cost_ns());
    let waiting = cbinfo.waiting()?;
    let (mut closed, mut open, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    beside(count_calls, |calls| -> Result<()> {
        let rate = |time| rate_during(calls, time);
        for _ in 0..WINDOWS {
            interrupt::check()?;
            closed.push(1e9 / rate(OPEN));
            waiting.open_window()?;
            open.push(1e9 / rate(OPEN));
            waiting.close_window()?;
        }
        let every = Duration::from_nanos(WINDOW_EVERY_NS);
        for _ in 0..PAIRS {
            interrupt::check()?;
            let (before, start) = (calls.load(Ordering::Relaxed), Instant::now());
            waiting.open_window()?;
            std::thread::sleep(Duration::from_nanos(WINDOW_NS));
            waiting.close_window()?;
            std::thread::sleep(every.saturating_sub(start.elapsed()));
            let done = (calls.load(Ordering::Relaxed) - before) as f64;
            let with = done / start.elapsed().as_secs_f64();
            losses.push(100.0 * (1.0 - with / rate(every)));
        }
        Ok(())
    })?;
    let sample_ns = sample_costs(waiting)?;
    let none = "nothing was measured";
    let sample_ns: Interval = estimate(&sample_ns).context(none)?.into();
    let pct = |hertz: u64| 100.0 * sample_ns.median * hertz as f64 / 1e9;
    Ok(Report {
        call_ns: median(&closed).context(none)?,
        call_in_window_ns: median(&open).context(none)?,
        windows_pct: estimate(&losses).context(none)?.into(),
        first_hertz: FIRST_HERTZ,
        first_pct: pct(FIRST_HERTZ),
        later_hertz,
        later_pct: pct(later_hertz),
        sample_ns,
    })
}

/// What a sample takes of a task, in ns: by the gaps that a loop sees in the clock.
fn sample_costs(waiting: &mut Waiting) -> Result<Vec<f64>> {
    let mut costs = Vec::new();
    beside(sum_gaps, |gaps_ns| -> Result<()> {
        for _ in 0..SAMPLED {
            interrupt::check()?;
            let without = rate_during(gaps_ns, SAMPLED_FOR);
            waiting.start_sampling(&[0], FIRST_HERTZ)?;
            let with = rate_during(gaps_ns, SAMPLED_FOR);
            waiting.stop_sampling();
            costs.push((with - without) / FIRST_HERTZ as f64);
        }
        Ok(())
    })?;
    Ok(costs)
}

/// By how much the number grows in a second.
fn rate_during(number: &AtomicU64, time: Duration) -> f64 {
    let (before, start) = (number.load(Ordering::Relaxed), Instant::now());
    std::thread::sleep(time);
    (number.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64()
}

/// Does `measure` while a thread on CPU 0 works, and notes its progress in the number.
fn beside<R>(
    work: impl FnOnce(&AtomicU64, &AtomicBool) + Send,
    measure: impl FnOnce(&AtomicU64) -> Result<R>,
) -> Result<R> {
    let (progress, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| -> nix::Result<()> {
            let mut first = CpuSet::new();
            first.set(0)?;
            sched_setaffinity(Pid::from_raw(0), &first)?;
            work(&progress, &ended);
            Ok(())
        });
        let measured = measure(&progress);
        ended.store(true, Ordering::Relaxed);
        match worker.join() {
            Ok(pinned) => pinned?,
            Err(_) => anyhow::bail!("the thread that is measured has ended"),
        }
        measured
    })
}

fn count_calls(progress: &AtomicU64, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        for _ in 0..CALLS_A_NOTE {
            std::hint::black_box(getppid());
        }
        progress.fetch_add(CALLS_A_NOTE, Ordering::Relaxed);
    }
}

fn sum_gaps(progress: &AtomicU64, ended: &AtomicBool) {
    let mut last = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        let now = Instant::now();
        let gap_ns = (now - last).as_nanos() as u64;
        if GAPS_NS.contains(&gap_ns) {
            progress.fetch_add(gap_ns, Ordering::Relaxed);
        }
        last = now;
    }
}
