//! Shares of nested cgroups: with sleeping tasks, changed weights and moved tasks.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MS, Sim, hog, paper};
use evenkeel_invariants::Limits;
use evenkeel_sim::program::{Change, GroupPlan, Op, TaskPlan};
use evenkeel_sim::{Outcome, STRICT};

fn group(weight: u32, parent: usize) -> GroupPlan {
    GroupPlan { name: "group".to_owned(), weight, parent }
}

fn member(group: usize) -> TaskPlan {
    TaskPlan { group, ..hog(1_000_000 * MS) }
}

/// The share of one CPU that each task ran, in percent.
fn shares(sim: Sim, lasts_ms: u64) -> Vec<u64> {
    let mut sim = sim;
    sim.workload.duration_ns = lasts_ms * MS;
    let outcome = sim.run();
    outcome.accounts.iter().map(|task| task.ran_ns * 100 / (lasts_ms * MS)).collect()
}

fn assert_close(shares: &[u64], due: &[u64]) {
    let far = shares.iter().zip(due).any(|(share, due)| share.abs_diff(*due) > 3);
    assert!(!far && shares.len() == due.len(), "shares in percent {shares:?}, due {due:?}");
}

#[test]
fn nested_groups_share_their_parents_share() {
    let mut sim = Sim::keel(paper(1)).task(member(0)).task(member(2)).task(member(3));
    // Half for the task at the root; the other half by 1 : 3.
    sim.workload.groups = vec![group(100, 0), group(100, 1), group(300, 1)];
    assert_close(&shares(sim, 8000), &[50, 12, 37]);
}

#[test]
fn a_task_that_ends_leaves_its_share_to_its_own_group_first() {
    // Of two tasks in a group one works for 1 s and ends; then the other one has the group's share
    // alone.
    let mut sim = Sim::keel(paper(1))
        .task(member(1))
        .task(member(2))
        .task(TaskPlan { group: 3, ..hog(1000 * MS) });
    sim.workload.groups = vec![group(100, 0), group(100, 0), group(300, 2)];
    // While all run: 50, 12.5 and 37.5 % of 2.67 s. Then 50 and 50 %.
    assert_close(&shares(sim, 8000), &[50, 37, 12]);
}

#[test]
fn a_sleeping_group_has_no_weight() {
    let sleeper = TaskPlan {
        group: 2,
        ..TaskPlan::new("sleeper", vec![Op::Sleep(6000 * MS), Op::Run(100_000 * MS)])
    };
    let mut sim = Sim::keel(paper(1)).task(member(0)).task(member(3)).task(sleeper);
    sim.workload.groups = vec![group(100, 0), group(900, 1), group(100, 1)];
    // For 6 s two halves; then the group's half by 9 (the sleeper's) : 1.
    assert_close(&shares(sim, 8000), &[50, 40, 11]);
}

#[test]
fn a_changed_weight_counts_from_then_on() {
    let mut sim = Sim::keel(paper(1)).task(member(1)).task(member(2));
    sim.workload.groups = vec![group(100, 0), group(100, 0)];
    sim.workload.changes = vec![(4000 * MS, Change::Weight { group: 1, weight: 300 })];
    // Half for 4 s, three quarters for 4 s.
    assert_close(&shares(sim, 8000), &[62, 37]);
}

#[test]
fn a_changed_weight_of_a_nested_group_counts_within_its_parent() {
    let mut sim = Sim::keel(paper(1)).task(member(0)).task(member(2)).task(member(3));
    sim.workload.groups = vec![group(100, 0), group(100, 1), group(100, 1)];
    sim.workload.changes = vec![(4000 * MS, Change::Weight { group: 2, weight: 300 })];
    assert_close(&shares(sim, 8000), &[50, 31, 18]);
}

#[test]
fn a_moved_task_shares_within_its_new_group() {
    let mut sim = Sim::keel(paper(1)).task(member(1)).task(member(1)).task(member(2));
    sim.workload.groups = vec![group(100, 0), group(100, 0)];
    sim.workload.changes = vec![(4000 * MS, Change::Group { task: 1, group: 2 })];
    // A quarter, a quarter and a half; then a half, a quarter, a quarter.
    assert_close(&shares(sim, 8000), &[37, 25, 37]);
}

