//! Measures how fast the simulator is, against aims. Times are CPU time of the thread, so that other
//! load does not count. Each is also given as a ratio to a reference loop that runs in turn with the
//! contestants.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_keel::Options;
use evenkeel_machine::Machine;
use evenkeel_stats::median;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::grid::{Grid, SweepError};
use crate::limits::STRICT;
use crate::outcome::Outcome;
use crate::program::{Op, TaskPlan, Workload};
use crate::scheduler::Scheduler;
use crate::simulation::{FaultPlan, MAX_EVENTS, Simulation};
use crate::sweep::{Shard, sweep};
use crate::workers::Workers;

/// Rounds in which all contestants take turns; medians are reported.
const ROUNDS: usize = 5;
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

/// The contestants: the engine alone, ...
const ENGINE: &str = "engine alone (fifo)";
/// ... and with the keel.
const KEEL: &str = "keel";
/// CPUs of the large machine.
const LARGE: u32 = 1024;

/// The simulator's speed with one scheduler on one machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speed {
    /// The contestant.
    pub name: String,
    /// CPUs of the simulated machine.
    pub cpus: usize,
    /// Whether the checkers saw all events.
    pub checked: bool,
    /// Events of one run.
    pub events: u64,
    /// CPU time of an event.
    pub ns_per_event: f64,
    /// Events per second.
    pub events_per_s: f64,
    /// Passes of the reference loop that take as long as an event.
    pub reference_passes: f64,
    /// Calls of the kernel's functions by the scheduler, for each event.
    pub calls_per_event: f64,
}

/// All measured figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speeds {
    /// Time of a pass of the reference loop: a step of a xorshift generator that depends on the step
    /// before.
    pub reference_ns: f64,
    /// By contestant.
    pub speeds: Vec<Speed>,
    /// Events per second with 1,024 CPUs divided by those with 128, at the same number of tasks per CPU.
    pub large_by_small: f64,
    /// Peak memory of the process with 1,024 CPUs and 10,000 tasks.
    pub resident_mib: f64,
    /// Processes of the parallel sweep.
    pub jobs: usize,
    /// Its speed-up over one process.
    pub sweep_speed_up: f64,
    /// The speed-up of the reference loop with as many threads, in the same rounds. The loop uses
    /// registers only, so this is the most that the CPUs can give.
    pub reference_gain: f64,
}

/// The aim of a figure, and the measured value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeedAim {
    /// The figure.
    pub figure: String,
    /// The bound.
    pub wanted: String,
    /// The measured value.
    pub found: f64,
    /// For a speed: passes of the reference loop that take as long as an event.
    pub reference_passes: Option<f64>,
    /// Whether the aim is reached.
    pub reached: bool,
}

impl SpeedAim {
    fn at_least(figure: &str, least: f64, found: f64) -> Self {
        let (figure, wanted) = (figure.to_owned(), format!(">= {least}"));
        Self { figure, wanted, found, reference_passes: None, reached: found >= least }
    }

    fn at_most(figure: &str, most: f64, found: f64) -> Self {
        let (figure, wanted) = (figure.to_owned(), format!("<= {most}"));
        Self { figure, wanted, found, reference_passes: None, reached: found <= most }
    }

    fn of(self, speed: Option<&Speed>) -> Self {
        Self { reference_passes: speed.map(|speed| speed.reference_passes), ..self }
    }

    /// The heads of the columns of [`SpeedAim::cells`].
    pub const HEADER: [&str; 5] =
        ["figure", "wanted", "found", "an event in reference passes", "reached"];

    /// As cells of a table.
    pub fn cells(&self) -> [String; 5] {
        let found = format!("{:.*}", if self.found < 10.0 { 2 } else { 0 }, self.found);
        let reached = if self.reached { "reached" } else { "missed" };
        let passes = self.reference_passes.map_or("-".to_owned(), |passes| format!("{passes:.1}"));
        [self.figure.clone(), self.wanted.clone(), found, passes, reached.to_owned()]
    }
}

impl Speed {
    /// The heads of the columns of [`Speed::cells`].
    pub const HEADER: [&str; 6] =
        ["what", "CPUs", "ns an event", "events/s", "reference passes", "calls an event"];

    /// As cells of a table.
    pub fn cells(&self) -> [String; 6] {
        [
            self.name.clone(),
            self.cpus.to_string(),
            format!("{:.0}", self.ns_per_event),
            format!("{:.0}", self.events_per_s),
            format!("{:.1}", self.reference_passes),
            format!("{:.1}", self.calls_per_event),
        ]
    }
}

