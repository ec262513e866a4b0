//! One round, in the guest: everything that is measured under a contestant.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::metric;
use evenkeel_experiment::Figures;
use evenkeel_experiment::command::run;
use evenkeel_experiment::guest::callback::{Cost, Stopwatch};
use evenkeel_experiment::guest::storm::Storm;
use evenkeel_experiment::guest::wake::Latencies;
use evenkeel_experiment::guest::{Inside, hogs, number_after};

/// Programs of the system that take part where they are installed.
pub const HACKBENCH: &str = "/usr/bin/hackbench";
/// As [`HACKBENCH`].
pub const SYSBENCH: &str = "/usr/bin/sysbench";

/// How often hackbench sends: to measure its time, and to measure what callbacks cost. The second needs
/// many calls, because the mean is of a few long calls and many short ones.
const LOOPS: u32 = 100;
const MEASURED_LOOPS: u32 = 400;

/// How long hogs are watched that run on all CPUs, and on one.
const WATCH: Duration = Duration::from_millis(700);
const WATCH_ONE: Duration = Duration::from_millis(400);

/// Measures everything under the scheduler that is loaded.
///
/// # Errors
/// A program or a thread cannot be started, or fails.
pub fn measure(inside: &Inside) -> Result<Figures> {
    let mut figures = Figures::new();
    programs(inside.cpus, &mut figures)?;
    storms(inside.cpus, &mut figures)?;
    waking(inside.cpus, &mut figures)?;
    sharing(inside.cpus, &mut figures)?;
    if inside.measures_callbacks() {
        costs(inside.cpus, &mut figures)?;
    }
    Ok(figures)
}

fn programs(cpus: usize, figures: &mut Figures) -> Result<()> {
    if Path::new(HACKBENCH).exists() {
        figures.insert(metric::HACKBENCH.to_owned(), hackbench(cpus, LOOPS)?);
    }
    if Path::new(SYSBENCH).exists() {
        let threads = format!("--threads={}", 2 * cpus);
        let cpu = ["cpu", "--events=400", "--cpu-max-prime=2000", &threads];
        figures.insert(metric::SYSBENCH_CPU.to_owned(), sysbench(&cpu)?);
        let threads = format!("--threads={}", 4 * cpus);
        let contend = ["threads", "--events=150", "--thread-yields=100", &threads];
        figures.insert(metric::SYSBENCH_THREADS.to_owned(), sysbench(&contend)?);
    }
    Ok(())
}

fn storms(cpus: usize, figures: &mut Figures) -> Result<()> {
    // Children of each parent; in all, each storm takes about as long as the others.
    for (name, storm, children) in [
        (metric::FORK_STORM, Storm::Fork, 10),
        (metric::EXEC_STORM, Storm::Exec, 8),
        (metric::JOIN_STORM, Storm::Join, 100),
    ] {
        figures.insert(name.to_owned(), storm.rage(2 * cpus, children)?.as_secs_f64());
    }
    Ok(())
}

fn waking(cpus: usize, figures: &mut Figures) -> Result<()> {
    let latencies = Latencies::measure(cpus)?;
    for (name, percent) in [(metric::WAKE_P50, 50), (metric::WAKE_P99, 99)] {
        let latency = latencies.percentile(percent).context("no task was woken up")?;
        figures.insert(name.to_owned(), latency);
    }
    Ok(())
}

fn sharing(cpus: usize, figures: &mut Figures) -> Result<()> {
    figures.insert(metric::EVEN_ONE_MORE.to_owned(), hogs::evenness(cpus + 1, WATCH)?);
    figures.insert(metric::EVEN_FOURFOLD.to_owned(), hogs::evenness(4 * cpus, WATCH)?);
    figures.insert(metric::WEIGHTS.to_owned(), hogs::weights(0, WATCH_ONE)?);
    Ok(())
}

/// With a stopwatch around each callback that the scheduler has: a run of its own, because that takes
/// time, too. Without hackbench nothing is measured. Returns how often select_cpu was called.
///
/// # Errors
/// The kernel refuses a stopwatch, or hackbench fails.
pub fn costs(cpus: usize, figures: &mut Figures) -> Result<u64> {
    if !Path::new(HACKBENCH).exists() {
        return Ok(0);
    }
    let own_ns = Stopwatch::own_ns()?;
    let mut stopwatches = Vec::new();
    for (name, callback) in [
        (metric::SELECT_CPU, "select_cpu"),
        (metric::ENQUEUE, "enqueue"),
        (metric::DISPATCH, "dispatch"),
    ] {
        stopwatches.extend(Stopwatch::around(callback)?.map(|stopwatch| (name, stopwatch)));
    }
    hackbench(cpus, MEASURED_LOOPS)?;
    let (mut chosen, mut usual) = (0, 0.0);
    for (name, stopwatch) in stopwatches {
        let cost: Cost = stopwatch.cost()?;
        if name == metric::SELECT_CPU {
            chosen = cost.calls + cost.interrupted;
        }
        if let (Some(each_ns), Some(median_ns)) = (cost.each_ns(), cost.median_ns()) {
            figures.insert(name.to_owned(), each_ns - own_ns);
            if name != metric::SELECT_CPU {
                usual += median_ns - own_ns;
            }
        }
    }
    if let (Some(enqueue), Some(dispatch)) =
        (figures.get(metric::ENQUEUE), figures.get(metric::DISPATCH))
    {
        figures.insert(metric::ENQUEUE_DISPATCH.to_owned(), enqueue + dispatch);
        figures.insert(metric::USUAL.to_owned(), usual);
    }
    Ok(chosen)
}

/// Runs hackbench; returns its time in s.
fn hackbench(cpus: usize, loops: u32) -> Result<f64> {
    let (groups, loops) = (cpus.div_ceil(4).to_string(), loops.to_string());
    let ended = run(Command::new(HACKBENCH).args(["-p", "-g", &groups, "-l", &loops]))?;
    number_after(&ended.output, "Time:").with_context(|| said_nothing(HACKBENCH, &ended.output))
}

/// Runs sysbench; returns its time in s.
fn sysbench(arguments: &[&str]) -> Result<f64> {
    let ended = run(Command::new(SYSBENCH).args(arguments).args(["--time=0", "run"]))?;
    number_after(&ended.output, "total time:")
        .with_context(|| said_nothing(SYSBENCH, &ended.output))
}

fn said_nothing(program: &str, output: &str) -> String {
    format!("{program} does not say how long it took: {output}")
}
