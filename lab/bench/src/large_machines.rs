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
use evenkeel_experiment::{AimRow, Document, Reached, Wanted, interrupt};
use evenkeel_machine::CpuSet;
use evenkeel_shares::partition::divide;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cost_page::{Files, Shown};
use common::model::{Core, Program, best_placed_ns, run as run_model, run_from};
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
/// Iterations of a loop, the same on each machine: of the largest one each thread gets few, and rounding
/// costs most.
const ITERATIONS: u64 = 1_600;
/// Where the thread with more to do begins on a slow CPU, programs last so many times as long: what is
/// found out first counts less then.
const BEGUN_SLOWLY: u64 = 4;
/// What is wanted: a loss that is no larger than the margin of all claims of equivalence, in %. Doing
/// nothing reaches that, so also ...
const MOST_LOSS_PCT: f64 = 2.0;
/// ... so much of the rate by the best placement where the thread with more to do begins on a slow CPU,
/// which takes moves; ...
const LEAST_BEGUN_SLOWLY: f64 = 0.93;
/// ... and so much of the pace of all CPUs together under `--shares`.
const LEAST_OF_BOUND: f64 = 0.93;

/// In the table of what was wanted.
const BEGUN_SLOWLY_FIGURE: &str = "uneven, begun on a slow CPU: least of the best placement";

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
    /// What the worse of the uneven programs reaches of its rate by the best placement, where its thread
    /// with more to do begins on a slow CPU.
    begun_slowly: f64,
    /// What the program reaches under `--shares`, of the pace of all CPUs together.
    of_bound: f64,
}

/// What `run` and `run --shares` do on large machines, calculated.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Report {
    /// How threads wait, and whether their work is even: the order of the figures in each row.
    kinds: Vec<String>,
    /// For how long the programs have phases, on fast CPUs: less in the short form, which decides
    /// nothing.
    lasts_ms: u64,
    /// Each machine with each time between barriers.
    rows: Vec<Row>,
    /// What was wanted of each machine, by its worst program.
    wanted: Vec<AimRow>,
}

/// Calculates, prints, and writes what was asked for; the short form has the smallest machine and short
/// programs only, and decides nothing. Returns the exit code.
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
    let wanted = wanted(&rows, is_quick);
    let report = Report { kinds, lasts_ms, rows, wanted };
    files.write(&Document::new(FORMAT, &report), &shown(&report))?;
    Ok(0)
}

/// What was wanted of each machine, by its worst program. Figures are calculated, so one value decides,
/// but not in the short form: its programs are too short.
fn wanted(rows: &[Row], is_quick: bool) -> Vec<AimRow> {
    let machines: BTreeSet<usize> = rows.iter().map(|row| row.cpus).collect();
    let of_machine = |cpus: usize| {
        let case = format!("{cpus} CPUs");
        let its = || rows.iter().filter(move |row| row.cpus == cpus);
        let gain = its().flat_map(|row| row.gains.iter().copied()).reduce(f64::min);
        let loss_pct = gain.map(|gain| 100.0 * (1.0 - gain).max(0.0));
        let begun_slowly = its().map(|row| row.begun_slowly).reduce(f64::min);
        let of_bound = its().map(|row| row.of_bound).reduce(f64::min);
        let aim = |figure: &str, contestant: &str, found: Option<f64>, wanted: Wanted| {
            let mut row = AimRow::counted(&case, figure, contestant, found?, wanted);
            if is_quick {
                row.reached = Some(Reached::Undecided);
            }
            Some(row)
        };
        let least = Wanted::AtLeast;
        let aims = [
            aim("largest loss, in %", "run", loss_pct, Wanted::AtMost(MOST_LOSS_PCT)),
            aim(BEGUN_SLOWLY_FIGURE, "run", begun_slowly, least(LEAST_BEGUN_SLOWLY)),
            aim("least of the bound", "run --shares", of_bound, least(LEAST_OF_BOUND)),
        ];
        aims.into_iter().flatten()
    };
    machines.into_iter().flat_map(of_machine).collect()
}

