//! Wake-up latencies: of a real-time thread on each CPU, by cyclictest, and of ordinary threads that
//! sleep until a time.

use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use evenkeel_experiment::command::run;

/// Debian's rt-tests have it.
pub const CYCLICTEST: &str = "/usr/bin/cyclictest";
/// How often each real-time thread wakes up, and with what pause: in the six rounds of `make
/// bench-zone` more than 10,000 times.
const WAKEUPS: &str = "1700";
const INTERVAL_US: &str = "1000";
/// cyclictest's histogram has a line for each microsecond, up to this. Of what is longer it tells how
/// often it was seen on each CPU, and each CPU's longest.
const LONGEST_US: &str = "20000";
/// The time between two wake-ups of an ordinary thread.
const SLEEP: Duration = Duration::from_micros(1_300);
/// How often each of them wakes up, for about as long.
pub const SLEEPS: usize = 1_300;

/// From the time at which a thread was to wake up until it ran, in s.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// From latencies in s, each with how often it was seen.
    fn of(seen: &[(f64, u64)]) -> Option<Self> {
        let count: u64 = seen.iter().map(|(_, times)| times).sum();
        let sum: f64 = seen.iter().map(|(value, times)| value * *times as f64).sum();
        let rank = (count * 99).div_ceil(100);
        let mut so_far = 0;
        let p99 = seen.iter().find(|(_, times)| {
            so_far += times;
            so_far >= rank
        });
        let max = seen.iter().rev().find(|(_, times)| *times > 0)?;
        Some(Self { mean: sum / count as f64, p99: p99?.0, max: max.0 })
    }
}

/// A thread of the highest real-time priority on each CPU; `None`: cyclictest is not installed.
///
/// # Errors
/// It fails, or does not say what it found.
pub fn real_time() -> Result<Option<Latency>> {
    if !Path::new(CYCLICTEST).exists() {
        return Ok(None);
    }
    let mut command = Command::new(CYCLICTEST);
    command.args(["--quiet", "--mlockall", "--smp", "--priority=99", "--policy=fifo"]);
    command.args(["--interval", INTERVAL_US, "--loops", WAKEUPS]);
    // In a file, because the histogram is longer than what is kept of a program's output.
    let file = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    command.args(["--histogram", LONGEST_US]).arg("--histfile").arg(file.path());
    let ended = run(&mut command)?;
    let seen = histogram(&std::fs::read_to_string(file.path())?);
    match Latency::of(&seen) {
        Some(latency) => Ok(Some(latency)),
        None => bail!("{CYCLICTEST} found nothing: {}", ended.output),
    }
}

/// The lines of cyclictest's histogram, all CPUs together: a time in microseconds, and how often it was
/// seen on each CPU. What was too long for the histogram counts as long as its CPU's longest: rather too
/// much than nothing.
fn histogram(output: &str) -> Vec<(f64, u64)> {
    let lines = output.lines().filter(|line| !line.starts_with('#'));
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let us: f64 = words.next()?.parse().ok()?;
        let times: Option<u64> = words.map(|word| word.parse::<u64>().ok()).sum();
        Some((us * 1e-6, times?))
    };
    let mut seen: Vec<(f64, u64)> = lines.filter_map(line).collect();
    let longest = of_each_cpu(output, "# Max Latencies:");
    let overflows = of_each_cpu(output, "# Histogram Overflows:");
    let too_long = longest.into_iter().map(|us| us as f64 * 1e-6).zip(overflows);
    seen.extend(too_long.filter(|(_, times)| *times > 0));
    seen.sort_by(|a, b| a.0.total_cmp(&b.0));
    seen
}

/// The numbers in the line of cyclictest's output that begins so, one for each CPU.
fn of_each_cpu(output: &str, begins: &str) -> Vec<u64> {
    let line = output.lines().find_map(|line| line.strip_prefix(begins)).unwrap_or_default();
    line.split_whitespace().map_while(|word| word.parse().ok()).collect()
}

/// Ordinary threads that sleep until a time.
pub struct Sleepers(Vec<JoinHandle<Vec<Duration>>>);

impl Sleepers {
    /// Starts so many, each of which sleeps so often.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(count: usize, sleeps: usize) -> Result<Self> {
        let sleeper = move || late(sleeps);
        let spawn =
            |_| std::thread::Builder::new().spawn(sleeper).context("cannot start a sleeper");
        Ok(Self((0..count).map(spawn).collect::<Result<_>>()?))
    }

    /// How late they were.
    ///
    /// # Errors
    /// None has slept.
    pub fn end(self) -> Result<Latency> {
        let all = self.0.into_iter().flat_map(|thread| thread.join().unwrap_or_default());
        let mut all: Vec<(f64, u64)> = all.map(|late| (late.as_secs_f64(), 1)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        Latency::of(&all).context("no thread has slept")
    }
}

/// How late each wake-up was.
fn late(sleeps: usize) -> Vec<Duration> {
    // SAFETY: plain numbers. Otherwise the kernel lets an ordinary thread sleep 50 us longer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let sleep = |_| {
        let until = Instant::now() + SLEEP;
        std::thread::sleep(SLEEP);
        until.elapsed()
    };
    (0..sleeps).map(sleep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_read_over_all_cpus() {
        let output = "# /dev/cpu_dma_latency set to 0us\n# Histogram\n000000 000000\t000000\n\
                      000003 000090\t000008\n000012 000001\t000000\n000040 000000\t000001\n\
                      # Total: 000000091 000000009\n# Max Latencies: 00012 00040\n";
        let seen = histogram(output);
        assert_eq!(seen.len(), 4);
        let latency = Latency::of(&seen).unwrap();
        assert!((latency.mean - 3.46e-6).abs() < 1e-12, "{latency:?}");
        assert!((latency.p99 - 12e-6).abs() < 1e-12, "{latency:?}");
        assert!((latency.max - 40e-6).abs() < 1e-12, "{latency:?}");
        assert_eq!(Latency::of(&histogram("T: 0\n")), None);
    }

    /// Two waits of the first CPU were longer than the histogram, one of them 31 ms.
    #[test]
    fn latencies_beyond_the_histogram_count() {
        let output = "# Histogram\n000003 000090\t000098\n# Total: 000000090 000000098\n\
                      # Min Latencies: 00003 00003\n# Avg Latencies: 00600 00003\n\
                      # Max Latencies: 31000 00003\n# Histogram Overflows: 00002 00000\n\
                      # Histogram Overflow at cycle number:\n# Thread 0: 00010 00011\n";
        let latency = Latency::of(&histogram(output)).unwrap();
        assert!((latency.max - 31e-3).abs() < 1e-9, "{latency:?}");
        let mean = (188.0 * 3e-6 + 2.0 * 31e-3) / 190.0;
        assert!((latency.mean - mean).abs() < 1e-9, "{latency:?}");
        // 189 of 190 are 99 of 100: the second longest.
        assert!((latency.p99 - 31e-3).abs() < 1e-9, "{latency:?}");
    }

    #[test]
    fn no_thread_wakes_before_its_time() {
        let latency = Sleepers::start(2, 60).unwrap().end().unwrap();
        assert!(latency.mean <= latency.max && latency.p99 <= latency.max);
    }
}