impl Speeds {
    /// The aims.
    pub fn aims(&self) -> Vec<SpeedAim> {
        let of = |name: &str| self.speeds.iter().find(|speed| speed.name == name);
        let (engine, keel) = (of(ENGINE), of(KEEL));
        let millions = keel.map_or(0.0, |keel| keel.events_per_s / 1e6);
        vec![
            SpeedAim::at_most(
                "ns an event of the engine takes, with a trivial scheduler",
                100.0,
                engine.map_or(f64::INFINITY, |engine| engine.ns_per_event),
            )
            .of(engine),
            SpeedAim::at_least("million events a second, the keel on 128 CPUs", 2.0, millions)
                .of(keel),
            SpeedAim::at_least(
                "events a second on 1,024 CPUs, by those on 128 with as many tasks for each CPU",
                0.5,
                self.large_by_small,
            ),
            SpeedAim::at_least(
                "times as fast: a sweep of 1,000 small runs on two CPUs, by one CPU",
                1.8,
                self.sweep_speed_up,
            ),
            SpeedAim::at_most(
                "MiB of memory with 1,024 CPUs and 10,000 tasks",
                512.0,
                self.resident_mib,
            ),
        ]
    }

    /// All figures as a page of Markdown, without its title and origin.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let mut row = |cells: &[String]| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        };
        row(&SpeedAim::HEADER.map(str::to_owned));
        row(&["---", "---:", "---:", "---:", "---"].map(str::to_owned));
        self.aims().iter().for_each(|aim| row(&aim.cells()));
        let _ = writeln!(
            text,
            "\nA pass of the reference loop is a step of a xorshift generator that depends on the \
             step before; a pass took {:.2} ns. Times are CPU time: medians of {ROUNDS} rounds in \
             which all contestants took turns. Only the sweeps and the next figure are wall-clock \
             time.\n\n{} threads at once got {:.2} times as much of the reference loop done as one \
             alone, in the same rounds as the sweeps: the CPUs cannot give more.\n",
            self.reference_ns, self.jobs, self.reference_gain
        );
        let mut row = |cells: &[String]| {
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        };
        row(&Speed::HEADER.map(str::to_owned));
        row(&["---", "---:", "---:", "---:", "---:", "---:"].map(str::to_owned));
        self.speeds.iter().for_each(|speed| row(&speed.cells()));
        text
    }
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

/// Measures all figures; `note` gets what is measured next.
///
/// `worker` makes a command that calls [`work`](crate::work) with the grid of these arguments of `sim
/// sweep`.
///
/// # Errors
/// [`SweepError`], also if the rows cannot be written to `dir`.
pub fn bench(
    dir: &Path,
    worker: impl Fn(&[&OsStr]) -> Command + Sync,
    mut note: impl FnMut(&str),
) -> Result<Speeds, SweepError> {
    let keel = || Scheduler::Keel(Options::default());
    // The same simulated time for all, so that start-up costs the same share of each.
    let contestants = [
        (ENGINE, Scheduler::Fifo, 128, false),
        (KEEL, keel(), 128, false),
        ("keel, checked", keel(), 128, true),
        (KEEL, keel(), LARGE, false),
    ];
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); contestants.len()];
    let mut reference = Vec::new();
    let mut outcomes: Vec<Option<Outcome>> = vec![None; contestants.len()];
    for round in 0..ROUNDS {
        for (at, (name, scheduler, cpus, checked)) in contestants.iter().enumerate() {
            if round == 0 {
                note(&format!("{name}, {cpus} CPUs"));
            }
            let simulation = Simulation {
                machine: machine(*cpus)?,
                scheduler: scheduler.clone(),
                balancer: None,
                workload: Arc::new(workload(*cpus as usize * TASKS_PER_CPU, SIMULATED_MS)),
                faults: FaultPlan::default(),
                seed: 1,
                limits: checked.then_some(STRICT),
                records: false,
                max_events: MAX_EVENTS,
            };
            reference.push(reference_ns());
            let start = cpu_ns();
            let outcome = simulation.run()?;
            times[at].push((cpu_ns() - start) / outcome.events.max(1) as f64);
            outcomes[at] = Some(outcome);
        }
    }
    let resident_mib = resident_mib();
    let reference_ns = median(&reference).unwrap_or_default();
    let speeds: Vec<Speed> = contestants
        .iter()
        .zip(times.iter().zip(outcomes.iter().flatten()))
        .map(|((name, _, cpus, checked), (times, outcome))| {
            let ns_per_event = median(times).unwrap_or_default();
            Speed {
                name: (*name).to_owned(),
                cpus: *cpus as usize,
                checked: *checked,
                events: outcome.events,
                ns_per_event,
                events_per_s: 1e9 / ns_per_event,
                reference_passes: ns_per_event / reference_ns,
                calls_per_event: outcome.calls as f64 / outcome.events.max(1) as f64,
            }
        })
        .collect();
    let of = |cpus| {
        let found = speeds.iter().find(|s| s.cpus == cpus && s.name == KEEL);
        found.map_or(0.0, |speed| speed.events_per_s)
    };
    let large_by_small = of(LARGE as usize) / of(128);
    let Gains { jobs, sweep, reference } = gains(dir, &worker, &mut note)?;
    Ok(Speeds {
        reference_ns,
        speeds,
        large_by_small,
        resident_mib,
        jobs,
        sweep_speed_up: sweep,
        reference_gain: reference,
    })
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

