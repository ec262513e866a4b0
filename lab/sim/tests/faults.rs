//! Everything goes wrong, and the keel loses nobody.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::torture::{complaint, simulation};
use common::{MS, keel_build};
use evenkeel_sim::FaultPlan;
use evenkeel_sim::program::Change;

#[test]
fn nobody_is_lost_whatever_goes_wrong() {
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
fn who_wants_to_run_is_counted_rightly_whoever_comes_in_between() {
    let keel = keel_build();
    let mut runnable = 0;
    for seed in 1..=8 {
        let mut simulation = simulation(seed, keel.as_deref());
        // A call that fails may leave a count wrong; nothing else may.
        simulation.faults.fail_one_in = 0;
        let outcome = simulation.run().unwrap();
        if let Some(complaint) = complaint(&simulation, &outcome) {
            panic!("{complaint}");
        }
        assert_eq!(outcome.believed_runnable, Some(outcome.runnable), "seed {seed}");
        runnable += outcome.runnable;
    }
    assert!(runnable > 8, "{runnable}");
}

/// Who takes tasks off CPUs, or out of their queues, waits for whoever is in the middle of something there.
#[test]
fn who_is_taken_off_a_cpu_is_in_the_middle_of_nothing() {
    let keel = keel_build();
    for seed in 40..56 {
        let mut simulation = simulation(seed, keel.as_deref());
        // Who runs on shielded CPUs is taken off all of them at the same time, every 100 ms.
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
fn faults_are_part_of_the_seed() {
    let mut simulation = simulation(2, None);
    let hash = |simulation: &evenkeel_sim::Simulation| simulation.run().unwrap().hash;
    let first = hash(&simulation);
    assert_eq!(first, hash(&simulation));
    simulation.faults = FaultPlan { fail_one_in: 0, ..FaultPlan::ALL };
    let without_failures = hash(&simulation);
    assert_ne!(first, without_failures);
    simulation.faults.pause_one_in = 0;
    assert_ne!(without_failures, hash(&simulation), "others come in between");
}

/// A whole number from outside.
fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |value| value.parse().unwrap())
}

/// `make sim-soak`: so many events, or seeds for so many seconds.
#[test]
#[ignore = "takes long: make sim-soak"]
fn soak() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// Seeds from one line that says how far it is to the next.
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
                // All combinations of policies in any case.
                while next.load(Relaxed) < first + 8
                    || (events.load(Relaxed) < wanted && start.elapsed() < lasts)
                {
                    let seed = next.fetch_add(1, Relaxed);
                    // A sanitizer says in the thread of which name it has found something.
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
