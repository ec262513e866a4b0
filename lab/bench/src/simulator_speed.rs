//! `evenkeel-lab sim bench`: how fast the simulator is. Times of an event are CPU time of the thread, so
//! that other load does not count. Each is also given as a ratio to a reference loop that runs in turn
//! with the contestants.

use std::ffi::OsStr;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{
    Aim, AimRow, Case, Contestant, Experiment, Kind, List, Metric, Options, Plan, Report, Sample,
    Turn, Wanted, interrupt, measure,
};
use evenkeel_machine::Machine;
use evenkeel_sim::program::{Op, TaskPlan, Workload};
use evenkeel_sim::{
    FaultPlan, Grid, MAX_EVENTS, STRICT, Scheduler, Shard, Simulation, Workers, sweep,
};
use nix::time::{ClockId, clock_gettime};

/// Rounds in which all contestants take turns.
const ROUNDS: usize = 6;
/// Simulated time of each run.
const SIMULATED_MS: u64 = 1000;
/// Tasks for each CPU.
const TASKS_PER_CPU: usize = 10;
/// Passes of the reference loop.
const REFERENCE: u64 = 20_000_000;
/// Runs of each timed sweep.
const RUNS: u64 = 1000;
/// The workload of the sweeps.
const SWEPT: &str = "arrivals:tasks=100";
const SWEPT_CPUS: u32 = 32;

/// The contestants of the first case: the engine alone, ...
const ENGINE: &str = "engine alone (fifo), 128 CPUs";
/// ... and with the keel.
const KEEL: &str = "keel, 128 CPUs";
const LARGE: &str = "keel, 1024 CPUs";
/// Those of the second.
const ONE: &str = "one process";
const ALL: &str = "a process for each CPU";
/// The cases.
const EVENTS: &str = "10 tasks for each CPU";
const SWEEPS: &str = "sweeps of 1,000 small runs";

/// How a contestant runs.
#[derive(Debug, Clone)]
enum How {
    /// A simulation of a machine with so many CPUs, with the checkers or without.
    Events { scheduler: Scheduler, cpus: u32, is_checked: bool },
    /// Sweeps by so many processes at once.
    Sweep { jobs: usize },
}

const EVENT: &str = "event";
const SWEEP: &str = "sweep";
const LOOP: &str = "loop";
static METRICS: [Metric; 7] = [
    Metric::new(EVENT, Kind::Nanoseconds, "CPU time of an event"),
    Metric::new(SWEEP, Kind::Time, "wall-clock time of a sweep"),
    Metric::new(
        LOOP,
        Kind::Time,
        "wall-clock time of a reference loop for each CPU, in the same turns as the sweeps: the CPUs \
         cannot give more",
    ),
    Metric::told("rate", Kind::Throughput, "events a second of CPU time"),
    Metric::told(
        "passes",
        Kind::Factor,
        "passes of the reference loop that take as long as an event",
    ),
    Metric::told("pass", Kind::Nanoseconds, "CPU time of a pass"),
    Metric::told(
        "calls",
        Kind::Factor,
        "calls of the kernel's functions by the scheduler, an event",
    ),
];

fn experiment(jobs: usize) -> Experiment<How> {
    let keel = || Scheduler::Keel(evenkeel_keel::Options::default());
    let events = |scheduler, cpus, is_checked| How::Events { scheduler, cpus, is_checked };
    let checked = "keel, checked, 128 CPUs";
    Experiment {
        name: "sim",
        title: "Benchmarks: the simulator",
        intro: "",
        case_word: "load",
        contestants: vec![
            Contestant::new(ENGINE, "a trivial scheduler", events(Scheduler::Fifo, 128, false)),
            Contestant::new(KEEL, "without checkers", events(keel(), 128, false)),
            Contestant::new(checked, "the checkers see all events", events(keel(), 128, true)),
            Contestant::new(LARGE, "as many tasks for each CPU", events(keel(), 1024, false)),
            Contestant::new(ONE, "all runs in turn", How::Sweep { jobs: 1 }),
            Contestant::new(ALL, "as many runs at once", How::Sweep { jobs }),
        ],
        metrics: &METRICS,
        aims: vec![
            Aim::new(ENGINE, EVENT, Wanted::AtMost(100.0)),
            Aim::new(KEEL, "rate", Wanted::AtLeast(2e6)),
            Aim::new(LARGE, EVENT, Wanted::Ratio(0.5, KEEL)),
            Aim::new(ALL, SWEEP, Wanted::Ratio(1.8, ONE)),
            Aim::new(ALL, LOOP, Wanted::Known(ONE)),
        ],
        course: "Contestants take turns. A pass of the reference loop is a step of a xorshift generator \
                 that depends on the step before; the loop runs before each simulation.",
        reading: "",
        lists: vec![List {
            title: "Loads",
            items: vec![
                (EVENTS, "tasks that work and sleep in turn, for a second"),
                (SWEEPS, "`arrivals:tasks=100` on 32 CPUs"),
            ],
        }],
    }
}

