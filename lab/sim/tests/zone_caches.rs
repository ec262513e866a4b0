//! The gate `zone` on machines of several last-level caches, below saturation: the same tasks under
//! `always`, `zone` and `zone --strict`, on caches that cost what was measured to refill
//! (docs/results/refill.md). `cargo test -p evenkeel-sim --test zone_caches -- --nocapture` prints all
//! figures.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use evenkeel_invariants::{Left, What};
use evenkeel_keel::{Gate, IdleWait, Options};
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::program::{Op, SharedMemory, TaskPlan};
use evenkeel_sim::{Level, Outcome};

use common::{MS, Sim, caches};

const US: u64 = 1_000;
/// How busy the CPUs are to be, in percent: the band in which the gate is to make a difference.
const LOADS_PCT: [u64; 3] = [40, 60, 75];
/// Working tasks and sleepers for each CPU.
const WORKERS: u64 = 4;
/// A working task runs for so long at a time, on average.
const WORK_NS: u64 = 2 * MS;
/// What a sleeper does, and how long it sleeps.
const SLEEPER_NS: [u64; 2] = [20 * US, 1_300 * US];

/// CPUs under so many last-level caches, with the costs of the preset `measured`.
fn machine(count: u32, each: u32) -> Machine {
    let measured = Machine::preset("measured").unwrap().costs;
    // Of both levels only a core's own caches were measured.
    let costs = Costs { refill_cache_ns: measured.refill_core_ns, ..measured };
    Machine { costs, ..caches(count, each) }
}

/// The three contestants.
fn options(name: &str) -> Options {
    let mut options = Options::default();
    if name != "always" {
        options.gate = Gate::Zone;
        options.zone.set_level("warm-high".parse().unwrap());
    }
    if name == "strict" {
        options.max_idle_wait = IdleWait::NEVER;
    }
    options
}

/// Working tasks of 512 KiB each that want so many percent of the CPUs, and after them the sleepers.
fn world(machine: Machine, options: Options, pct: u64) -> (Sim, u32) {
    let cpus = machine.cpus.len() as u64;
    let mut sim = Sim::keel_with(machine, options);
    let workers = WORKERS * cpus;
    let sleep_ns = WORK_NS * (100 * WORKERS - pct) / pct;
    for at in 0..workers {
        sim = sim.task(TaskPlan {
            space: at as u32,
            memory: Some(SharedMemory { kib: 512, kib_per_ms: 2048 }),
            ..TaskPlan::new(
                "worker",
                vec![Op::SleepAbout(sleep_ns), Op::RunAbout(WORK_NS), Op::Goto(0)],
            )
        });
    }
    let [work, sleep] = SLEEPER_NS;
    for at in 0..cpus {
        let ops = vec![Op::SleepAbout(sleep), Op::Run(work), Op::Goto(0)];
        let space = (workers + at) as u32;
        sim = sim.task(TaskPlan { space, ..TaskPlan::new("sleeper", ops) });
    }
    sim.workload.duration_ns = 10_000 * MS;
    (sim, workers as u32)
}

/// What is compared.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// From a sleeper's wake-up until it runs: 99 of 100 are shorter, in us.
    wake_p99_us: f64,
    /// The same of a working task.
    worker_p99_us: f64,
    /// From its wake-up until it sleeps again: the mean, in us.
    response_us: f64,
    /// Migrations to another last-level cache, a second.
    moves: f64,
    /// How often CPUs looked for tasks, a second.
    tries: f64,
    /// Bursts of working tasks that ended, a second.
    done: f64,
}

fn p99_us(mut waits: Vec<u64>) -> f64 {
    waits.sort_unstable();
    waits[waits.len() * 99 / 100] as f64 / 1e3
}

