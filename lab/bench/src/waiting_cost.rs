//! What it costs to see waiting: a system call of a task that is not followed, with and without the
//! windows in which barriers are counted; a sample of what a CPU does; and a wake-up at a barrier, by
//! the last thread that arrives there, of a program that is followed.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
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
use evenkeel_experiment::{AimRow, Document, Wanted, interrupt};

/// The version of [`Report`] as a document.
pub const FORMAT: u32 = 1;

/// How often each figure is measured.
#[derive(Debug, Clone, Copy)]
struct Pairs {
    /// A second with windows of the balancer, and one without.
    seconds: u32,
    /// An open window, and a closed one: of calls, and then of wake-ups.
    windows: u32,
    /// A while with samples, and one without.
    samples: u32,
}
const PAIRS: Pairs = Pairs { seconds: 20, windows: 100, samples: 20 };
/// Too few for an interval: the short form decides nothing.
const QUICK_PAIRS: Pairs = Pairs { seconds: 2, windows: 5, samples: 2 };
const OPEN: Duration = Duration::from_millis(20);
const SAMPLED_FOR: Duration = Duration::from_millis(500);
/// What is wanted: what windows cost a task that is not followed, in %; a window is open for so small a
/// part of each second that this is missed only where a call takes several times as long meanwhile, so
/// [`Report::call_more_ns`] is shown beside it; ...
const MOST_OF_BYSTANDER_PCT: f64 = 1.0;
/// ... what a wake-up at a barrier costs the task that makes it, in ns; ...
const MOST_OF_WAKEUP_NS: f64 = 300.0;
/// ... and what samples cost a CPU after the first two seconds, in %.
const MOST_OF_SAMPLES_PCT: f64 = 0.1;
/// The program that this process is, while its wake-ups are counted.
const OWN_PROGRAM: u32 = 1;
/// After so many calls the thread notes how far it is.
const CALLS_A_NOTE: u64 = 256;
/// The same in readings of the clock.
const READINGS_A_NOTE: u64 = 10_000;
/// So long may the thread that is measured take to begin.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Shorter gaps between two readings of the clock are no interrupt, longer ones no single interrupt.
const GAPS_NS: std::ops::Range<u64> = 400..60_000;

/// What it costs to see waiting.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// A bystander's getppid(2) while no window is open: the median.
    call_ns: f64,
    /// The same while a window is open.
    call_in_window_ns: f64,
    /// What such a call takes more while a window is open, in ns.
    call_more_ns: Interval,
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
    /// What a wake-up at a barrier takes more of its thread while a window is open, in ns.
    // The name of version 1 of the document, from when it was called so here.
    #[serde(rename = "heartbeat_ns")]
    wakeup_ns: Interval,
    /// What was wanted of the figures, and what came out.
    wanted: Vec<AimRow>,
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

