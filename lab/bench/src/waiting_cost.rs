//! What it costs to see waiting: a system call of a task that is not followed, with and without the
//! windows in which barriers are counted; and a sample of what a CPU does.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_cbinfo::{Cbinfo, Waiting};
use evenkeel_host::{OFTEN_HERTZ, SELDOM_HERTZ, WINDOW_EVERY_NS, WINDOW_NS};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getppid};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cost_page::{Files, Shown};
use crate::stats::{Estimate, estimate};
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{Document, interrupt};

/// The version of [`Report`] as a document.
pub const FORMAT: u32 = 1;

/// Pairs of a second with windows and one without.
const PAIRS: u32 = 20;
/// Pairs of an open window and a closed one, and how long each is.
const WINDOWS: u32 = 100;
const OPEN: Duration = Duration::from_millis(20);
/// Pairs of a while with samples and one without.
const SAMPLED: u32 = 20;
const SAMPLED_FOR: Duration = Duration::from_millis(500);
/// After so many calls the thread notes how far it is.
const CALLS_A_NOTE: u64 = 256;
/// The same in readings of the clock.
const READINGS_A_NOTE: u64 = 10_000;
/// Shorter gaps between two readings of the clock are no interrupt, longer ones no single interrupt.
const GAPS_NS: std::ops::Range<u64> = 400..60_000;

/// What it costs to see waiting.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// A bystander's getppid(2) while no window is open: the median.
    call_ns: f64,
    /// The same while a window is open.
    call_in_window_ns: f64,
    /// What the windows of the balancer cost a loop of such calls, in per cent.
    windows_pct: Interval,
    /// One sample: the interrupt and the program in it, in ns.
    sample_ns: Interval,
    /// Samples a second in the first two seconds.
    often_hertz: u64,
    /// What they cost a CPU.
    often_pct: f64,
    /// Samples a second later.
    seldom_hertz: u64,
    /// What they cost a CPU.
    seldom_pct: f64,
}

/// A median with its 95 % interval.
#[derive(Debug, Serialize, JsonSchema)]
struct Interval {
    /// The median.
    median: f64,
    /// The interval's lower end.
    low: f64,
    /// Its upper end.
    high: f64,
}

impl From<Estimate> for Interval {
    fn from(estimate: Estimate) -> Self {
        Self { median: estimate.median, low: estimate.lo, high: estimate.hi }
    }
}

/// Measures, prints, and writes what was asked for. Returns the exit code.
///
/// # Errors
/// cbinfo cannot be loaded, or the kernel refuses what it attaches.
pub fn run(files: &Files) -> Result<i32> {
    let files = files.prepare()?;
    let report = measure()?;
    let calls = format!(
        "getppid of a task that is not followed: {:.0} ns, {:.0} ns while a window is open",
        report.call_ns, report.call_in_window_ns
    );
    let windows = format!(
        "windows of {} ms in each second cost it {:.2} % ({:.2} to {:.2})",
        WINDOW_NS / 1_000_000,
        report.windows_pct.median,
        report.windows_pct.low,
        report.windows_pct.high
    );
    let sample = format!(
        "a sample takes {:.1} us ({:.1} to {:.1}): {:.3} % of a CPU at {} Hz for the first two seconds, \
         {:.3} % at {} Hz later",
        report.sample_ns.median / 1e3,
        report.sample_ns.low / 1e3,
        report.sample_ns.high / 1e3,
        report.often_pct,
        report.often_hertz,
        report.seldom_pct,
        report.seldom_hertz
    );
    let title = "Benchmarks: what it costs to see how programs wait";
    let sentences = vec![calls, windows, sample];
    let shown = Shown { title, table: None, sentences, charts: Vec::new() };
    files.write(&Document::new(FORMAT, &report), &shown)?;
    Ok(0)
}