/// How many groups the keel tells apart at a time, and how deep.
const SLOTS: usize = 16_383;
const LEVELS: usize = 32;

#[test]
fn removed_groups_make_room_for_new_ones() {
    let mut sim = Sim::keel(paper(1)).task(member(1)).task(member(1));
    sim.workload.groups = vec![group(100, 0), group(900, 0)];
    sim.workload.changes =
        (0..SLOTS as u64 + 1_000).map(|at| (at * 200, Change::Renew { group: 2 })).collect();
    sim.workload.changes.push((4_000 * MS, Change::Group { task: 1, group: 2 }));
    // Half each for 4 s; then by 1 : 9.
    assert_close(&shares(sim, 8000), &[30, 70]);
}

/// A task can still run when its cgroup is gone and another one was created. What it weighed is then
/// not taken from the other one.
#[test]
fn a_task_that_outlives_its_cgroup_leaves_the_next_one_alone() {
    for last in [Op::Run(500 * MS), Op::Sleep(500 * MS)] {
        let dying = vec![Op::Run(5 * MS), Op::BeginExit, last, Op::Run(MS)];
        let dying = TaskPlan { group: 2, nice: -10, ..TaskPlan::new("dying", dying) };
        let mut sim = Sim::keel(paper(1)).tasks(3, member(1)).task(dying);
        sim.workload.groups = vec![group(100, 0), group(100, 0)];
        let moved = |task| (200 * MS, Change::Group { task, group: 2 });
        sim.workload.changes = vec![(100 * MS, Change::Renew { group: 2 }), moved(1), moved(2)];
        assert_close(&shares(sim, 20_000)[..3], &[49, 24, 24]);
    }
}

/// Groups nested `depth` deep, and the number of the deepest one: the outermost has this weight, the
/// others the largest that there is.
fn nest(sim: &mut Sim, depth: usize, weight: u32) -> usize {
    let groups = &mut sim.workload.groups;
    groups.push(group(weight, 0));
    for _ in 1..depth {
        let parent = groups.len();
        groups.push(group(10_000, parent));
    }
    groups.len()
}

/// Checks the share of each task within 5 % of what is due.
fn assert_shares(sim: &Sim, weights: &[u64]) {
    assert_shares_of(&sim.run(), weights);
}

/// The same where groups count as their ancestors. The checker of shares judges by each group's own
/// weight, so it is left out.
fn assert_shares_without_slots(sim: &Sim, weights: &[u64]) {
    let mut simulation = sim.simulation();
    simulation.limits = Some(Limits { share_window_ns: u64::MAX, ..STRICT });
    let outcome = simulation.run().unwrap();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    assert!(outcome.broken.is_empty(), "{:#?}", outcome.broken);
    assert_shares_of(&outcome, weights);
}

fn assert_shares_of(outcome: &Outcome, weights: &[u64]) {
    let ran: Vec<u64> = outcome.accounts.iter().map(|task| task.ran_ns / MS).collect();
    let (all, total) = (ran.iter().sum::<u64>(), weights.iter().sum::<u64>());
    let due: Vec<u64> = weights.iter().map(|weight| all * weight / total).collect();
    let far = ran.iter().zip(&due).any(|(ran, due)| ran.abs_diff(*due) * 20 > *due);
    assert!(!far && ran.len() == due.len(), "ran {ran:?} ms, due {due:?} ms");
}

/// A user with a delegated subtree cannot get more by nesting cgroups.
#[test]
fn groups_of_any_depth_share_by_their_outermost_weights() {
    let weights = [100, 200, 100, 300, 100];
    let mut sim = Sim::keel(paper(1));
    // The last one is deeper than the keel accounts for.
    for (depth, weight) in [1, 3, 12, 31, 40].into_iter().zip(weights) {
        let deepest = nest(&mut sim, depth, weight);
        sim = sim.task(member(deepest));
    }
    sim.workload.duration_ns = 40_000 * MS;
    assert_shares(&sim, &weights.map(u64::from));
}

