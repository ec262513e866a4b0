//! One round, in the guest: a scheduler is started, everything is measured under it, it is ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::callback::{Cost, Stopwatch};
use super::contestant::{AtWork, callbacks};
use super::hogs;
use super::metric::Metric;
use super::storm::Storm;
use super::wake::Latencies;
use crate::command::run;

/// What a round gives.
pub type Figures = BTreeMap<Metric, f64>;

/// Programs of the system that take part where they are installed.
pub const HACKBENCH: &str = "/usr/bin/hackbench";
/// See there.
pub const SYSBENCH: &str = "/usr/bin/sysbench";

/// How long hogs are watched that run on all CPUs, and on one.
const WATCH: Duration = Duration::from_millis(700);
const WATCH_ONE: Duration = Duration::from_millis(400);

/// Measures everything under the scheduler of this name (with `with_costs`, also what its callbacks
/// cost), and says it on standard output.
///
/// # Errors
/// The scheduler or a program cannot be started, fails, or ends before its time.
pub fn play(name: &str, with_costs: bool) -> Result<i32> {
    let cpus = std::thread::available_parallelism()?.get();
    let scheduler = AtWork::start(name)?;
    let mut figures = Figures::new();
    programs(cpus, &mut figures)?;
    storms(cpus, &mut figures)?;
    waking(cpus, &mut figures)?;
    sharing(cpus, &mut figures)?;
    if let Some(prefix) = callbacks(name).filter(|_| with_costs) {
        costs(prefix, cpus, &mut figures)?;
    }
    scheduler.end()?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(0)
}

fn programs(cpus: usize, figures: &mut Figures) -> Result<()> {
    if Path::new(HACKBENCH).exists() {
        figures.insert(Metric::Hackbench, hackbench(cpus)?);
    }
    if Path::new(SYSBENCH).exists() {
        let threads = format!("--threads={}", 2 * cpus);
        let cpu = ["cpu", "--events=400", "--cpu-max-prime=2000", &threads];
        figures.insert(Metric::SysbenchCpu, sysbench(&cpu)?);
        let threads = format!("--threads={}", 4 * cpus);
        let contend = ["threads", "--events=150", "--thread-yields=100", &threads];
        figures.insert(Metric::SysbenchThreads, sysbench(&contend)?);
    }
    Ok(())
}

fn storms(cpus: usize, figures: &mut Figures) -> Result<()> {
    // Children of each parent; in all, each storm takes about as long as the others.
    for (metric, storm, children) in [
        (Metric::ForkStorm, Storm::Fork, 10),
        (Metric::ExecStorm, Storm::Exec, 8),
        (Metric::JoinStorm, Storm::Join, 100),
    ] {
        figures.insert(metric, storm.rage(2 * cpus, children)?.as_secs_f64());
    }
    Ok(())
}

fn waking(cpus: usize, figures: &mut Figures) -> Result<()> {
    let latencies = Latencies::measure(cpus)?;
    for (metric, percent) in [(Metric::WakeP50, 50), (Metric::WakeP99, 99)] {
        let latency = latencies.percentile(percent).context("nobody was woken up")?;
        figures.insert(metric, latency);
    }
    Ok(())
}

fn sharing(cpus: usize, figures: &mut Figures) -> Result<()> {
    figures.insert(Metric::EvenOneMore, hogs::evenness(cpus + 1, WATCH)?);
    figures.insert(Metric::EvenFourfold, hogs::evenness(4 * cpus, WATCH)?);
    figures.insert(Metric::Weights, hogs::weights(0, WATCH_ONE)?);
    Ok(())
}

/// With a stopwatch around each callback: a run of its own, because that takes time, too.
fn costs(prefix: &str, cpus: usize, figures: &mut Figures) -> Result<()> {
    if !Path::new(HACKBENCH).exists() {
        return Ok(());
    }
    let own_ns = Stopwatch::own_ns()?;
    let around = |callback: &str| Stopwatch::around(&format!("{prefix}_{callback}"));
    let stopwatches = [
        (Metric::SelectCpu, around("select_cpu")?),
        (Metric::Enqueue, around("enqueue")?),
        (Metric::Dispatch, around("dispatch")?),
    ];
    hackbench(cpus)?;
    for (metric, stopwatch) in stopwatches {
        let cost: Cost = stopwatch.cost()?;
        if let Some(each_ns) = cost.each_ns() {
            figures.insert(metric, each_ns - own_ns);
        }
    }
    if let (Some(enqueue), Some(dispatch)) =
        (figures.get(&Metric::Enqueue), figures.get(&Metric::Dispatch))
    {
        figures.insert(Metric::EnqueueDispatch, enqueue + dispatch);
    }
    Ok(())
}

/// In s.
fn hackbench(cpus: usize) -> Result<f64> {
    let groups = cpus.div_ceil(4).to_string();
    let ended = run(Command::new(HACKBENCH).args(["-p", "-g", &groups, "-l", "100"]))?;
    number_after(&ended.output, "Time:").with_context(|| said_nothing(HACKBENCH, &ended.output))
}

/// In s.
fn sysbench(arguments: &[&str]) -> Result<f64> {
    let ended = run(Command::new(SYSBENCH).args(arguments).args(["--time=0", "run"]))?;
    number_after(&ended.output, "total time:")
        .with_context(|| said_nothing(SYSBENCH, &ended.output))
}

fn said_nothing(program: &str, output: &str) -> String {
    format!("{program} does not say how long it took: {output}")
}

/// The number behind these words; units may stick to it.
fn number_after(output: &str, words: &str) -> Option<f64> {
    let (_, rest) = output.split_once(words)?;
    rest.split_whitespace().next()?.trim_end_matches('s').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_in_what_programs_print() {
        let hackbench = "Running in process mode\nEach sender will pass\nTime: 0.123\n";
        assert_eq!(number_after(hackbench, "Time:"), Some(0.123));
        let sysbench = "General statistics:\n    total time:       0.0452s\n    events: 40\n";
        assert_eq!(number_after(sysbench, "total time:"), Some(0.0452));
        assert_eq!(number_after("Time: soon", "Time:"), None);
        assert_eq!(number_after("", "Time:"), None);
    }

    #[test]
    fn figures_survive_the_line() {
        let figures = Figures::from([(Metric::WakeP99, 0.25), (Metric::Hackbench, 1.5)]);
        let line = serde_json::to_string(&figures).unwrap();
        assert_eq!(line, r#"{"hackbench":1.5,"wake-p99":0.25}"#);
        assert_eq!(serde_json::from_str::<Figures>(&line).unwrap(), figures);
    }
}
