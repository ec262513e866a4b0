//! What real-time tasks and interrupts take of a CPU is missing from its capability while they do, in
//! the whole keel.

#![allow(clippy::unwrap_used)]

mod common;

use evenkeel_keel::{Balance, Options};
use evenkeel_sim::program::{Interrupts, Thief};
use evenkeel_sim::{Report, Times};

use common::{MS, Sim, hog, paper};

/// Twelve hogs on four CPUs: how equal their progress is, and their times.
fn fairness(balance: Balance, static_capacity: bool, disturb: impl Fn(Sim) -> Sim) -> (f64, Times) {
    let options = Options { balance, static_capacity, ..Options::default() };
    let sim = disturb(Sim::keel_with(paper(4), options).tasks(12, hog(1_000 * MS)));
    let simulation = sim.simulation();
    let report = Report::new(&simulation, &simulation.run().unwrap());
    assert!(report.is_good(), "{:?} {:?}", report.end, report.violations);
    (report.fairness, report.tat)
}

#[test]
fn a_cpu_of_which_much_is_taken_carries_less() {
    // For half of the time somebody has CPUs 0 and 1, by turns of 5 ms.
    let by_thieves = |sim: Sim| {
        let thief = |cpu| Thief { cpu, run_ns: 5 * MS, period_ns: 10 * MS, from_ns: 0 };
        sim.thief(thief(0)).thief(thief(1))
    };
    let by_interrupts = |sim: Sim| {
        let source = |cpu| Interrupts { cpu, run_ns: MS / 2, period_ns: MS };
        sim.interrupts(source(0)).interrupts(source(1))
    };
    for (name, disturb) in
        [("thieves", &by_thieves as &dyn Fn(Sim) -> Sim), ("interrupts", &by_interrupts)]
    {
        let seen = fairness(Balance::Capability, false, disturb);
        let unseen = fairness(Balance::Capability, true, disturb);
        println!("{name}: {seen:?} {unseen:?}");
        assert!(seen.0 > 0.99 && seen.0 > unseen.0 + 0.01, "{name}: {seen:?} {unseen:?}");
    }
}

#[test]
fn where_nothing_is_taken_nothing_changes() {
    let calm = |is_static| fairness(Balance::Capability, is_static, |sim| sim);
    assert_eq!(calm(false), calm(true));
}
