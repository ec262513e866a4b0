//! A scheduler that does not return from a callback is ended, as by the kernel's soft lockup detector.

#![allow(clippy::unwrap_used)]

mod common;

use common::build::{compile_other, with_fault};
use common::torture;
use common::{MS, Sim, hog, paper};
use evenkeel_keel::Options;
use evenkeel_sim::program::{Op, TaskPlan};
use evenkeel_sim::{Outcome, Scheduler};

fn worker() -> TaskPlan {
    let ops = vec![Op::RunAbout(MS), Op::SleepAbout(MS), Op::Repeat { to: 0, times: 100 }];
    TaskPlan::new("worker", ops)
}

fn spinning(options: &[&str], pauses: bool) -> Outcome {
    let built = compile_other("lab/sim/tests/schedulers/spin.c", options);
    let mut sim = Sim::new(paper(2)).tasks(5, worker());
    sim.scheduler = Scheduler::Plain("spin".to_owned(), built.into());
    sim.faults.pause_one_in = if pauses { 3 } else { 0 };
    sim.outcome()
}

fn why(outcome: &Outcome) -> String {
    outcome.end.as_ref().map(ToString::to_string).unwrap_or_default()
}

#[test]
fn a_hanging_callback_is_ended_and_named() {
    assert_eq!(spinning(&[], false).end, None);
    let is_stuck = |options: &[&str], pauses, place: &str| {
        let outcome = spinning(options, pauses);
        let why = why(&outcome);
        let expected = "the kernel would have ended the scheduler: soft lockup - CPU ";
        assert!(why.starts_with(expected), "{options:?}: {why}");
        assert!(why.contains(place), "{options:?}: {why}");
        outcome
    };
    assert_eq!(is_stuck(&["-DINIT"], false, "CPU 0 is stuck in Init").events, 0);
    let first = is_stuck(&["-DNOTHING"], false, "stuck in Dispatch");
    let again = is_stuck(&["-DNOTHING"], false, "stuck in Dispatch");
    // The history up to the lockup is the same each time.
    assert_eq!((first.hash, first.end), (again.hash, again.end));
    is_stuck(&["-DCALLS"], false, "stuck in Dispatch");
    is_stuck(&["-DWAITS"], false, "stuck in Dispatch");
    // With interleaving, other handlers go on until only the hanging one is left.
    is_stuck(&["-DWAITS"], true, "stuck in Dispatch");
    is_stuck(&["-DNOTHING"], true, "stuck in Dispatch");
}

#[test]
fn a_hanging_keel_still_dumps_its_state() {
    let charge = "t->vruntime = order_charge(before, ran_ns, t->weight);";
    let build = with_fault("bpf/keel/task.h", charge, "while (t->vruntime | 1) ;");
    let mut sim = Sim::keel(paper(2)).tasks(5, hog(50 * MS));
    sim.scheduler = Scheduler::Built(Options::default(), build.clone().into());
    let outcome = sim.outcome();
    assert!(why(&outcome).contains("soft lockup"), "{}", why(&outcome));
    assert!(outcome.dump.contains("keel: order=0 gate=0 balance=0"), "{}", outcome.dump);
    // Also with all faults; and the next simulation is not affected.
    let outcome = torture::simulation(1, Some(&build)).run().unwrap();
    assert!(why(&outcome).contains("soft lockup"), "{}", why(&outcome));
    Sim::keel(paper(2)).tasks(5, hog(50 * MS)).run();
}