#[test]
fn groups_share_by_weight_on_every_level() {
    for depth in [1, 3, 12, 31] {
        let mut sim = Sim::keel(paper(1));
        let parent = if depth > 1 { nest(&mut sim, depth - 1, 100) } else { 0 };
        let first = sim.workload.groups.len() + 1;
        sim.workload.groups.extend([group(100, parent), group(300, parent)]);
        let mut sim = sim.task(member(first)).task(member(first + 1)).task(member(parent));
        sim.workload.duration_ns = 40_000 * MS;
        // The task in the parent counts like a group.
        assert_shares(&sim, &[100, 300, 100]);
    }
}

#[test]
fn groups_beyond_the_deepest_level_count_as_their_ancestor_on_it() {
    let mut sim = Sim::keel(paper(1));
    let deepest = nest(&mut sim, LEVELS, 100);
    let [heavy, light] = [1, 2].map(|at| deepest + at);
    sim.workload.groups.extend([group(10_000, deepest), group(1, deepest)]);
    let mut sim = sim.task(member(heavy)).task(member(light)).task(member(0));
    sim.workload.duration_ns = 40_000 * MS;
    assert_shares_without_slots(&sim, &[50, 50, 100]);
}

/// One user's subtree has more cgroups than there are slots. The shares of all others hold, and so does
/// that of the subtree.
#[test]
fn a_subtree_of_too_many_groups_takes_nothing_from_others() {
    let mut sim = Sim::keel(paper(1));
    // As in /user.slice/user-1000.slice.
    sim.workload.groups = vec![group(100, 0), group(100, 1)];
    sim.workload.groups.extend((0..SLOTS + 500).map(|_| group(10_000, 2)));
    let many = sim.workload.groups.len();
    // Later, others create groups: on the first level, beside that user, and below their own.
    sim.workload.groups.extend([group(100, 0), group(100, 1), group(100, 0)]);
    sim.workload.groups.extend([group(300, many + 3), group(100, many + 3)]);
    // The last ones of the subtree have no slot: they count as the subtree itself.
    let tasks = [many, many - 1, many + 1, many + 2, many + 4, many + 5];
    let mut sim = tasks.into_iter().fold(sim, |sim, at| sim.task(member(at)));
    sim.workload.duration_ns = 40_000 * MS;
    let outcome = sim.run();
    // Of three thirds the first one is shared by two users.
    assert_shares_of(&outcome, &[200, 200, 800, 400, 600, 200]);
    // It is told: the quota is less than all slots.
    assert!(outcome.counters["slotless"] > 500, "{:?}", outcome.counters);
}

/// Each of these subtrees alone stays within its quota.
#[test]
fn many_subtrees_of_many_groups_leave_slots_for_the_groups_above_them() {
    let mut sim = Sim::keel(paper(1));
    sim.workload.groups = vec![group(100, 0)];
    for _ in 0..8 {
        let user = sim.workload.groups.len() + 1;
        sim.workload.groups.push(group(100, 1));
        sim.workload.groups.extend((0..4_000).map(|_| group(10_000, user)));
    }
    let many = sim.workload.groups.len();
    // Another user of the same slice; two other slices.
    sim.workload.groups.extend([group(100, 1), group(100, 0), group(300, 0)]);
    let tasks = [many, many + 1, many + 2, many + 3];
    let mut sim = tasks.into_iter().fold(sim, |sim, at| sim.task(member(at)));
    sim.workload.duration_ns = 40_000 * MS;
    assert_shares(&sim, &[100, 100, 200, 600]);
}

/// Each task of a cgroup counts with its current weight, not with the larger one that it had when it
/// arrived with fewer tasks beside it. Otherwise the first task would have a CPU alone, and the others
/// would share the rest.
#[test]
fn tasks_of_one_group_share_the_cpus_evenly() {
    for tasks in [8, 32] {
        let mut sim = Sim::keel(paper(4)).tasks(tasks, member(1));
        sim.workload.groups = vec![group(100, 0)];
        sim.workload.duration_ns = 8_000 * MS;
        let ran = sim.run().accounts.iter().map(|account| account.ran_ns / MS).collect::<Vec<_>>();
        let wanted = 4 * 8_000 / tasks as u64;
        assert!(
            ran.iter().all(|ms| ms.abs_diff(wanted) < wanted / 4),
            "run times {ran:?} ms, due {wanted} ms"
        );
    }
}
