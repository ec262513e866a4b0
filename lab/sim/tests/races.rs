//! Interleaved callbacks of several CPUs: races show that cannot happen otherwise.

#![allow(clippy::unwrap_used)]

mod common;

use common::build::compile_other;
use common::{MS, Sim, hog, only, paper};
use evenkeel_sim::program::{Op, TaskPlan};
use evenkeel_sim::{FaultPlan, Scheduler};

/// The seeds of each test.
const SEEDS: std::ops::Range<u64> = 1..33;

/// Under how many seeds two CPUs are in the exclusive section at once.
fn failures(options: &[&str], faults: FaultPlan) -> usize {
    let built = compile_other("lab/sim/tests/schedulers/trylock.c", options);
    let ops = vec![Op::RunAbout(MS / 4), Op::SleepAbout(MS / 4), Op::Repeat { to: 0, times: 200 }];
    let mut sim = Sim::new(paper(4)).tasks(12, TaskPlan::new("worker", ops));
    sim.scheduler = Scheduler::Plain("trylock".to_owned(), built.into());
    sim.faults = faults;
    let fails = |seed: &u64| {
        let outcome = Sim { seed: *seed, ..sim.clone() }.outcome();
        let end = outcome.end.map(|end| end.to_string()).unwrap_or_default();
        assert!(end.is_empty() || end.contains("queue 0xbad, which does not exist"), "{end}");
        !end.is_empty()
    };
    SEEDS.filter(fails).count()
}

const PAUSES: FaultPlan = FaultPlan { fail_one_in: 0, pause_one_in: 4, late_ns: 0, change_ns: 0 };

#[test]
fn a_check_before_a_separate_set_races() {
    let found = failures(&[], PAUSES);
    assert!(found > 16, "under {found} seeds of 32");
}

#[test]
fn an_atomic_test_and_set_does_not_race() {
    assert_eq!(failures(&["-DATOMIC"], PAUSES), 0);
}

#[test]
fn without_interleaving_there_is_no_race() {
    assert_eq!(failures(&[], FaultPlan::default()), 0);
}

/// Handlers in flight are resumed although no other event is planned before the end.
#[test]
fn handlers_in_flight_are_resumed_when_no_event_is_planned() {
    let mut sim = Sim::keel(paper(2)).task(TaskPlan { allowed: only(1), ..hog(3_000 * MS) });
    sim.faults = PAUSES;
    sim.workload.duration_ns = 4_000 * MS;
    for seed in SEEDS {
        let outcome = Sim { seed, ..sim.clone() }.run();
        let ran = outcome.accounts[0].ran_ns / MS;
        assert_eq!(ran, 3_000, "seed {seed}");
    }
}
