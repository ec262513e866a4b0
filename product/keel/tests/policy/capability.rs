//! `policy/balance.h`, the policy `capability`: load per capability. Sentences, lines and examples
//! are those of paper 002, sections 2 and 4.1.

use proptest::prelude::*;

use crate::balance::{cpu, pulled};
use crate::native::*;

const NORMAL: u32 = FULL / 2;
const MANY: BalanceParams = BalanceParams { kind: 1, parts: 0, faster: 0, tasks: 1_000 };
const COUNT: BalanceParams = BalanceParams { kind: 0, ..MANY };

fn of(capability: u32, cpu: CpuView) -> CpuView {
    CpuView { capability, ..cpu }
}

fn normal(id: u32, tasks: u32) -> CpuView {
    of(NORMAL, cpu(id, tasks))
}

/// How many tasks `own` pulls from `theirs`.
fn pulls(params: &BalanceParams, theirs: CpuView, own: CpuView) -> u32 {
    pulled(params.quota(&params.sum(&[theirs]), &own, false))
}

/// Section 2: C7 has 2 tasks, the speed core C0 has 10: the unaware balancer pulls 4. Figure 4: the
/// aware one pulls 2. And the other way round the speed core takes more.
#[test]
fn the_papers_example() {
    assert_eq!(pulls(&COUNT, cpu(0, 10), normal(7, 2)), 4);
    assert_eq!(pulls(&MANY, cpu(0, 10), normal(7, 2)), 2);
    assert_eq!(pulls(&COUNT, normal(7, 10), cpu(0, 2)), 4);
    assert_eq!(pulls(&MANY, normal(7, 10), cpu(0, 2)), 6);
}

/// "load of a speed core is considered as half of its actual load" (lines 10, 20, 31).
#[test]
fn a_core_twice_as_fast_counts_half() {
    assert_eq!(pulls(&MANY, cpu(0, 4), normal(1, 2)), 0, "the same load per capability");
    assert_eq!(pulls(&MANY, normal(1, 2), cpu(0, 4)), 0);
    let group = MANY.sum(&[cpu(0, 5), normal(1, 3)]);
    assert_eq!(group.busiest, 1, "3 on half a core are more than 5 on a whole one");
    assert_eq!(COUNT.sum(&[cpu(0, 5), normal(1, 3)]).busiest, 0);
    assert!(MANY.heavier(&MANY.sum(&[normal(0, 3)]), &MANY.sum(&[cpu(1, 5)])));
    assert!(!COUNT.heavier(&COUNT.sum(&[normal(0, 3)]), &COUNT.sum(&[cpu(1, 5)])));
}

/// 4.1.1, 4.1.2: "priority is given to CPU bound tasks" on speed cores; "IO bound processes are
/// preferred for migration by the normal core".
#[test]
fn the_right_kind_of_task_goes_first() {
    let score = |bound, from, to| {
        MANY.task_score(&TaskView { bound, rested_ns: 0, ..TaskView::default() }, from, to)
    };
    assert_eq!(score(true, NORMAL, FULL), SCORE_FIRST);
    assert_eq!(score(false, NORMAL, FULL), SCORE_SECOND);
    assert_eq!(score(false, FULL, NORMAL), SCORE_FIRST);
    assert_eq!(score(true, FULL, NORMAL), SCORE_SECOND);
    assert_eq!([score(true, FULL, FULL), score(false, FULL, FULL)], [SCORE_SECOND; 2], "by caches");
}

#[test]
fn a_cpu_bound_task_hardly_sleeps_with_hysteresis() {
    let pct = |share: u32| share * FULL / 100;
    assert!(!bound(pct(60), false) && bound(pct(62), false));
    assert!(bound(pct(42), true) && !bound(pct(40), true));
}

/// The share is known from the first burst on: the paper's processes end within a second.
#[test]
fn a_task_is_classified_at_once_and_over_a_second() {
    const MS: u64 = 1_000_000;
    let after = |bursts: &[(u64, bool)]| {
        let (mut share, mut known_ns) = (0, 0);
        for &(ns, ran) in bursts {
            share = bound_share(share, known_ns, ns, ran);
            known_ns += ns;
        }
        f64::from(share) / f64::from(FULL << 10)
    };
    let is = |share: f64, wanted: f64| assert!((share - wanted).abs() < 0.01, "{share}, {wanted}");
    is(after(&[(10 * MS, true)]), 1.0);
    is(after(&[(10 * MS, true), (30 * MS, false)]), 0.25);
    is(after(&[(10 * MS, true), (30 * MS, false)].repeat(20)), 0.25);
    // After that the share decays: half of it is forgotten in a second.
    is(after(&[(1_100 * MS, true), (1_074 * MS, false)]), 0.5);
    for ran_ms in [1_000, 1_100] {
        assert!(after(&[(ran_ms * MS, true), (10_000 * MS, false)]) < 0.01);
    }
}

/// 4.1.3: "it does not execute on idle slower cores till the task/speed core ratio does not become
/// more than 1"; lines 2 and 3.
#[test]
fn slow_cores_pull_nothing_while_fast_ones_suffice() {
    let few = BalanceParams { tasks: 4, faster: 4, ..MANY };
    assert!(few.abstains());
    assert!(!BalanceParams { tasks: 5, ..few }.abstains(), "one too many");
    assert!(!BalanceParams { tasks: 0, faster: 0, ..few }.abstains(), "none is faster");
    assert!(!BalanceParams { kind: 0, ..few }.abstains(), "count knows no faster ones");
    // With more tasks it pulls one, and a fast CPU pulls any waiting task from any CPU.
    assert_eq!(pulls(&MANY, cpu(0, 3), normal(1, 0)), 1);
    assert_eq!(pulls(&MANY, normal(1, 2), cpu(0, 0)), 1);
}

