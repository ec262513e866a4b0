//! With all faults injected the keel loses no task.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::torture::{complaint, simulation};
use common::{MS, keel_build};
use evenkeel_sim::FaultPlan;
use evenkeel_sim::program::Change;

#[test]
fn no_rule_is_broken_under_all_faults() {
    let keel = keel_build();
    let (mut events, mut restarts) = (0, 0);
    // All combinations of policies, five times.
    for seed in 0..40 {
        let simulation = simulation(seed, keel.as_deref());
        let outcome = simulation.run().unwrap();
        if let Some(complaint) = complaint(&simulation, &outcome) {
            panic!("{complaint}");
        }
        restarts += outcome.restarts;
        events += outcome.events;
    }
    assert!(events > 200_000 && restarts > 50, "{events} events, {restarts} restarts");
}

#[test]
fn runnable_tasks_are_counted_correctly_under_interleaving() {
    let keel = keel_build();
    let mut runnable = 0;
    for seed in 1..=8 {
        let mut simulation = simulation(seed, keel.as_deref());
        // Only a failed call may leave the count wrong.
        simulation.faults.fail_one_in = 0;
        let outcome = simulation.run().unwrap();
        if let Some(complaint) = complaint(&simulation, &outcome) {
            panic!("{complaint}");
        }
        assert_eq!(outcome.believed_runnable, Some(outcome.runnable), "seed {seed}");
        runnable += outcome.runnable;
    }
    assert!(runnable > 8, "only {runnable} runnable tasks at the ends");
}

/// A handler that takes tasks off CPUs or out of queues waits until the locks of these are free.
#[test]
fn no_rule_is_broken_when_tasks_are_evicted_from_many_cpus_at_once() {
    let keel = keel_build();
    for seed in 40..56 {
        let mut simulation = simulation(seed, keel.as_deref());
        // Every 100 ms, tasks are evicted from all shielded CPUs at the same time.
        let shield = |ms: u64, cpus: &str| (ms * MS, Change::Shield(cpus.parse().unwrap()));
        let by_turns =
            (1..6).flat_map(|at| [shield(100 * at - 2, "1-1000"), shield(100 * at + 40, "0")]);
        Arc::make_mut(&mut simulation.workload).changes = by_turns.collect();
        let outcome = simulation.run().unwrap();
        if let Some(complaint) = complaint(&simulation, &outcome) {
            panic!("{complaint}");
        }
    }
}

#[test]
fn the_seed_determines_the_faults() {
    let mut simulation = simulation(2, None);
    let hash = |simulation: &evenkeel_sim::Simulation| simulation.run().unwrap().hash;
    let first = hash(&simulation);
    assert_eq!(first, hash(&simulation));
    simulation.faults = FaultPlan { fail_one_in: 0, ..FaultPlan::ALL };
    let without_failures = hash(&simulation);
    assert_ne!(first, without_failures);
    simulation.faults.pause_one_in = 0;
    assert_ne!(without_failures, hash(&simulation), "callbacks interleave");
}

/// A whole number from the environment.
fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |value| value.parse().unwrap())
}

/// `make sim-soak`: seeds for a number of events or seconds.
#[test]
#[ignore = "takes long: make sim-soak"]
fn soak() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// Progress is printed after this many seeds.
    const LINE: u64 = 100;
    let keel = keel_build();
    let (wanted, first) = (setting("EVENKEEL_SIM_EVENTS", 0), setting("EVENKEEL_SIM_SEED", 1));
    let lasts = std::time::Duration::from_secs(setting("EVENKEEL_SIM_SECONDS", u64::MAX));
    let start = std::time::Instant::now();
    let (next, events) = (AtomicU64::new(first), AtomicU64::new(0));
    let one = |seed| {
        let simulation = simulation(seed, keel.as_deref());
        let outcome = simulation.run().unwrap();
        if let Some(complaint) = complaint(&simulation, &outcome) {
            panic!("{complaint}");
        }
        let events = events.fetch_add(outcome.events, Relaxed) + outcome.events;
        if seed % LINE == 0 {
            println!("seed {seed}: {events} events");
        }
    };
    let jobs = std::thread::available_parallelism().unwrap().get();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                // At least eight seeds: all combinations of policies.
                while next.load(Relaxed) < first + 8
                    || (events.load(Relaxed) < wanted && start.elapsed() < lasts)
                {
                    let seed = next.fetch_add(1, Relaxed);
                    // A sanitizer names the thread in which it found something.
                    std::thread::scope(|scope| {
                        let named = std::thread::Builder::new().name(format!("seed {seed}"));
                        named.spawn_scoped(scope, || one(seed)).unwrap();
                    });
                }
            });
        }
    });
    let (events, last) = (events.into_inner(), next.into_inner() - 1);
    println!("{events} events, seeds {first} to {last}");
}