/// Measures, prints, and writes what was asked for; the short form measures little, and decides nothing.
/// Returns the exit code.
///
/// # Errors
/// cbinfo cannot be loaded, or the kernel refuses what it attaches.
pub fn run(files: &Files, is_quick: bool) -> Result<i32> {
    let files = files.prepare()?;
    let report = measure(if is_quick { QUICK_PAIRS } else { PAIRS })?;
    let calls = format!(
        "getppid of a task that is not followed: {:.0} ns, {:.0} ns while a window is open, which is \
         {:.0} ns more ({:.0} to {:.0})",
        report.call_ns,
        report.call_in_window_ns,
        report.call_more_ns.median,
        report.call_more_ns.low,
        report.call_more_ns.high
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
    let wakeup = format!(
        "a wake-up at a barrier, counted while a window is open, takes {:.0} ns more ({:.0} to {:.0})",
        report.wakeup_ns.median, report.wakeup_ns.low, report.wakeup_ns.high
    );
    let title = "Benchmarks: what it costs to see how programs wait";
    let sentences = vec![calls, windows, sample, wakeup];
    let wanted = report.wanted.as_slice();
    let shown = Shown { title, table: None, sentences, wanted, charts: Vec::new() };
    files.write(&Document::new(FORMAT, &report), &shown)?;
    Ok(0)
}

/// What was wanted, of the costs of windows in %, of a wake-up in ns and of a sample in ns.
fn wanted(windows_pct: Estimate, wakeup_ns: Estimate, sample_ns: Estimate) -> Vec<AimRow> {
    let pct = |sample_ns: f64| 100.0 * sample_ns * SELDOM_HERTZ as f64 / 1e9;
    let samples_pct = Estimate {
        median: pct(sample_ns.median),
        lo: pct(sample_ns.lo),
        hi: pct(sample_ns.hi),
        ..sample_ns
    };
    let row = |case, metric, found, most| {
        AimRow::estimated(case, metric, "evenkeel", Some(found), Wanted::AtMost(most))
    };
    vec![
        row("task not followed", "its calls slower, in %", windows_pct, MOST_OF_BYSTANDER_PCT),
        row("task followed", "a wake-up at a barrier, in ns", wakeup_ns, MOST_OF_WAKEUP_NS),
        row("CPU sampled", "samples after 2 s, in %", samples_pct, MOST_OF_SAMPLES_PCT),
    ]
}

fn measure(pairs: Pairs) -> Result<Report> {
    let mut cbinfo = Cbinfo::open(&[])?;
    let waiting = cbinfo.waiting()?;
    let (mut closed, mut open, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    let mut more = Vec::new();
    let cpu = first_cpu()?;
    let every = Duration::from_nanos(WINDOW_EVERY_NS);
    let (of_windows, of_pairs) = (pairs.windows * 2 * OPEN, pairs.seconds * 2 * every);
    let of_samples = pairs.samples * 2 * SAMPLED_FOR;
    let all = of_windows + of_pairs + of_samples + of_windows;
    let display = Display::counting("s");
    let show = |done: Duration, now: &str| display.step(done.as_secs(), all.as_secs(), now);
    beside(cpu, count_calls, |calls| -> Result<()> {
        for window in 0..pairs.windows {
            interrupt::check()?;
            show(window * 2 * OPEN, "calls in windows");
            let closed_ns = 1e9 / calls.rate(OPEN);
            waiting.barriers().open_window()?;
            let open_ns = 1e9 / calls.rate(OPEN);
            waiting.barriers().close_window()?;
            closed.push(closed_ns);
            open.push(open_ns);
            more.push(open_ns - closed_ns);
        }
        for pair in 0..pairs.seconds {
            interrupt::check()?;
            show(of_windows + pair * 2 * every, "calls beside windows");
            let (with, closed) = calls.rate_during(|| -> Result<()> {
                waiting.barriers().open_window()?;
                std::thread::sleep(Duration::from_nanos(WINDOW_NS));
                waiting.barriers().close_window()?;
                std::thread::sleep(every - Duration::from_nanos(WINDOW_NS));
                Ok(())
            });
            closed?;
            losses.push(100.0 * (1.0 - with / calls.rate(every)));
        }
        Ok(())
    })?;
    let samples = sample_costs(waiting, cpu, pairs.samples, &|pair| {
        show(of_windows + of_pairs + pair * 2 * SAMPLED_FOR, "samples");
    })?;
    // The last, because it follows this process.
    let wakeups = wakeup_costs(&mut cbinfo, cpu, pairs.windows, &|window| {
        show(of_windows + of_pairs + of_samples + window * 2 * OPEN, "wake-ups");
    })?;
    display.finish();
    let (sample_ns, windows_pct) = (typical(&samples)?, typical(&losses)?);
    let wakeup_ns = typical(&wakeups)?;
    let pct = |hertz: u64| 100.0 * sample_ns.median * hertz as f64 / 1e9;
    Ok(Report {
        call_ns: typical(&closed)?.median,
        call_in_window_ns: typical(&open)?.median,
        call_more_ns: typical(&more)?.into(),
        windows_pct: windows_pct.into(),
        often_hertz: OFTEN_HERTZ,
        often_pct: pct(OFTEN_HERTZ),
        seldom_hertz: SELDOM_HERTZ,
        seldom_pct: pct(SELDOM_HERTZ),
        sample_ns: sample_ns.into(),
        wakeup_ns: wakeup_ns.into(),
        wanted: wanted(windows_pct, wakeup_ns, sample_ns),
    })
}

/// What a sample takes of a task, in ns: by the gaps that a loop sees in the clock. `show` gets the
/// number of pairs that are made.
fn sample_costs(
    waiting: &mut Waiting,
    cpu: usize,
    pairs: u32,
    show: &dyn Fn(u32),
) -> Result<Vec<f64>> {
    let mut costs = Vec::new();
    beside(cpu, sum_gaps, |gaps| -> Result<()> {
        for pair in 0..pairs {
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

/// What a wake-up at a barrier takes more of its thread while a window is open, in ns. This process is
/// followed from here on. `show` gets the number of pairs that are made.
fn wakeup_costs(
    cbinfo: &mut Cbinfo,
    cpu: usize,
    pairs: u32,
    show: &dyn Fn(u32),
) -> Result<Vec<f64>> {
    let own = std::process::id();
    let mut costs = Vec::new();
    beside(cpu, wake_all, |wakeups| -> Result<()> {
        cbinfo.follow(own, OWN_PROGRAM)?;
        let waiting = cbinfo.waiting()?;
        waiting.barriers().watch(own, OWN_PROGRAM)?;
        for pair in 0..pairs {
            interrupt::check()?;
            show(pair);
            let closed_ns = 1e9 / wakeups.rate(OPEN);
            let made = || wakeups.done.load(Ordering::Relaxed);
            let before = made();
            waiting.barriers().open_window()?;
            let opened = made();
            let open_ns = 1e9 / wakeups.rate(OPEN);
            let inside = made() - opened;
            let seen = waiting.barriers().close_window()?;
            // Of all words of this process, that of the thread has the most by far.
            let own = seen.wakes.iter().filter(|wakes| wakes.tgid == own);
            let counted = own.map(|wakes| wakes.count).max().unwrap_or(0);
            check_counted(counted, inside, made() - before)?;
            costs.push(open_ns - closed_ns);
        }
        Ok(())
    })?;
    Ok(costs)
}

/// Checks that a window counted the wake-ups that were made in it: those `inside`, which were noted
/// after it was opened and before it was closed, and no more than those `around` it.
fn check_counted(counted: u64, inside: u64, around: u64) -> Result<()> {
    // The thread notes its calls afterwards: the first note and the last one may be of other calls.
    let slack = 2 * CALLS_A_NOTE;
    ensure!(
        (inside.saturating_sub(slack)..=around + slack).contains(&counted),
        "{counted} wake-ups were counted in a window, and {inside} to {around} were made"
    );
    Ok(())
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

/// Does `measure` while a thread on this CPU works, and notes its progress. When this returns, the
/// thread has ended.
///
/// # Errors
/// The thread cannot work, or does not begin within [`START_PATIENCE`]; then nothing is measured.
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
        let started = wait_for_start(&progress, || worker.is_finished());
        let measured = started.and_then(|()| measure(&progress));
        ended.store(true, Ordering::Relaxed);
        match worker.join() {
            // Its own error says more than that nothing was noted.
            Ok(worked) => worked?,
            Err(_) => anyhow::bail!("the thread that is measured has ended"),
        }
        measured
    })
}

/// Waits until the thread that is measured has noted something.
fn wait_for_start(progress: &Progress, has_ended: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    // Not by what is done: a loop may see no gap for a while.
    while progress.spent_ns.load(Ordering::Relaxed) == 0 {
        interrupt::check()?;
        ensure!(!has_ended(), "the thread that is measured has ended before it did anything");
        ensure!(
            begun.elapsed() < START_PATIENCE,
            "the thread that is measured did nothing for {} s: its CPU is busy with other tasks",
            START_PATIENCE.as_secs()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
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

/// Wakes all waiters of a word again and again, as the last thread at a barrier does; there are none.
fn wake_all(progress: &Progress, ended: &AtomicBool) -> nix::Result<()> {
    let word = AtomicU32::new(0);
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    while !ended.load(Ordering::Relaxed) {
        for _ in 0..CALLS_A_NOTE {
            // SAFETY: a plain system call with the address of a word that lives.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX) };
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

#[cfg(test)]
mod tests {
    use evenkeel_experiment::Reached;

    use super::*;

    fn spread(median: f64, by: f64) -> Estimate {
        Estimate { median, lo: median - by, hi: median + by, coverage: 0.95 }
    }

    #[test]
    fn each_cost_is_judged_by_its_own_goal() {
        let reached = |windows_pct, wakeup_ns, sample_ns| {
            let rows = wanted(windows_pct, wakeup_ns, sample_ns);
            rows.iter().map(|row| row.reached).collect::<Vec<_>>()
        };
        let (good, bad) = (Some(Reached::Reached), Some(Reached::Missed));
        let undecided = Some(Reached::Undecided);
        // 4 us, 61 times a second, are 0.024 % of a CPU, and 40 us ten times as much.
        let all = reached(spread(0.4, 0.1), spread(200.0, 50.0), spread(4_000.0, 500.0));
        assert_eq!(all, [good, good, good]);
        let all = reached(spread(1.5, 0.1), spread(500.0, 50.0), spread(40_000.0, 500.0));
        assert_eq!(all, [bad, bad, bad]);
        let all = reached(spread(0.9, 0.2), spread(280.0, 50.0), spread(4_000.0, 500.0));
        assert_eq!(all, [undecided, undecided, good]);
    }

    #[test]
    fn the_short_form_decides_nothing() {
        let few = |count: u32| typical(&vec![0.1; count as usize]).unwrap();
        let Pairs { seconds, windows, samples } = QUICK_PAIRS;
        let rows = wanted(few(seconds), few(windows), few(samples));
        assert!(rows.iter().all(|row| row.reached == Some(Reached::Undecided)), "{rows:?}");
    }

    #[test]
    fn wake_ups_are_made_until_it_ends() {
        let made_in_all = AtomicU64::new(0);
        let work = |progress: &Progress, ended: &AtomicBool| -> nix::Result<()> {
            wake_all(progress, ended)?;
            made_in_all.store(progress.done.load(Ordering::Relaxed), Ordering::Relaxed);
            Ok(())
        };
        let measure = |progress: &Progress| Ok(progress.done.load(Ordering::Relaxed));
        let made = beside(first_cpu().unwrap(), work, measure).unwrap();
        assert!(made >= CALLS_A_NOTE, "{made} were made before anything was measured");
        // The thread stores this where it ends, so it has ended, and none is made after that.
        let made_in_all = made_in_all.into_inner();
        assert!(made_in_all >= made && made_in_all.is_multiple_of(CALLS_A_NOTE), "{made_in_all}");
    }

    #[test]
    fn beside_a_thread_that_cannot_work_nothing_is_measured() {
        let refused = |_: &Progress, _: &AtomicBool| Err(nix::errno::Errno::EPERM);
        let silent = |_: &Progress, _: &AtomicBool| Ok(());
        let why = |work: fn(&Progress, &AtomicBool) -> nix::Result<()>| {
            let measured = beside(first_cpu().unwrap(), work, |_| Ok(()));
            measured.unwrap_err().to_string()
        };
        assert!(why(refused).contains("EPERM"), "{}", why(refused));
        assert!(why(silent).contains("before it did anything"), "{}", why(silent));
    }

    #[test]
    fn all_wake_ups_of_a_window_are_counted() {
        let of = |counted| check_counted(counted, 10 * CALLS_A_NOTE, 20 * CALLS_A_NOTE).is_ok();
        let notes = [7, 8, 15, 22, 23].map(|notes| of(notes * CALLS_A_NOTE));
        assert_eq!(notes, [false, true, true, true, false]);
        assert!(check_counted(0, 0, 0).is_ok(), "another task had the CPU for all of the window");
    }
}
