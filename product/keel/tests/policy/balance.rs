//! `policy/balance.h`: what is load, which tasks move, and where to.

use proptest::prelude::*;

use crate::native::*;

const COUNT: BalanceParams = BalanceParams { kind: 0, parts: 0, faster: 0, tasks: 0 };

pub fn cpu(cpu: u32, tasks: u32) -> CpuView {
    CpuView {
        cpu,
        load: u64::from(tasks) * NICE_0,
        runnable: tasks,
        waiting: tasks.saturating_sub(1),
        capability: FULL,
        idle: tasks == 0,
        ..CpuView::default()
    }
}

/// How many nice-0 tasks a busy CPU pulls.
pub fn pulled(quota: u64) -> u32 {
    pulled_by(quota, false)
}

fn pulled_by(mut quota: u64, idle: bool) -> u32 {
    let mut taken = 0;
    while fits(quota, NICE_0, taken > 0) {
        quota = left(quota, NICE_0, idle);
        taken += 1;
    }
    taken
}

#[test]
fn the_papers_example() {
    // Paper 002, section 2: C7 has 2 tasks, C0 has 10; the classic balancer pulls 4.
    assert_eq!(pulled(COUNT.quota(&COUNT.sum(&[cpu(0, 10)]), &cpu(7, 2), false)), 4);
}

#[test]
fn a_quarter_more_is_an_imbalance_an_eighth_with_shared_caches() {
    let pulls = |theirs, ours, shared| {
        COUNT.quota(&COUNT.sum(&[cpu(0, theirs)]), &cpu(1, ours), shared) > 0
    };
    assert!(!pulls(5, 4, false));
    assert!(pulls(5, 4, true));
    assert!(pulls(6, 4, false));
    assert!(!pulls(9, 9, true));
    assert!(!pulls(1, 2, true));
}

#[test]
fn three_tasks_on_two_cpus_take_turns() {
    assert_eq!(pulled(COUNT.quota(&COUNT.sum(&[cpu(0, 2)]), &cpu(1, 1), true)), 1);
}

#[test]
fn an_idle_cpu_pulls_one_task_and_a_busy_one_half_the_difference() {
    let quota = COUNT.quota(&COUNT.sum(&[cpu(0, 10)]), &cpu(1, 0), false);
    assert_eq!(pulled_by(quota, true), 1);
    assert_eq!(pulled_by(quota, false), 5);
}

#[test]
fn an_idle_cpu_pulls_a_waiting_task() {
    // Even a task that waits alone, behind a real-time task.
    let alone = CpuView { waiting: 1, ..cpu(0, 1) };
    assert_eq!(pulled(COUNT.quota(&COUNT.sum(&[alone]), &cpu(1, 0), false)), 1);
    assert_eq!(
        pulled(COUNT.quota(&COUNT.sum(&[cpu(0, 1)]), &cpu(1, 0), false)),
        0,
        "no task waits"
    );
    assert_eq!(COUNT.quota(&COUNT.sum(&[cpu(1, 5)]), &cpu(1, 0), false), 0, "its own queue");
}

#[test]
fn a_group_sum_has_its_busiest_cpu() {
    let group = COUNT.sum(&[cpu(4, 1), cpu(5, 3), cpu(6, 2)]);
    assert_eq!((group.cpus, group.runnable, group.waiting), (3, 6, 3));
    assert_eq!((group.first, group.busiest, group.busiest_load), (4, 5, 3 * NICE_0));
    let none_waits = COUNT.sum(&[cpu(4, 1), cpu(5, 1)]);
    assert_eq!(none_waits.busiest, NO_CPU, "no task waits: none to pull");
    assert_eq!(COUNT.sum(&[]).first, NO_CPU);
}

