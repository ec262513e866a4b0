//! What `evenkeel run` and `run --shares` do on machines that are larger than those at hand: half of the
//! CPUs are fast, the others run at half of the pace, and a program waits at barriers every 1 ms to 1 s.
//!
//! `run` is the policy `lag` in the closed loop in which it is tested (product/capability/tests): a
//! model of a machine with a fair scheduler on each CPU. Of `--shares` the weights and the division of
//! the iterations are the product's; a phase takes as long as its slowest thread. Both are calculated,
//! not measured: the same figures come out on every machine.

// The model is that of tests, which may expect.
#[allow(clippy::expect_used, reason = "a plan for an invalid snapshot is a bug of the model")]
#[path = "../../../product/capability/tests/common/mod.rs"]
mod common;

use std::collections::BTreeSet;

use anyhow::Result;
use evenkeel_capability::{
    CpuView, LagParameters, Places, Policy, Snapshot, TaskId, TaskView, Weighing,
};
use evenkeel_experiment::cells::Cells;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{AimRow, Document, Wanted, interrupt};
use evenkeel_machine::CpuSet;
use evenkeel_shares::partition::divide;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cost_page::{Files, Shown};
use common::model::{Core, Program, run as run_model};
use common::{INTERVAL_NS, MS};

/// The version of [`Report`] as a document.
pub const FORMAT: u32 = 1;

/// CPUs of the machines.
static CPUS: [usize; 3] = [16, 64, 128];
/// The times between barriers, on the fast CPUs.
const PHASES_MS: [u64; 4] = [1, 10, 100, 1_000];
/// How waiting threads wait, and what the first thread has to do more than every other, in %.
const KINDS: [Kind; 4] = [
    Kind { sleeps: false, more_percent: 0 },
    Kind { sleeps: true, more_percent: 0 },
    Kind { sleeps: false, more_percent: 30 },
    Kind { sleeps: true, more_percent: 30 },
];
/// A program has phases for about so long on fast CPUs, and two at least.
const LASTS_MS: u64 = 3_000;
const QUICK_LASTS_MS: u64 = 500;
/// The same under `--shares`: long phases begin with equal shares, because weights change only between
/// two regions.
const SHARED_LASTS_MS: u64 = 30_000;
/// Iterations of a loop for each CPU.
const ITERATIONS: u64 = 100;
/// What is wanted: a loss that is no larger than the margin of all claims of equivalence, ...
const LEAST_GAIN: f64 = 0.98;
/// ... and so much of the pace of all CPUs together.
const LEAST_OF_BOUND: f64 = 0.93;

/// What the threads of a program do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    sleeps: bool,
    more_percent: u64,
}

impl Kind {
    fn name(self) -> String {
        let waiting = if self.sleeps { "sleeps" } else { "spins" };
        let work = if self.more_percent == 0 { "even" } else { "uneven" };
        format!("{waiting}, {work}")
    }
}

/// The figures of one time between barriers on one machine.
#[derive(Debug, Serialize, JsonSchema)]
struct Row {
    /// CPUs of the machine: half of them are fast, the others run at half of the pace.
    cpus: usize,
    /// The time between two barriers, on the fast CPUs.
    phase_ms: u64,
    /// How many times as fast as without `evenkeel run`, by kind.
    gains: Vec<f64>,
    /// Moves of each of these runs.
    moves: Vec<usize>,
    /// What the program reaches under `--shares`, of the pace of all CPUs together.
    of_bound: f64,
}

/// What `run` and `run --shares` do on large machines, calculated.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// How threads wait, and whether their work is even: the order of the figures in each row.
    kinds: Vec<String>,
    /// Each machine with each time between barriers.
    rows: Vec<Row>,
    /// What was wanted of each machine, by its worst program.
    wanted: Vec<AimRow>,
}

/// Calculates, prints, and writes what was asked for; the short form has the smallest machine and short
/// programs only. Returns the exit code.
///
/// # Errors
/// A file cannot be written, or a signal asked for the end.
pub fn run(files: &Files, is_quick: bool) -> Result<i32> {
    let files = files.prepare()?;
    let (machines, lasts_ms) =
        if is_quick { (&CPUS[..1], QUICK_LASTS_MS) } else { (&CPUS[..], LASTS_MS) };
    let display = Display::counting("programs");
    let all = machines.len() * PHASES_MS.len();
    let mut rows = Vec::new();
    for cpus in machines {
        for phase_ms in PHASES_MS {
            interrupt::check()?;
            let now = format!("{cpus} CPUs, phases of {phase_ms} ms");
            display.step(rows.len() as u64, all as u64, &now);
            rows.push(row(*cpus, phase_ms, lasts_ms));
        }
    }
    display.finish();
    let kinds = KINDS.map(Kind::name).to_vec();
    let wanted = wanted(&rows);
    let report = Report { kinds, rows, wanted };
    files.write(&Document::new(FORMAT, &report), &shown(&report))?;
    Ok(0)
}