/// "a least loaded core will be allocated".
#[test]
fn a_waking_task_goes_where_it_gets_most() {
    // Both idle: the faster one. On the fast one beside another: as much as alone on the slow one.
    assert!(MANY.home(&normal(0, 0), &cpu(1, 0)) && !MANY.home(&cpu(1, 0), &normal(0, 0)));
    assert!(MANY.home(&cpu(0, 1), &normal(1, 0)), "no worse, and no task waits");
    let slowest = of(FULL / 4, cpu(1, 0));
    assert!(!MANY.home(&cpu(0, 1), &slowest), "a turn of two is worth more");
    assert!(MANY.home(&slowest, &cpu(0, 1)));
    // New ones: an idle group of fast CPUs before an idle group of slow ones.
    assert!(MANY.heavier(&MANY.sum(&[normal(0, 0)]), &MANY.sum(&[cpu(1, 0)])));
}

#[test]
fn an_idle_cpu_that_is_too_slow_pulls_nothing() {
    // Two on a whole core get half of it each; a tenth of a core is less.
    assert_eq!(pulls(&MANY, cpu(0, 2), of(FULL / 10, cpu(1, 0))), 0);
    assert_eq!(pulls(&MANY, cpu(0, 20), of(FULL / 10, cpu(1, 0))), 1, "of 1.8 that are its share");
}

#[test]
fn a_missing_capability_counts_as_the_smallest() {
    let (none, most) = (of(0, cpu(0, 3)), of(u32::MAX, cpu(1, 0)));
    assert_eq!(MANY.sum(&[none]).capability, 1);
    assert_eq!(MANY.sum(&[most]).capability, FULL);
    assert_eq!(pulls(&MANY, none, most), 2, "all that wait");
}

pub fn any_cpu() -> impl Strategy<Value = CpuView> {
    (any::<u64>(), 0..1024_u32, 0..5_000_u32, 0..5_000_u32, any::<u32>(), 0..300_u32).prop_map(
        |(load, cpu, runnable, waiting, capability, far)| CpuView {
            far,
            load,
            cpu,
            runnable,
            waiting,
            capability: if capability % 4 == 0 { capability } else { capability % FULL + 1 },
            idle: runnable == 0,
            ..CpuView::default()
        },
    )
}

pub fn any_params() -> impl Strategy<Value = BalanceParams> {
    (0..1024_u32, any::<u32>(), 0..64_u32).prop_map(|(faster, tasks, parts)| BalanceParams {
        kind: 1,
        parts,
        faster,
        tasks,
    })
}

proptest! {
    #[test]
    fn with_equal_capabilities_pulls_equal_those_of_count(
        cpus in prop::collection::vec((0..2_000_u32, 0..1024_u32), 1..16),
        ours in 0..2_000_u32,
        capability in 1..=FULL,
        shared: bool,
    ) {
        let same = |view: CpuView| of(capability, view);
        let cpus: Vec<CpuView> = cpus.iter().map(|(tasks, id)| same(cpu(*id, *tasks))).collect();
        let own = same(cpu(2_000, ours));
        let (aware, unaware) = (MANY.sum(&cpus), COUNT.sum(&cpus));
        prop_assert_eq!(aware.busiest, unaware.busiest);
        prop_assert_eq!(MANY.quota(&aware, &own, shared), COUNT.quota(&unaware, &own, shared));
    }

    #[test]
    fn a_pull_makes_loads_more_equal(
        theirs in 2..2_000_u32,
        ours in 0..2_000_u32,
        from in 1..=FULL,
        to in 1..=FULL,
    ) {
        let taken = pulls(&MANY, of(from, cpu(0, theirs)), of(to, cpu(1, ours)));
        prop_assert!(taken <= theirs);
        if taken > 1 || (taken == 1 && ours > 0) {
            // Without the last task, the pulling CPU would carry no more than the other one.
            let (left, right) = (u64::from(theirs - taken + 1), u64::from(ours + taken - 1));
            prop_assert!(left * u64::from(to) >= right * u64::from(from));
        }
    }

    #[test]
    fn any_views_are_defined(
        cpus in prop::collection::vec(any_cpu(), 0..64),
        own in any_cpu(),
        params in any_params(),
    ) {
        let group = params.sum(&cpus);
        prop_assert_eq!(group.busiest == NO_CPU, cpus.iter().all(|cpu| cpu.waiting == 0));
        prop_assert!(params.quota(&group, &own, true) <= group.busiest_load.max(1));
        prop_assert!(!params.heavier(&group, &group));
        let other = cpus.first().unwrap_or(&own);
        prop_assert!(!(params.home(&own, other) && params.home(other, &own)));
        prop_assert!(!(params.place(&own, other) && params.place(other, &own)));
    }

    #[test]
    fn heavier_is_a_strict_order(
        a in prop::collection::vec(any_cpu(), 1..64),
        b in prop::collection::vec(any_cpu(), 1..64),
    ) {
        let (a, b) = (MANY.sum(&a), MANY.sum(&b));
        prop_assert!(!(MANY.heavier(&a, &b) && MANY.heavier(&b, &a)));
    }
}
