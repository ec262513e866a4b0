//! Tasks with so little weight that their turn does not come are rescued, all of them, and the others
//! keep most of the CPU.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MS, Sim, hog, only, paper};
use evenkeel_invariants::Limits;
use evenkeel_keel::{Options, Order, Slice};
use evenkeel_sim::program::{GroupPlan, Op, TaskPlan};
use evenkeel_sim::{Outcome, STRICT};

/// No task may wait longer, however many there are.
const MOST_WAIT_NS: u64 = 10_000 * MS;
/// The worlds' simulated time.
const LASTS_MS: u64 = 20 * 60 * 1_000;

/// A rescued task gets its share early, and with long slices by as much.
const LIMITS: Limits = Limits {
    wait_ns: MOST_WAIT_NS,
    wait_per_task_ns: 0,
    share_window_ns: 30_000 * MS,
    share_slack_ns: 500 * MS,
    ..STRICT
};

/// Runs it for `LASTS_MS`, unless it lasts for another time; checks that no task waited for too long and
/// that no other rule was broken.
fn outcome(sim: &Sim) -> Outcome {
    outcome_within(sim, LIMITS)
}

fn outcome_within(sim: &Sim, limits: Limits) -> Outcome {
    let mut simulation = sim.simulation();
    let mut workload = sim.workload.clone();
    if workload.duration_ns == 0 {
        workload.duration_ns = LASTS_MS * MS;
    }
    simulation.workload = workload.into();
    simulation.limits = Some(limits);
    let outcome = simulation.run().unwrap();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    let broken = outcome.broken.iter().map(|broken| &broken.violation).collect::<Vec<_>>();
    assert!(broken.is_empty(), "{} rules, {:#?}", broken.len(), &broken[..broken.len().min(3)]);
    outcome
}

fn ran_ms(outcome: &Outcome) -> Vec<u64> {
    outcome.accounts.iter().map(|task| task.ran_ns / MS).collect()
}

/// The last `light` tasks got less than `most_pct` of the CPUs, and each of them as much as the others.
fn assert_rescued_in_turn(outcome: &Outcome, light: usize, most_pct: u64) {
    let ran = ran_ms(outcome);
    let light = &ran[ran.len() - light..];
    let (all, mine) = (ran.iter().sum::<u64>(), light.iter().sum::<u64>());
    assert!(mine * 100 < all * most_pct, "{mine} of {all} ms");
    let (least, most) = (light.iter().min().unwrap(), light.iter().max().unwrap());
    assert!(least * 2 > *most, "each of them ran {least} to {most} ms");
    assert!(outcome.counters["rescue"] > 100);
}

/// Tasks that never sleep.
fn busy(nice: i32, group: usize) -> TaskPlan {
    TaskPlan { nice, group, ..TaskPlan::new("hog", vec![Op::Run(3_600_000 * MS)]) }
}

fn light_group(sim: &mut Sim) {
    sim.workload.groups = vec![GroupPlan { name: "light".to_owned(), weight: 1, parent: 0 }];
}

#[test]
fn a_group_of_hogs_with_the_least_weight_is_rescued() {
    for cpus in [1, 2] {
        let count = cpus as usize;
        let mut sim =
            Sim::keel(paper(cpus)).tasks(12 * count, busy(0, 0)).tasks(11 * count, busy(0, 1));
        light_group(&mut sim);
        assert_rescued_in_turn(&outcome(&sim), 11 * count, 5);
    }
}

#[test]
fn the_nicest_hogs_among_many_are_rescued() {
    let sim = Sim::keel(paper(1)).tasks(110, busy(0, 0)).tasks(10, busy(19, 0));
    assert_rescued_in_turn(&outcome(&sim), 10, 5);
}

#[test]
fn hundreds_of_starving_tasks_are_rescued() {
    for order in Order::ALL {
        let options = Options { order: *order, ..Options::default() };
        let mut sim =
            Sim::keel_with(paper(1), options).tasks(12, busy(0, 0)).tasks(500, busy(0, 1));
        light_group(&mut sim);
        sim.workload.duration_ns = 120_000 * MS;
        // Shares are not judged: their rescue takes nearly half of the CPU, far more than they are due.
        let limits = Limits { share_window_ns: u64::MAX, ..LIMITS };
        assert_rescued_in_turn(&outcome_within(&sim, limits), 500, 50);
    }
}

/// The slice of a rescued task is short, whatever the others have.
#[test]
fn starving_tasks_are_rescued_between_long_slices() {
    let slice = Slice::from_us(500_000).unwrap();
    let mut sim = Sim::keel_with(paper(1), Options { slice, ..Options::default() })
        .tasks(3, busy(0, 0))
        .tasks(10, busy(0, 1));
    light_group(&mut sim);
    // Each begins with a whole slice, which takes five seconds from the three others.
    let limits = Limits { share_slack_ns: 2_000 * MS, ..LIMITS };
    assert_rescued_in_turn(&outcome_within(&sim, limits), 10, 5);
}

/// A rescued task is far behind in vruntime. If it advanced the queue's clock by that, tasks that wake
/// would be placed behind all others.
#[test]
fn a_rescue_does_not_delay_tasks_that_wake() {
    let naps = vec![Op::Run(MS), Op::Sleep(50 * MS), Op::Goto(0)];
    let mut sim = Sim::keel(paper(1))
        .task(TaskPlan::new("naps", naps))
        .tasks(12, busy(0, 0))
        .tasks(11, busy(0, 1));
    light_group(&mut sim);
    let outcome = outcome(&sim);
    // It never gets its share, so each wake-up preempts or comes next.
    let naps = &outcome.accounts[0];
    let times = naps.ran_ns / MS;
    assert!(naps.waited_ns / times < 8 * MS, "{} ms in {times} naps", naps.waited_ns / MS);
}

/// Where CPUs take turns with the pinned tasks, only these CPUs' tasks are rescued.
#[test]
fn pinned_tasks_are_rescued_on_their_own_cpus() {
    let pinned = |cpu, nice, group| TaskPlan { allowed: only(cpu), ..busy(nice, group) };
    let mut sim = Sim::keel(paper(3))
        .tasks(12, pinned(0, 0, 0))
        .tasks(1, pinned(1, 0, 0))
        .task(hog(1_000_000_000 * MS))
        .tasks(11, pinned(0, 0, 1))
        .tasks(11, pinned(1, 0, 1));
    light_group(&mut sim);
    assert_rescued_in_turn(&outcome(&sim), 22, 5);
}