fn shown(report: &Report) -> Shown<'_> {
    let mut header = vec!["CPUs".to_owned(), "phase in ms".to_owned()];
    header.extend(report.kinds.iter().cloned());
    header.push("uneven, begun on a slow CPU, of the best placement".to_owned());
    header.push("--shares, of the bound".to_owned());
    let cells = |row: &Row| {
        let mut cells = vec![row.cpus.to_string(), row.phase_ms.to_string()];
        let kinds = row.gains.iter().zip(&row.moves);
        cells.extend(kinds.map(|(gain, moves)| format!("{gain:.3}, {moves} moves")));
        cells.extend([row.begun_slowly, row.of_bound].map(|part| format!("{part:.3}")));
        cells
    };
    let table = Cells {
        numbers: (0..header.len()).collect(),
        rows: report.rows.iter().map(cells).collect(),
        header,
    };
    let gains = format!(
        "Calculated, not measured. Half of the CPUs run at half of the pace. By how threads wait and \
         whether the first one has 30 % more to do: how many times as fast as without `evenkeel run`, \
         in {:.1} s of phases. Barriers are counted here, as with cbinfo; without, phases that are too \
         short for moves are found out later, and more is lost.",
        report.lasts_ms as f64 / 1e3
    );
    let bounds = format!(
        "The best placement has the thread with more to do on a fast CPU, and moves nothing; the \
         program begins with it on a slow one, and has {:.1} s of phases, the worse of the one that \
         spins and the one that sleeps. The bound of `run --shares` is the pace of all CPUs together, \
         over {} s, by loops of {ITERATIONS} iterations.",
        (BEGUN_SLOWLY * report.lasts_ms) as f64 / 1e3,
        SHARED_LASTS_MS / 1_000
    );
    Shown {
        title: "Benchmarks: large machines, calculated",
        table: Some(table),
        sentences: vec![gains, bounds],
        wanted: &report.wanted,
        charts: Vec::new(),
    }
}

fn row(cpus: usize, phase_ms: u64, lasts_ms: u64) -> Row {
    let cores = hybrid(cpus);
    let (gains, moves) =
        KINDS.into_iter().map(|kind| gain(&cores, phase_ms, lasts_ms, kind)).unzip();
    let begun_slowly = begun_slowly(&cores, phase_ms, lasts_ms);
    Row { cpus, phase_ms, gains, moves, begun_slowly, of_bound: of_bound(&cores, phase_ms) }
}

/// The first half of the CPUs at full speed, the others at half of it.
fn hybrid(cpus: usize) -> Vec<Core> {
    let speed = |index| if index < cpus / 2 { 1024 } else { 512 };
    (0..cpus).map(|index| Core { speed: speed(index), left_ppm: 1_000_000, hogs: 0 }).collect()
}

/// How many times as fast a program is under `evenkeel run`, and how many moves that takes. It has a
/// thread for each CPU, that with more to do on a fast one from the start.
fn gain(cores: &[Core], phase_ms: u64, lasts_ms: u64, kind: Kind) -> (f64, usize) {
    let program = program(cores.len(), phase_ms, lasts_ms, kind);
    let alone = run_model(cores, &program, None, |_, _| {});
    let balanced = run_model(cores, &program, Some(lag()), |_, _| {});
    (alone.elapsed_ns as f64 / balanced.elapsed_ns as f64, balanced.moves())
}

/// What the worse of the uneven programs reaches under `evenkeel run` of its rate by the best placement,
/// where its threads begin on the CPUs in reverse: that with more to do on a slow one.
fn begun_slowly(cores: &[Core], phase_ms: u64, lasts_ms: u64) -> f64 {
    let placed: Vec<usize> = (0..cores.len()).rev().collect();
    let part = |kind: Kind| {
        let program = program(cores.len(), phase_ms, BEGUN_SLOWLY * lasts_ms, kind);
        let balanced = run_from(cores, &program, &placed, Some(lag()), |_, _| {});
        best_placed_ns(cores, &program) as f64 / balanced.elapsed_ns as f64
    };
    KINDS.into_iter().filter(|kind| kind.more_percent > 0).map(part).fold(f64::INFINITY, f64::min)
}

fn lag() -> Policy {
    Policy::Lag(LagParameters::default())
}

/// A program with a thread for each CPU, of which waiting and barriers are seen.
fn program(threads: usize, phase_ms: u64, lasts_ms: u64, kind: Kind) -> Program {
    Program {
        tasks: threads,
        work_ns: phase_ms * MS,
        phases: (lasts_ms / phase_ms).max(2) as u32,
        is_seen: true,
        has_heartbeat: true,
        sleeps: kind.sleeps,
        more_percent: kind.more_percent,
        ..Program::default()
    }
}