/// Measures all figures. `worker` makes a command that calls [`evenkeel_sim::work`] with the grid of
/// these arguments of `sim sweep`. Returns the exit code.
///
/// # Errors
/// Something cannot be simulated, or a file cannot be written.
pub fn run(options: &Options, worker: impl Fn(&[&OsStr]) -> Command + Sync) -> Result<i32> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let experiment = experiment(jobs);
    experiment.run(options, || {
        let dir = tempfile::tempdir().context("cannot make a directory for the rows of a sweep")?;
        let case = |name: &str, contestants: &[Contestant<How>]| Case {
            name: name.to_owned(),
            contestants: contestants.iter().map(|one| one.name.clone()).collect(),
            ..Case::default()
        };
        let (events, sweeps) = experiment.contestants.split_at(4);
        let cases = [case(EVENTS, events), case(SWEEPS, sweeps)];
        let mut turns = 0;
        let mut resident = None;
        let mut run = |turn: &Turn<'_, How>| {
            interrupt::check()?;
            turns += 1;
            match turn.contestant.map(|contestant| &contestant.how) {
                None => bail!("there is no reference run"),
                Some(How::Events { scheduler, cpus, is_checked }) => {
                    let sample = events_of(scheduler, *cpus, *is_checked);
                    resident = Some(resident_mib());
                    sample
                }
                Some(How::Sweep { jobs }) => {
                    let out = dir.path().join(format!("rows-{turns}.jsonl"));
                    let seconds = sweep_s(dir.path(), &worker, *jobs, &out)?;
                    Ok(Sample::new([(SWEEP, seconds), (LOOP, loops_s(*jobs))]))
                }
            }
        };
        let (plan, display) = (Plan::fixed(options.runs.unwrap_or(ROUNDS)), Display::new());
        let records = measure(&experiment, &cases, &plan, &mut run, &display)?;
        display.finish();
        let mut report = Report::new(&experiment, &records, &plan, &options.command);
        let memory = "MiB of memory with 1,024 CPUs and 10,000 tasks";
        let mib = resident.unwrap_or_default();
        report.aims.push(AimRow::counted(EVENTS, memory, LARGE, mib, Wanted::AtMost(512.0)));
        Ok(report)
    })
}

/// One simulation, beside the reference loop.
fn events_of(scheduler: &Scheduler, cpus: u32, is_checked: bool) -> Result<Sample> {
    let simulation = Simulation {
        machine: machine(cpus)?,
        scheduler: scheduler.clone(),
        balancer: None,
        // The same simulated time for all, so that start-up costs the same share of each.
        workload: Arc::new(workload(cpus as usize * TASKS_PER_CPU, SIMULATED_MS)),
        faults: FaultPlan::default(),
        seed: 1,
        limits: is_checked.then_some(STRICT),
        records: false,
        max_events: MAX_EVENTS,
    };
    let pass_ns = reference_ns();
    let start = cpu_ns();
    let outcome = simulation.run()?;
    let events = outcome.events.max(1) as f64;
    let event_ns = (cpu_ns() - start) / events;
    Ok(Sample::new([
        (EVENT, event_ns),
        ("rate", 1e9 / event_ns),
        ("passes", event_ns / pass_ns),
        ("pass", pass_ns),
        ("calls", outcome.calls as f64 / events),
    ]))
}

/// Equal CPUs, eight to a cache and 32 to a node.
fn machine(cpus: u32) -> Result<Machine, evenkeel_machine::Error> {
    Machine::parse_toml(&machine_text(cpus), "bench")
}

