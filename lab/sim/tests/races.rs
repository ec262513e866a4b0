//! Callbacks of several CPUs are under way at the same time: what goes wrong only then is found.

#![allow(clippy::unwrap_used)]

mod common;

use common::build::compile_other;
use common::{MS, Sim, hog, only, paper};
use evenkeel_sim::program::{Op, TaskPlan};
use evenkeel_sim::{FaultPlan, Scheduler};

/// Of so many seeds those under which CPUs that must exclude each other do not.
const SEEDS: std::ops::Range<u64> = 1..33;

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
fn two_who_look_before_either_takes_it() {
    let found = failures(&[], PAUSES);
    assert!(found > 16, "under {found} seeds of 32");
}

#[test]
fn not_by_who_looks_and_takes_at_once() {
    assert_eq!(failures(&["-DATOMIC"], PAUSES), 0);
}

#[test]
fn nor_where_callbacks_run_one_after_the_other() {
    assert_eq!(failures(&[], FaultPlan::default()), 0);
}

/// Where nothing else is to come before the end, what is under way goes on all the same, and not only then.
#[test]
fn what_is_under_way_goes_on_when_nothing_else_is_to_come() {
    let mut sim = Sim::keel(paper(2)).task(TaskPlan { allowed: only(1), ..hog(3_000 * MS) });
    sim.faults = PAUSES;
    sim.workload.duration_ns = 4_000 * MS;
    for seed in SEEDS {
        let outcome = Sim { seed, ..sim.clone() }.run();
        let ran = outcome.accounts[0].ran_ns / MS;
        assert_eq!(ran, 3_000, "seed {seed}");
    }
}