fn measure() -> Result<Report> {
    let mut cbinfo = Cbinfo::open(&[])?;
    let waiting = cbinfo.waiting()?;
    let (mut closed, mut open, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    let cpu = first_cpu()?;
    let every = Duration::from_nanos(WINDOW_EVERY_NS);
    let (of_windows, of_pairs) = (WINDOWS * 2 * OPEN, PAIRS * 2 * every);
    let all = of_windows + of_pairs + SAMPLED * 2 * SAMPLED_FOR;
    let display = Display::counting("s");
    let show = |done: Duration, now: &str| display.step(done.as_secs(), all.as_secs(), now);
    beside(cpu, count_calls, |calls| -> Result<()> {
        for window in 0..WINDOWS {
            interrupt::check()?;
            show(window * 2 * OPEN, "calls in windows");
            closed.push(1e9 / calls.rate(OPEN));
            waiting.open_window()?;
            open.push(1e9 / calls.rate(OPEN));
            waiting.close_window()?;
        }
        for pair in 0..PAIRS {
            interrupt::check()?;
            show(of_windows + pair * 2 * every, "calls beside windows");
            let (with, closed) = calls.rate_during(|| -> Result<()> {
                waiting.open_window()?;
                std::thread::sleep(Duration::from_nanos(WINDOW_NS));
                waiting.close_window()?;
                std::thread::sleep(every - Duration::from_nanos(WINDOW_NS));
                Ok(())
            });
            closed?;
            losses.push(100.0 * (1.0 - with / calls.rate(every)));
        }
        Ok(())
    })?;
    let sample_ns = sample_costs(waiting, cpu, &|pair| {
        show(of_windows + of_pairs + pair * 2 * SAMPLED_FOR, "samples");
    })?;
    display.finish();
    let sample_ns: Interval = typical(&sample_ns)?.into();
    let pct = |hertz: u64| 100.0 * sample_ns.median * hertz as f64 / 1e9;
    Ok(Report {
        call_ns: typical(&closed)?.median,
        call_in_window_ns: typical(&open)?.median,
        windows_pct: typical(&losses)?.into(),
        often_hertz: OFTEN_HERTZ,
        often_pct: pct(OFTEN_HERTZ),
        seldom_hertz: SELDOM_HERTZ,
        seldom_pct: pct(SELDOM_HERTZ),
        sample_ns,
    })
}

/// What a sample takes of a task, in ns: by the gaps that a loop sees in the clock. `show` gets the
/// number of pairs that are made.
fn sample_costs(waiting: &mut Waiting, cpu: usize, show: &dyn Fn(u32)) -> Result<Vec<f64>> {
    let mut costs = Vec::new();
    beside(cpu, sum_gaps, |gaps| -> Result<()> {
        for pair in 0..SAMPLED {
            interrupt::check()?;
            show(pair);
            let without = gaps.rate(SAMPLED_FOR);
            waiting.start_sampling(&[cpu as u32], OFTEN_HERTZ)?;
            let with = gaps.rate(SAMPLED_FOR);
            waiting.stop_sampling();
            costs.push((with - without) / OFTEN_HERTZ as f64);
        }
        Ok(())
    })?;
    Ok(costs)
}

/// How far the thread that is measured has come, as it notes it itself.
#[derive(Default)]
struct Progress {
    /// Calls, or ns of gaps.
    done: AtomicU64,
    /// Its CPU time: other programs may take turns with it.
    spent_ns: AtomicU64,
}

impl Progress {
    fn add(&self, done: u64) -> nix::Result<()> {
        let spent = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
        self.done.fetch_add(done, Ordering::Relaxed);
        self.spent_ns.store(Duration::from(spent).as_nanos() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// What is done in a second of CPU time, meanwhile; not a number if nothing was.
    fn rate_during<R>(&self, meanwhile: impl FnOnce() -> R) -> (f64, R) {
        let now = || (self.done.load(Ordering::Relaxed), self.spent_ns.load(Ordering::Relaxed));
        let before = now();
        let result = meanwhile();
        let after = now();
        let spent_s = (after.1 - before.1) as f64 / 1e9;
        ((after.0 - before.0) as f64 / spent_s, result)
    }

    fn rate(&self, time: Duration) -> f64 {
        self.rate_during(|| std::thread::sleep(time)).0
    }
}

/// The median, without what could not be measured.
fn typical(values: &[f64]) -> Result<Estimate> {
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    estimate(&finite).context("nothing was measured: the CPU was busy with other tasks")
}

/// The first CPU that this process may use.
fn first_cpu() -> Result<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("reading the own affinity")?;
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    cpus.next().context("this process may use no CPU")
}

/// Does `measure` while a thread on this CPU works, and notes its progress in the number.
fn beside<R>(
    cpu: usize,
    work: impl FnOnce(&Progress, &AtomicBool) -> nix::Result<()> + Send,
    measure: impl FnOnce(&Progress) -> Result<R>,
) -> Result<R> {
    let (progress, ended) = (Progress::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| -> nix::Result<()> {
            let mut only = CpuSet::new();
            only.set(cpu)?;
            sched_setaffinity(Pid::from_raw(0), &only)?;
            work(&progress, &ended)
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

fn count_calls(progress: &Progress, ended: &AtomicBool) -> nix::Result<()> {
    while !ended.load(Ordering::Relaxed) {
        for _ in 0..CALLS_A_NOTE {
            std::hint::black_box(getppid());
        }
        progress.add(CALLS_A_NOTE)?;
    }
    Ok(())
}

fn sum_gaps(progress: &Progress, ended: &AtomicBool) -> nix::Result<()> {
    while !ended.load(Ordering::Relaxed) {
        let (mut last, mut gaps_ns) = (Instant::now(), 0);
        for _ in 0..READINGS_A_NOTE {
            let now = Instant::now();
            let gap_ns = (now - last).as_nanos() as u64;
            if GAPS_NS.contains(&gap_ns) {
                gaps_ns += gap_ns;
            }
            last = now;
        }
        progress.add(gaps_ns)?;
    }
    Ok(())
}