/// The same machine as the text of a machine file.
fn machine_text(cpus: u32) -> String {
    let nodes = cpus.div_ceil(32);
    let list = |first: u32, count: u32| format!("{first}-{}", first + count - 1);
    let caches: Vec<String> =
        (0..cpus / 8).map(|cache| format!("\"{}\"", list(cache * 8, 8))).collect();
    let rows: Vec<String> = (0..nodes)
        .map(|node| {
            let distances: Vec<&str> =
                (0..nodes).map(|to| if to == node { "10" } else { "20" }).collect();
            let cpus = list(node * 32, 32);
            format!("{{ id = {node}, cpus = \"{cpus}\", distances = [{}] }}", distances.join(", "))
        })
        .collect();
    format!(
        "name = \"{cpus} CPUs\"\nkinds = [{{ cpus = \"{}\", capability = 1024 }}]\nllcs = [{}]\n\
         nodes = [{}]\n",
        list(0, cpus),
        caches.join(", "),
        rows.join(", ")
    )
}

/// Tasks that work and sleep in turn.
fn workload(tasks: usize, ms: u64) -> Workload {
    const MS: u64 = 1_000_000;
    let ops = vec![Op::RunAbout(MS), Op::SleepAbout(8 * MS), Op::Goto(0)];
    let worker = TaskPlan::new("worker", ops);
    let plan = |at: usize| TaskPlan { space: (at / 8) as u32, ..worker.clone() };
    Workload {
        name: "bench".to_owned(),
        tasks: (0..tasks).map(plan).collect(),
        duration_ns: ms * MS,
        ..Workload::default()
    }
}

/// The CPU time of this thread in ns.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    time.unwrap_or_default().as_nanos() as f64
}

/// Time of a pass of the reference loop.
fn reference_ns() -> f64 {
    let start = cpu_ns();
    let mut x = black_box(0x9e37_79b9_7f4a_7c15u64);
    for _ in 0..REFERENCE {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
    (cpu_ns() - start) / REFERENCE as f64
}

/// The peak memory of this process.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

/// A sweep of small runs by so many processes, in s.
fn sweep_s(
    dir: &Path,
    worker: &(impl Fn(&[&OsStr]) -> Command + Sync),
    jobs: usize,
    out: &Path,
) -> Result<f64> {
    let file = dir.join("machine.toml");
    std::fs::write(&file, machine_text(SWEPT_CPUS))
        .with_context(|| format!("cannot write {}", file.display()))?;
    let grid = Grid {
        workloads: vec![SWEPT.to_owned()],
        machines: vec![Machine::from_toml(&file)?],
        schedulers: vec![Scheduler::Keel(evenkeel_keel::Options::default())],
        aggregation: None,
        together: None,
        seeds: 1..RUNS + 1,
    };
    let seeds = RUNS.to_string();
    let words: [&OsStr; 7] = [
        SWEPT.as_ref(),
        "--machine".as_ref(),
        file.as_ref(),
        "--seeds".as_ref(),
        seeds.as_ref(),
        "--out".as_ref(),
        out.as_ref(),
    ];
    let command = || worker(&words);
    let start = Instant::now();
    let workers = Workers::Processes(jobs, &command);
    let swept = sweep(&grid, Shard { index: 1, of: 1 }, workers, out, |_, _| {})?;
    match swept.lost.first() {
        Some(lost) => bail!("{lost}"),
        None => Ok(start.elapsed().as_secs_f64()),
    }
}

/// The time of one reference loop for each CPU, so many at once, in s.
fn loops_s(jobs: usize) -> f64 {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    for _ in 0..all.div_ceil(jobs) {
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| black_box(reference_ns()));
            }
        });
    }
    start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_its_time_and_calls_and_every_aim_its_figure() {
        let sample = events_of(&Scheduler::Fifo, 32, false).unwrap();
        for figure in [EVENT, "rate", "passes", "pass", "calls"] {
            assert!(sample.get(figure).is_some_and(|value| value > 0.0), "{figure}: {sample:?}");
        }
        let experiment = experiment(2);
        for aim in &experiment.aims {
            assert!(experiment.metric(aim.metric).is_some() && loops_s(1) > 0.0);
            experiment.contestant(aim.contestant).unwrap();
            experiment.contestant(aim.wanted.against().unwrap_or(KEEL)).unwrap();
        }
    }
}