/// What was wanted of each machine, by its worst program. Figures are calculated, so one value decides.
fn wanted(rows: &[Row]) -> Vec<AimRow> {
    let machines: BTreeSet<usize> = rows.iter().map(|row| row.cpus).collect();
    let of_machine = |cpus: usize| {
        let case = format!("{cpus} CPUs");
        let its = || rows.iter().filter(move |row| row.cpus == cpus);
        let gain = its().flat_map(|row| row.gains.iter().copied()).reduce(f64::min);
        let of_bound = its().map(|row| row.of_bound).reduce(f64::min);
        let aim = |figure: &str, contestant: &str, found: f64, least: f64| {
            AimRow::counted(&case, figure, contestant, found, Wanted::AtLeast(least))
        };
        let gain = gain.map(|gain| aim("least gain", "run", gain, LEAST_GAIN));
        let of_bound =
            of_bound.map(|part| aim("least of the bound", "run --shares", part, LEAST_OF_BOUND));
        gain.into_iter().chain(of_bound).collect::<Vec<_>>()
    };
    machines.into_iter().flat_map(of_machine).collect()
}

fn shown(report: &Report) -> Shown<'_> {
    let mut header = vec!["CPUs".to_owned(), "phase in ms".to_owned()];
    header.extend(report.kinds.iter().cloned());
    header.push("--shares, of the bound".to_owned());
    let cells = |row: &Row| {
        let mut cells = vec![row.cpus.to_string(), row.phase_ms.to_string()];
        let kinds = row.gains.iter().zip(&row.moves);
        cells.extend(kinds.map(|(gain, moves)| format!("{gain:.3}, {moves} moves")));
        cells.push(format!("{:.3}", row.of_bound));
        cells
    };
    let table = Cells {
        numbers: (0..header.len()).collect(),
        rows: report.rows.iter().map(cells).collect(),
        header,
    };
    let sentence = format!(
        "Calculated, not measured. Half of the CPUs run at half of the pace. By how threads wait and \
         whether the first one has 30 % more to do: how many times as fast as without `evenkeel run`. \
         The bound of `run --shares` is the pace of all CPUs together, over {} s.",
        SHARED_LASTS_MS / 1_000
    );
    Shown {
        title: "Benchmarks: large machines, calculated",
        table: Some(table),
        sentences: vec![sentence],
        wanted: &report.wanted,
        charts: Vec::new(),
    }
}

fn row(cpus: usize, phase_ms: u64, lasts_ms: u64) -> Row {
    let cores = hybrid(cpus);
    let (gains, moves) =
        KINDS.into_iter().map(|kind| gain(&cores, phase_ms, lasts_ms, kind)).unzip();
    Row { cpus, phase_ms, gains, moves, of_bound: of_bound(&cores, phase_ms) }
}

/// The first half of the CPUs at full speed, the others at half of it.
fn hybrid(cpus: usize) -> Vec<Core> {
    let speed = |index| if index < cpus / 2 { 1024 } else { 512 };
    (0..cpus).map(|index| Core { speed: speed(index), left_ppm: 1_000_000, hogs: 0 }).collect()
}

/// How many times as fast a program is under `evenkeel run`, and how many moves that takes. It has a
/// thread for each CPU, that with more to do on a fast one from the start.
fn gain(cores: &[Core], phase_ms: u64, lasts_ms: u64, kind: Kind) -> (f64, usize) {
    let program = Program {
        tasks: cores.len(),
        work_ns: phase_ms * MS,
        phases: (lasts_ms / phase_ms).max(2) as u32,
        is_seen: true,
        sleeps: kind.sleeps,
        more_percent: kind.more_percent,
        ..Program::default()
    };
    let alone = run_model(cores, &program, None, |_, _| {});
    let policy = Policy::Lag(LagParameters::default());
    let balanced = run_model(cores, &program, Some(policy), |_, _| {});
    (alone.elapsed_ns as f64 / balanced.elapsed_ns as f64, balanced.moves())
}

