//! Everything goes wrong, and the keel loses nobody.

#![allow(clippy::unwrap_used)]

mod common;

use common::keel_build;
use common::torture::{complaint, simulation};
use evenkeel_sim::FaultPlan;

#[test]
fn nobody_is_lost_whatever_goes_wrong() {
    let keel = keel_build();
    let (mut events, mut restarts) = (0, 0);
    // All combinations of policies are among these.
    for seed in 0..32 {
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

/// `make sim-soak`: so many events.
#[test]
#[ignore = "takes long: make sim-soak"]
fn soak() {
    let keel = keel_build();
    let wanted = std::env::var("EVENKEEL_SIM_EVENTS").unwrap().parse::<u64>().unwrap();
    let next = std::sync::atomic::AtomicU64::new(1);
    let events = std::sync::atomic::AtomicU64::new(0);
    let jobs = std::thread::available_parallelism().unwrap().get();
    use std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while events.load(Relaxed) < wanted {
                    let simulation = simulation(next.fetch_add(1, Relaxed), keel.as_deref());
                    let outcome = simulation.run().unwrap();
                    if let Some(complaint) = complaint(&simulation, &outcome) {
                        panic!("{complaint}");
                    }
                    events.fetch_add(outcome.events, Relaxed);
                }
            });
        }
    });
    println!("{} events, {} seeds", events.load(Relaxed), next.load(Relaxed) - 1);
}