/// What a program of loops with equal iterations reaches under `run --shares`, of the pace of all CPUs
/// together. Its regions end at its barriers: a team takes its weights when it begins.
fn of_bound(cores: &[Core], phase_ms: u64) -> f64 {
    let threads = cores.len();
    let phases = (SHARED_LASTS_MS / phase_ms).max(2);
    let iteration_ns = (threads as u64 * phase_ms * MS) as f64 / ITERATIONS as f64;
    let rate = |core: &Core| f64::from(core.speed) / 1024.0;
    let snapshot = busy(cores);
    let members: BTreeSet<TaskId> = snapshot.tasks.iter().map(|task| task.id).collect();
    let places = Places::of(&snapshot, &members);
    let mut weighing = Weighing::new(LagParameters::default().tolerance_ppm);
    let phase_ns = |weights: &[(u32, u32)]| {
        let takes_ns = cores.iter().enumerate().map(|(thread, core)| {
            let part = divide(ITERATIONS, thread, weights.iter().map(|(_, weight)| *weight));
            // What the library leaves to the runtime is divided evenly: the first threads get the rest.
            let even = ITERATIONS / threads as u64;
            let has_more = (thread as u64) < ITERATIONS % threads as u64;
            let count = part.map_or(even + u64::from(has_more), |part| part.count);
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
    let best_ns = phases as f64 * ITERATIONS as f64 * iteration_ns / all_rates;
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
    use super::*;

    #[test]
    fn shares_reach_nearly_all_of_the_pace_of_all_cpus() {
        for (cpus, phase_ms) in [(4, 1), (16, 10), (128, 1_000)] {
            let part = of_bound(&hybrid(cpus), phase_ms);
            assert!((LEAST_OF_BOUND..=1.0).contains(&part), "{part} on {cpus} CPUs");
        }
    }

    #[test]
    fn rounding_costs_more_where_each_thread_gets_few_iterations() {
        // 16 2/3 iterations for each fast CPU would be best, and 17 are given.
        let part = of_bound(&hybrid(128), 1);
        assert!((part - 16.67 / 17.0).abs() < 0.005, "{part}");
        assert!(of_bound(&hybrid(16), 1) > part + 0.01);
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
        assert!(gain >= 1.0 - MOST_LOSS_PCT / 100.0, "{gain}");
    }

    #[test]
    fn a_thread_with_more_to_do_does_not_stay_on_a_slow_cpu() {
        // Where nothing moves, each phase takes 2.6 times as long as on a fast CPU, and placed well 2.
        let (part, alone) = (begun_slowly(&hybrid(4), 100, LASTS_MS), 2.0 / 2.6);
        assert!(part > LEAST_BEGUN_SLOWLY && LEAST_BEGUN_SLOWLY > alone, "{part}");
    }

    #[test]
    fn the_worst_program_decides_for_its_machine() {
        let row = |cpus, gains: [f64; 2], begun_slowly, of_bound| Row {
            cpus,
            phase_ms: 1,
            gains: gains.to_vec(),
            moves: vec![0; 2],
            begun_slowly,
            of_bound,
        };
        let rows = [
            row(16, [1.1, 0.99], 0.98, 0.95),
            row(64, [1.2, 0.9], 0.95, 0.99),
            row(64, [1.0; 2], 0.92, 0.9),
        ];
        let found = |is_quick| -> Vec<_> {
            let rows = wanted(&rows, is_quick);
            let thousandths = |found: f64| (1_000.0 * found).round() as u32;
            let cells =
                |row: AimRow| (row.case, thousandths(row.found.unwrap()), row.reached.unwrap());
            rows.into_iter().map(cells).collect()
        };
        let (small, large) = (|| "16 CPUs".to_owned(), || "64 CPUs".to_owned());
        let (good, bad) = (Reached::Reached, Reached::Missed);
        assert_eq!(
            found(false),
            [
                (small(), 1_000, good),
                (small(), 980, good),
                (small(), 950, good),
                (large(), 10_000, bad),
                (large(), 920, bad),
                (large(), 900, bad),
            ]
        );
        // The same figures of short programs decide nothing.
        assert!(found(true).iter().all(|(.., reached)| *reached == Reached::Undecided));
    }

    #[test]
    fn a_gain_is_no_loss() {
        let row = Row {
            cpus: 16,
            phase_ms: 1,
            gains: vec![1.3, 1.2],
            moves: vec![2; 2],
            begun_slowly: 1.0,
            of_bound: 1.0,
        };
        assert_eq!(wanted(&[row], false)[0].found, Some(0.0));
    }
}