/// Speed-ups of as many processes or threads as there are CPUs, over one.
struct Gains {
    jobs: usize,
    sweep: f64,
    reference: f64,
}

/// Measures the speed-up of a sweep of small runs, and in the same rounds that of the reference loop.
fn gains(
    dir: &Path,
    worker: &(impl Fn(&[&OsStr]) -> Command + Sync),
    note: &mut impl FnMut(&str),
) -> Result<Gains, SweepError> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let file = dir.join("machine.toml");
    std::fs::write(&file, machine_text(SWEPT_CPUS))
        .map_err(|source| SweepError::Rows { path: file.clone(), source })?;
    let grid = Grid {
        workloads: vec![SWEPT.to_owned()],
        machines: vec![Machine::from_toml(&file)?],
        schedulers: vec![Scheduler::Keel(Options::default())],
        aggregation: None,
        together: None,
        seeds: 1..RUNS + 1,
    };
    let seeds = RUNS.to_string();
    let out = dir.join("rows.jsonl");
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
    let sweep_s = |jobs: usize, round: usize| -> Result<f64, SweepError> {
        let out = dir.join(format!("rows-{jobs}-{round}.jsonl"));
        let start = Instant::now();
        let workers = Workers::Processes(jobs, &command);
        let swept = sweep(&grid, Shard { index: 1, of: 1 }, workers, &out, |_, _| {})?;
        let took = start.elapsed().as_secs_f64();
        match swept.lost.into_iter().next() {
            Some(lost) => Err(SweepError::Worker(std::io::Error::other(lost.to_string()))),
            None => Ok(took),
        }
    };
    note(&format!("sweeps of {RUNS} runs"));
    let (mut sweeps, mut references) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Adjacent in time, so that other load on the machine is the same for both.
        sweeps.push(sweep_s(1, round)? / sweep_s(jobs, round + ROUNDS)?);
        references.push(reference_gain(jobs));
    }
    let middle = |of: &[f64]| median(of).unwrap_or_default();
    Ok(Gains { jobs, sweep: middle(&sweeps), reference: middle(&references) })
}

/// The speed-up of the reference loop with this many threads over one.
fn reference_gain(jobs: usize) -> f64 {
    let work = || {
        black_box(reference_ns());
    };
    let time_s = |jobs: usize| {
        let start = Instant::now();
        std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
        start.elapsed().as_secs_f64()
    };
    jobs as f64 * time_s(1) / time_s(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds() -> Speeds {
        let speed = |name: &str, cpus, ns_per_event: f64| Speed {
            name: name.to_owned(),
            cpus,
            checked: false,
            events: 1000,
            ns_per_event,
            events_per_s: 1e9 / ns_per_event,
            reference_passes: ns_per_event / 2.0,
            calls_per_event: 1.5,
        };
        Speeds {
            reference_ns: 2.0,
            speeds: vec![
                speed(ENGINE, 128, 90.0),
                speed(KEEL, 128, 640.0),
                speed(KEEL, 1024, 800.0),
            ],
            large_by_small: 0.8,
            resident_mib: 513.0,
            jobs: 2,
            sweep_speed_up: 1.8,
            reference_gain: 1.99,
        }
    }

    #[test]
    fn aims_are_reached_or_missed_by_their_bounds() {
        let reached: Vec<bool> = speeds().aims().iter().map(|aim| aim.reached).collect();
        // The keel on 128 CPUs: 640 ns are 1.56 million events a second.
        assert_eq!(reached, [true, false, true, true, false]);
        assert_eq!(speeds().aims()[1].cells()[1..], [">= 2", "1.56", "320.0", "missed"]);
    }

    #[test]
    fn the_page_has_all_figures() {
        let text = speeds().markdown();
        for part in [
            "| >= 0.5 | 0.80 | - | reached |",
            "| <= 512 | 513 | - | missed |",
            "2.00 ns",
            "| keel | 1024 | 800 |",
            "2 threads at once got 1.99 times as much",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
    }
}