#[test]
fn groups_are_compared_by_their_cpus() {
    assert!(COUNT.heavier(&COUNT.sum(&[cpu(0, 2)]), &COUNT.sum(&[cpu(1, 1), cpu(2, 2)])));
    assert!(!COUNT.heavier(&COUNT.sum(&[cpu(0, 1)]), &COUNT.sum(&[cpu(1, 1), cpu(2, 1)])));
    assert!(
        COUNT.heavier(&COUNT.sum(&[cpu(0, 0)]), &COUNT.sum(&[])),
        "nothing is lighter than no group"
    );
}

#[test]
fn a_waking_task_prefers_idle_then_near_then_clearly_less_loaded() {
    let prev = cpu(0, 2);
    assert!(COUNT.home(&prev, &cpu(1, 0)));
    assert!(!COUNT.home(&cpu(1, 0), &prev));
    let near = CpuView { distance: 1, ..cpu(1, 0) };
    let far = CpuView { distance: 2, ..cpu(2, 0) };
    assert!(COUNT.home(&far, &near) && !COUNT.home(&near, &far));
    let heavy = CpuView { idle: true, ..cpu(1, 9) };
    assert!(COUNT.home(&cpu(0, 1), &heavy), "an idle CPU, whatever load is counted on it");
    assert!(!COUNT.home(&cpu(0, 5), &cpu(1, 4)), "not by a quarter");
    assert!(COUNT.home(&cpu(0, 6), &cpu(1, 4)));
}

#[test]
fn cold_tasks_go_first() {
    let rested =
        |rested_ns| COUNT.task_score(&TaskView { rested_ns, ..TaskView::default() }, FULL, FULL);
    assert_eq!(rested(499_999), SCORE_SECOND);
    assert_eq!(rested(500_000), SCORE_FIRST);
}

#[test]
fn count_treats_cpus_as_equal() {
    let slow = |cpu: CpuView| CpuView { capability: 1, ..cpu };
    let busiest = COUNT.sum(&[cpu(0, 7)]);
    assert_eq!(COUNT.sum(&[slow(cpu(0, 7))]), busiest);
    assert_eq!(
        COUNT.quota(&busiest, &slow(cpu(1, 1)), true),
        COUNT.quota(&busiest, &cpu(1, 1), true)
    );
}

pub fn any_cpu() -> impl Strategy<Value = CpuView> {
    (any::<u64>(), 0..1024_u32, 0..5_000_u32, 0..5_000_u32).prop_map(
        |(load, cpu, runnable, waiting)| CpuView {
            load,
            cpu,
            runnable,
            waiting,
            capability: FULL,
            idle: runnable == 0,
            ..CpuView::default()
        },
    )
}

proptest! {
    #[test]
    fn any_views_are_defined(cpus in prop::collection::vec(any_cpu(), 0..64), own in any_cpu()) {
        let group = COUNT.sum(&cpus);
        let pull = COUNT.quota(&group, &own, false);
        // At most half of the load there, or one task of any weight.
        prop_assert!(pull <= (group.busiest_load / 2).max(1));
        prop_assert_eq!(group.busiest == NO_CPU, cpus.iter().all(|cpu| cpu.waiting == 0));
        let _ = COUNT.home(&own, cpus.first().unwrap_or(&own));
    }

    #[test]
    fn a_pull_reverses_the_imbalance_by_at_most_one_task(
        theirs in 0..2_000_u32,
        ours in 0..2_000_u32,
    ) {
        let taken = pulled(COUNT.quota(&COUNT.sum(&[cpu(0, theirs)]), &cpu(1, ours), false));
        if taken > 0 {
            prop_assert!(theirs - taken + 1 >= ours + taken);
        }
    }

    #[test]
    fn heavier_is_a_strict_order(a in prop::collection::vec(any_cpu(), 1..64),
                                 b in prop::collection::vec(any_cpu(), 1..64)) {
        let (a, b) = (COUNT.sum(&a), COUNT.sum(&b));
        prop_assert!(!(COUNT.heavier(&a, &b) && COUNT.heavier(&b, &a)));
        prop_assert!(!COUNT.heavier(&a, &a));
    }
}