fn figures(outcome: &Outcome, workers: u32) -> Figures {
    let (mut woke, mut began) = (BTreeMap::new(), BTreeMap::new());
    let (mut waits, mut responses) = ([Vec::new(), Vec::new()], Vec::new());
    for event in &outcome.record {
        match event.what {
            What::Wakeup { task } => {
                woke.insert(task, event.time_ns);
                began.insert(task, event.time_ns);
            }
            What::Switch { prev, left, next, .. } => {
                // Tasks are numbered from 1 on, in the order of the workload.
                if let Some(since) = woke.remove(&next) {
                    waits[usize::from(next > workers)].push(event.time_ns - since);
                }
                if left == Left::Asleep
                    && prev <= workers
                    && let Some(since) = began.remove(&prev)
                {
                    responses.push(event.time_ns - since);
                }
            }
            _ => {}
        }
    }
    let seconds = outcome.time_ns as f64 / 1e9;
    let far = |level: &Level| matches!(level, Level::Node | Level::Remote(_));
    let moves: u64 =
        outcome.migrations.iter().filter(|((_, level), _)| far(level)).map(|(_, n)| n).sum();
    let tries = outcome.counters["try_idle"] + outcome.counters["try_periodic"];
    let [worker, sleeper] = waits;
    Figures {
        wake_p99_us: p99_us(sleeper),
        worker_p99_us: p99_us(worker),
        response_us: responses.iter().sum::<u64>() as f64 / responses.len() as f64 / 1e3,
        moves: moves as f64 / seconds,
        tries: tries as f64 / seconds,
        done: responses.len() as f64 / seconds,
    }
}

fn measure(count: u32, each: u32, pct: u64, name: &str) -> Figures {
    let (sim, workers) = world(machine(count, each), options(name), pct);
    let mut simulation = sim.simulation();
    simulation.records = true;
    simulation.limits = None;
    let outcome = simulation.run().unwrap();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    let figures = figures(&outcome, workers);
    println!("{count} caches of {each}, {pct} %, {name}: {figures:.1?}");
    figures
}

/// The three contestants at a load on so many caches of so many CPUs each.
fn compare(count: u32, each: u32, pct: u64) -> [Figures; 3] {
    ["always", "zone", "strict"].map(|name| measure(count, each, pct, name))
}

/// On two caches of eight CPUs all of it holds: fewer migrations between the caches, fewer looks for
/// tasks, no later wake-ups of tasks that sleep most, and as much work. At 75 % they wake up later than
/// under `always` by a little.
#[test]
fn the_zone_saves_migrations_and_looks_and_no_sleeper_pays() {
    for (pct, least_wake, least_done) in [(40, 0.97, 0.99), (60, 0.97, 0.99), (75, 0.90, 0.985)] {
        let [always, zone, _] = compare(2, 8, pct);
        assert!(always.moves > 5.0 * zone.moves, "{pct} %: {always:?} {zone:?}");
        assert!(always.tries > 3.0 * zone.tries, "{pct} %: {always:?} {zone:?}");
        let wake = always.wake_p99_us / zone.wake_p99_us;
        assert!(wake >= least_wake, "{pct} %: {wake}");
        assert!(zone.done >= least_done * always.done, "{pct} %: {always:?} {zone:?}");
    }
}

/// Small caches fill up more often: there the saved migrations cost some of the work.
#[test]
fn on_small_caches_work_ends_later() {
    for (pct, least_done) in [(40, 0.99), (60, 0.975), (75, 0.96)] {
        let [always, zone, _] = compare(4, 4, pct);
        assert!(always.moves > 5.0 * zone.moves, "{pct} %: {always:?} {zone:?}");
        assert!(always.tries > zone.tries, "{pct} %: {always:?} {zone:?}");
        assert!(zone.done >= least_done * always.done, "{pct} %: {always:?} {zone:?}");
    }
}

/// The paper's literal way moves still less and hardly looks, and all tasks pay for it.
#[test]
fn the_strict_gate_saves_more_and_all_tasks_wait() {
    for pct in LOADS_PCT {
        let [always, zone, strict] = compare(2, 8, pct);
        assert!(strict.moves < zone.moves && strict.tries < zone.tries, "{pct} %: {strict:?}");
        assert!(strict.wake_p99_us > 3.0 * zone.wake_p99_us, "{pct} %: {zone:?} {strict:?}");
        assert!(strict.worker_p99_us > 3.0 * zone.worker_p99_us, "{pct} %: {zone:?} {strict:?}");
        assert!(strict.response_us > 1.5 * always.response_us, "{pct} %: {strict:?}");
    }
}

/// Near saturation the gate costs some of the work, above it next to nothing.
#[test]
fn at_saturation_the_zone_works_as_always_does() {
    for (count, each) in [(2, 8), (4, 4)] {
        for (pct, least_done) in [(95, 0.96), (130, 0.985)] {
            let [always, zone, _] = compare(count, each, pct);
            assert!(zone.done >= least_done * always.done, "{pct} %: {always:?} {zone:?}");
        }
    }
}
