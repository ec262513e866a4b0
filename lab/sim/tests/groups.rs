//! Shares of nested cgroups: with sleeping tasks, changed weights and moved tasks.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MS, Sim, hog, paper};
use evenkeel_sim::program::{Change, GroupPlan, Op, TaskPlan};

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

/// The keel has room for 4,095 groups at a time.
#[test]
fn removed_groups_make_room_for_new_ones() {
    let mut sim = Sim::keel(paper(1)).task(member(1)).task(member(1));
    sim.workload.groups = vec![group(100, 0), group(900, 0)];
    sim.workload.changes = (0..5_000).map(|us| (us * 1_000, Change::Renew { group: 2 })).collect();
    sim.workload.changes.push((4_000 * MS, Change::Group { task: 1, group: 2 }));
    // Half each for 4 s; then by 1 : 9.
    assert_close(&shares(sim, 8000), &[30, 70]);
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
