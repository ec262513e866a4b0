//! `--compact`: while there is little work, it gathers on few CPUs, and the others idle for long at a
//! time. The same tasks under `always` and under `zone --compact`.
//! `cargo test -p evenkeel-sim --test compact -- --nocapture` prints all figures.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use evenkeel_invariants::{Left, What};
use evenkeel_keel::{Gate, Options};
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::Scheduler;
use evenkeel_sim::program::{Op, TaskPlan};

use common::build::with_faults;
use common::{MS, Sim, caches};

const CPUS: u32 = 8;
const TASKS: u64 = 12;
/// How long a task runs at a time, on average.
const WORK_NS: u64 = 2 * MS;
const LASTS_NS: u64 = 20_000 * MS;
/// A CPU that idles for so long at a time may sleep deeply.
const LONG_NS: u64 = 100 * MS;

/// What is compared.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// The part of all CPUs' time in which they idled for long at a time, in percent.
    long_idle_pct: f64,
    /// From a wake-up until the task runs: 99 of 100 are shorter, in ns.
    wake_p99_ns: u64,
    /// Bursts that ended, a second.
    done: f64,
}

/// Two caches of four CPUs, with the costs of the preset `measured`.
fn machine() -> Machine {
    let measured = Machine::preset("measured").unwrap().costs;
    let costs = Costs { refill_cache_ns: measured.refill_core_ns, ..measured };
    Machine { costs, ..caches(2, CPUS / 2) }
}

fn options(compact: bool) -> Options {
    let gate = if compact { Gate::Zone } else { Gate::Always };
    Options { gate, compact, ..Options::default() }
}

/// Tasks that sleep most of the time want so many percent of the CPUs.
fn load(sim: Sim, load_pct: u64) -> Sim {
    let mut sim = sim;
    let sleep_ns =
        WORK_NS * (100 * TASKS - load_pct * u64::from(CPUS)) / (load_pct * u64::from(CPUS));
    for at in 0..TASKS {
        let ops = vec![Op::SleepAbout(sleep_ns), Op::RunAbout(WORK_NS), Op::Goto(0)];
        sim = sim.task(TaskPlan { space: at as u32, ..TaskPlan::new("light", ops) });
    }
    sim.workload.duration_ns = LASTS_NS;
    sim
}

fn measure(compact: bool, load_pct: u64) -> Figures {
    let sim = load(Sim::keel_with(machine(), options(compact)), load_pct);
    let mut simulation = sim.simulation();
    simulation.records = true;
    let outcome = simulation.run().unwrap();
    assert_eq!((&outcome.end, outcome.broken.len()), (&None, 0), "{}", outcome.dump);

    let (mut woke, mut waits, mut done) = (BTreeMap::new(), Vec::new(), 0u64);
    let (mut idle_since_ns, mut long_ns) = (vec![Some(0); CPUS as usize], 0);
    let mut idled = |since_ns: Option<u64>, now_ns: u64| {
        let idle_ns = since_ns.map_or(0, |since_ns| now_ns - since_ns);
        long_ns += if idle_ns >= LONG_NS { idle_ns } else { 0 };
    };
    for event in &outcome.record {
        match event.what {
            What::Wakeup { task } => {
                woke.insert(task, event.time_ns);
            }
            What::Switch { left, next, .. } => {
                if let Some(since_ns) = woke.remove(&next) {
                    waits.push(event.time_ns - since_ns);
                }
                done += u64::from(left == Left::Asleep);
                let idle = &mut idle_since_ns[event.cpu as usize];
                idled(idle.take(), event.time_ns);
                *idle = (next == 0).then_some(event.time_ns);
            }
            _ => {}
        }
    }
    idle_since_ns.into_iter().for_each(|since_ns| idled(since_ns, outcome.time_ns));
    waits.sort_unstable();
    let all_ns = outcome.time_ns * u64::from(CPUS);
    Figures {
        long_idle_pct: 100.0 * long_ns as f64 / all_ns as f64,
        wake_p99_ns: waits[waits.len() * 99 / 100],
        done: done as f64 * 1e9 / outcome.time_ns as f64,
    }
}

#[test]
fn with_little_work_most_cpus_idle_for_long_and_no_task_waits_for_that() {
    for load_pct in [10, 17, 25] {
        let (always, compact) = (measure(false, load_pct), measure(true, load_pct));
        println!("load {load_pct} %: always {always:?}");
        println!("load {load_pct} %: compact {compact:?}");
        assert!(compact.long_idle_pct >= 2.0 * always.long_idle_pct, "at {load_pct} %");
        assert!(compact.wake_p99_ns as f64 <= 1.2 * always.wake_p99_ns as f64, "at {load_pct} %");
        assert!(compact.done >= 0.99 * always.done, "at {load_pct} %");
    }
}

#[test]
fn with_more_work_it_changes_nothing_much() {
    let (always, compact) = (measure(false, 50), measure(true, 50));
    println!("load 50 %: always {always:?}, compact {compact:?}");
    assert!(compact.done >= 0.99 * always.done);
}

/// How often compaction places a task, if it ends above this utilisation.
fn compacted(load_pct: u64, limit: &str) -> u64 {
    let passed = "\tif (!t || enough >= settings.online)\n\t\treturn NO_CPU;\n";
    let counted = format!("{passed}\tcount(COUNT_SLOTLESS);\n");
    let build = with_faults(&[
        ("bpf/keel/place.h", passed, counted.as_str()),
        ("policy/gate.h", "(u64)mean_utilisation * 100 > WARM_MIN_PCT * FULL || enough", limit),
    ]);
    let scheduler = Scheduler::Built(options(true), build.into());
    let outcome = load(Sim { scheduler, ..Sim::new(machine()) }, load_pct).outcome();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    outcome.counters["slotless"]
}

/// Work gathers only in the cold zone. At 35 % seven of the eight CPUs would be enough for the work, but
/// the machine is warm.
#[test]
fn above_the_cold_zone_work_does_not_gather() {
    let limited = "(u64)mean_utilisation * 100 > WARM_MIN_PCT * FULL || enough";
    let (warm, unlimited) = (compacted(35, limited), compacted(35, "enough"));
    let cold = compacted(20, limited);
    println!(
        "compaction places {cold} tasks at 20 %, {warm} at 35 %, without its limit {unlimited}"
    );
    assert!(3 * warm < unlimited && 3 * warm < cold);
}