/// What a program of loops with equal iterations reaches under `run --shares`, of the pace of all CPUs
/// together. Its regions end at its barriers: a team takes its weights when it begins.
fn of_bound(cores: &[Core], phase_ms: u64) -> f64 {
    let threads = cores.len();
    let phases = (SHARED_LASTS_MS / phase_ms).max(2);
    let iterations = ITERATIONS * threads as u64;
    let iteration_ns = (threads as u64 * phase_ms * MS) as f64 / iterations as f64;
    let rate = |core: &Core| f64::from(core.speed) / 1024.0;
    let snapshot = busy(cores);
    let members: BTreeSet<TaskId> = snapshot.tasks.iter().map(|task| task.id).collect();
    let places = Places::of(&snapshot, &members);
    let mut weighing = Weighing::new(LagParameters::default().tolerance_ppm);
    let phase_ns = |weights: &[(u32, u32)]| {
        let takes_ns = cores.iter().enumerate().map(|(thread, core)| {
            let part = divide(iterations, thread, weights.iter().map(|(_, weight)| *weight));
            // What the library leaves to the runtime is divided evenly.
            let count = part.map_or(ITERATIONS, |part| part.count);
            count as f64 * iteration_ns / rate(core)
        });
        takes_ns.fold(0.0, f64::max)
    };
    let (mut now_ns, mut looks) = (0.0, 0_u64);
    let mut weights = weighing.weights().to_vec();
    let mut takes_ns = phase_ns(&weights);
    for _ in 0..phases {
        while now_ns >= (looks + 1) as f64 * INTERVAL_NS as f64 {
            weighing.weigh(&snapshot, &places);
            looks += 1;
        }
        if weights != weighing.weights() {
            weights = weighing.weights().to_vec();
            takes_ns = phase_ns(&weights);
        }
        now_ns += takes_ns;
    }
    let all_rates: f64 = cores.iter().map(rate).sum();
    let best_ns = phases as f64 * iterations as f64 * iteration_ns / all_rates;
    best_ns / now_ns
}

/// An interval in which each CPU has a thread that computes, or spins, all the time.
fn busy(cores: &[Core]) -> Snapshot {
    let cpu = |(number, core): (u32, &Core)| CpuView { speed: core.speed, ..common::cpu(number) };
    let allowed = CpuSet::first(cores.len() as u32);
    let task = |(number, core): (u32, &Core)| TaskView {
        received_ns: INTERVAL_NS * u64::from(core.speed) / 1024,
        allowed: allowed.clone(),
        ..common::task(number + 1, number)
    };
    let cpus = (0..).zip(cores).map(cpu).collect();
    common::snapshot(cpus, (0..).zip(cores).map(task).collect())
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::Reached;

    use super::*;

    #[test]
    fn shares_reach_nearly_all_of_the_pace_of_all_cpus() {
        for (cpus, phase_ms) in [(4, 1), (16, 10), (128, 1_000)] {
            let part = of_bound(&hybrid(cpus), phase_ms);
            assert!((LEAST_OF_BOUND..=1.0).contains(&part), "{part} on {cpus} CPUs");
        }
    }

    #[test]
    fn without_weights_the_slow_cpus_decide() {
        let even = [Core { speed: 1024, left_ppm: 1_000_000, hogs: 0 }; 4];
        assert!((of_bound(&even, 10) - 1.0).abs() < 1e-9);
        // Two phases of 20 s: the first one has no weights yet, and takes twice as long.
        let first_of_two = of_bound(&hybrid(4), 20_000);
        let (best, first, second) = (2.0 * 4.0 / 3.0, 2.0, 4.0 / 3.0);
        assert!((first_of_two - best / (first + second)).abs() < 0.01, "{first_of_two}");
    }

    #[test]
    fn a_small_machine_is_no_worse_off() {
        let (cores, kind) = (hybrid(4), Kind { sleeps: false, more_percent: 0 });
        let (gain, _) = gain(&cores, 10, 1_000, kind);
        assert!(gain >= LEAST_GAIN, "{gain}");
    }

    #[test]
    fn the_worst_program_decides_for_its_machine() {
        let row = |cpus, gains: [f64; 2], of_bound| Row {
            cpus,
            phase_ms: 1,
            gains: gains.to_vec(),
            moves: vec![0; 2],
            of_bound,
        };
        let rows = [row(16, [1.1, 0.99], 0.95), row(64, [1.2, 0.9], 0.99), row(64, [1.0; 2], 0.9)];
        let wanted = wanted(&rows);
        let (good, bad) = (Reached::Reached, Reached::Missed);
        let found: Vec<_> = wanted
            .iter()
            .map(|row| (row.case.as_str(), row.found.unwrap(), row.reached.unwrap()))
            .collect();
        assert_eq!(
            found,
            [
                ("16 CPUs", 0.99, good),
                ("16 CPUs", 0.95, good),
                ("64 CPUs", 0.9, bad),
                ("64 CPUs", 0.9, bad),
            ]
        );
    }
}
