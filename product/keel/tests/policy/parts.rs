//! `policy/balance.h`, the parts of `capability`: the distance of memory, the cost of moves, and
//! what paper 002 leaves open.

use proptest::prelude::*;

use crate::balance::{cpu, pulled};
use crate::capability::{any_cpu, any_params};
use crate::native::*;

const PLAIN: BalanceParams = BalanceParams { kind: 1, parts: 0, faster: 0, tasks: 1_000 };
const HOME: BalanceParams = BalanceParams { parts: 1, ..PLAIN };
const COST: BalanceParams = BalanceParams { parts: 2, ..PLAIN };
const AS_COUNT: BalanceParams = BalanceParams { parts: 4, ..PLAIN };
const BARE: BalanceParams = BalanceParams { parts: 8, ..PLAIN };
const ACTIVE: BalanceParams = BalanceParams { parts: 16, ..PLAIN };
const TURNS: BalanceParams = BalanceParams { parts: 32, ..PLAIN };
const SIMILAR: BalanceParams = BalanceParams { parts: 64, ..PLAIN };
const COUNT: BalanceParams = BalanceParams { kind: 0, parts: 127, faster: 0, tasks: 1_000 };

/// Ten times as far as it is slower: 12 is a fifth slower.
fn far(distance: u32, cpu: CpuView) -> CpuView {
    CpuView { far: distance, ..cpu }
}

fn slow(cpu: CpuView) -> CpuView {
    CpuView { capability: FULL / 2, ..cpu }
}

#[test]
fn a_new_task_goes_to_its_memory_where_that_is_worth_more() {
    let (here, there) = (far(10, cpu(0, 2)), far(20, cpu(1, 2)));
    assert!(HOME.place(&there, &here) && !HOME.place(&here, &there));
    assert!(!PLAIN.place(&there, &here), "all the same without the part");
    // Twice as far, but of three the third part: the other CPU is worth a half of a half.
    assert!(HOME.place(&far(10, cpu(0, 4)), &far(20, cpu(1, 1))));
    assert!(!HOME.place(&far(10, cpu(0, 4)), &far(20, cpu(1, 2))));
    // Far and fast as good as near and slow: the first one.
    assert!(!HOME.place(&slow(far(10, cpu(0, 0))), &far(20, cpu(1, 0))));
    assert!(HOME.place(&slow(far(10, cpu(0, 0))), &far(19, cpu(1, 0))));
}

#[test]
fn a_new_task_goes_to_an_idle_cpu_before_a_busy_one() {
    assert!(HOME.place(&far(10, cpu(0, 1)), &slow(far(60, cpu(1, 0)))));
    assert!(!HOME.place(&slow(far(60, cpu(1, 0))), &far(10, cpu(0, 1))));
}

#[test]
fn a_waking_task_goes_to_its_memory() {
    let (near, remote) = (far(10, cpu(0, 0)), far(14, cpu(1, 0)));
    assert!(HOME.home(&remote, &near) && !HOME.home(&near, &remote));
    assert!(!PLAIN.home(&remote, &near), "as near, by levels");
    assert!(!HOME.home(&slow(near), &far(21, cpu(1, 0))));
    assert!(HOME.home(&slow(near), &remote));
}

#[test]
fn a_task_that_comes_nearer_to_its_memory_is_pulled_first() {
    let task =
        |far_src, far_dst| TaskView { far_src, far_dst, rested_ns: 0, ..TaskView::default() };
    let score = |params: &BalanceParams, task| params.task_score(&task, FULL, FULL);
    assert_eq!(score(&HOME, task(20, 10)), SCORE_FIRST);
    assert_eq!(score(&HOME, TaskView { rested_ns: u64::MAX, ..task(10, 20) }), SCORE_SECOND);
    assert_eq!(score(&HOME, task(20, 20)), SCORE_SECOND, "by caches, which are hot");
    assert_eq!(score(&PLAIN, task(20, 10)), SCORE_SECOND);
    assert_eq!(score(&COUNT, task(20, 10)), SCORE_SECOND);
    let with_siblings = TaskView { sibling: 1, ..task(10, 20) };
    assert_eq!(score(&HOME, with_siblings), SCORE_SIBLING, "siblings come first");
}

#[test]
fn no_busy_cpu_pulls_a_task_that_gets_less_there() {
    const WEIGHT: u64 = 1 << 20;
    let (three, one) = (far(10, cpu(0, 3)), cpu(1, 1));
    // A third of a CPU here, half of one there.
    assert!(COST.pays(&three, &far(14, one), WEIGHT));
    assert!(!COST.pays(&three, &far(16, one), WEIGHT));
    assert!(!COST.pays(&three, &slow(far(10, one)), WEIGHT));
    assert!(PLAIN.pays(&three, &far(99, one), WEIGHT) && COUNT.pays(&three, &far(99, one), WEIGHT));
    // Half of a CPU twice as far: a quarter.
    assert!(COST.pays(&far(20, cpu(0, 2)), &far(20, cpu(1, 1)), WEIGHT));
    assert!(!COST.pays(&far(10, cpu(0, 2)), &far(20, cpu(1, 1)), WEIGHT));
}

#[test]
fn a_bare_comparison_has_no_threshold() {
    let pulls = |params: &BalanceParams, theirs, ours| {
        pulled(params.quota(&params.sum(&[cpu(0, theirs)]), &cpu(1, ours), false))
    };
    assert_eq!((pulls(&PLAIN, 10, 8), pulls(&BARE, 10, 8)), (0, 1));
    assert_eq!((pulls(&BARE, 8, 8), pulls(&COUNT, 10, 8)), (0, 0));
}

#[test]
fn a_task_that_runs_alone_leaves_for_a_faster_idle_cpu() {
    let (here, idle) = (slow(cpu(0, 1)), cpu(1, 0));
    assert!(ACTIVE.active(&here, &idle) && !ACTIVE.active(&idle, &here));
    assert!(!ACTIVE.active(&here, &cpu(1, 1)), "a task runs there");
    // It must be faster by a quarter, and of two idle CPUs the faster one is the better.
    let nearly = CpuView { capability: FULL * 9 / 10, ..cpu(0, 1) };
    assert!(!ACTIVE.active(&nearly, &idle));
    assert!(ACTIVE.active(&CpuView { idle: true, ..nearly }, &idle));
    // A CPU twice as fast is none where its memory is twice as far.
    let (near, far) = (CpuView { far: 10, ..here }, CpuView { far: 20, ..idle });
    assert!(!ACTIVE.active(&near, &far) && ACTIVE.active(&near, &CpuView { far: 10, ..idle }));
}

#[test]
fn tasks_that_run_alone_on_unequal_cpus_are_exchanged() {
    let (fast, alone) = (cpu(0, 1), slow(cpu(1, 1)));
    assert!(TURNS.change(&fast, &alone) && TURNS.change(&alone, &fast));
    assert!(!PLAIN.change(&fast, &alone) && !ACTIVE.change(&fast, &alone));
    assert!(!TURNS.change(&fast, &slow(cpu(1, 2))), "a task waits there");
    assert!(!TURNS.change(&fast, &slow(cpu(1, 0))), "no task is there");
    assert!(!TURNS.change(&fast, &CpuView { capability: FULL * 9 / 10, ..alone }));
}

#[test]
fn programs_gather_on_cpus_of_one_kind() {
    let (fast, own) = (cpu(0, 1), slow(cpu(1, 1)));
    for (has, first, goes) in [
        ([2, 1], false, true),
        ([1, 1], true, true),
        // Otherwise both would go, and come back: ping-pong.
        ([1, 1], false, false),
        ([1, 2], true, false),
        // A program of one thread has no CPUs to gather on.
        ([0, 1], true, false),
    ] {
        assert_eq!(SIMILAR.gather(&own, &fast, has, first), goes, "{has:?} {first}");
        assert!(!PLAIN.gather(&own, &fast, has, first) && !TURNS.gather(&own, &fast, has, first));
        assert!(!SIMILAR.gather(&fast, &own, has, first), "to a slower one");
        assert!(!SIMILAR.gather(&own, &cpu(0, 2), has, first), "a task waits there");
        assert!(!SIMILAR.gather(&slow(cpu(1, 2)), &fast, has, first), "a task waits here");
    }
    assert!(!COUNT.gather(&own, &fast, [2, 1], true));
}

proptest! {
    /// Programs with so many threads on fast CPUs, and so many on slow ones: any two exchange
    /// threads as long as the policy says, in any order. It ends, and then at most one has threads
    /// on both kinds.
    #[test]
    fn gathering_ends(
        threads in prop::collection::vec([0u32..6, 0u32..6], 2..6),
        order in prop::collection::vec((0usize..6, 0usize..6), 1..400),
    ) {
        let (fast, own) = (cpu(0, 1), slow(cpu(1, 1)));
        let (count, most) = (threads.len(), threads.iter().flatten().sum::<u32>());
        let (mut programs, mut changes) = (threads, 0);
        let mut go = |p: usize, q: usize| {
            let (ours, theirs) = (programs[p], programs[q]);
            let goes = p != q
                && ours[1] > 0
                && theirs[0] > 0
                && SIMILAR.gather(&own, &fast, [ours[0], theirs[0]], p < q);
            if goes {
                programs[p] = [ours[0] + 1, ours[1] - 1];
                programs[q] = [theirs[0] - 1, theirs[1] + 1];
                changes += 1;
            }
            goes
        };
        for (p, q) in order {
            go(p % count, q % count);
        }
        while (0..count * count).any(|pair| go(pair / count, pair % count)) {}
        // Each adds 2 to a sum of squares of at most that.
        prop_assert!(changes <= most * most / 2, "{changes} changes");
        let split = programs.iter().filter(|[fast, slow]| *fast > 0 && *slow > 0);
        prop_assert!(split.count() <= 1, "{programs:?}");
    }
}

#[test]
fn a_turn_is_longer_where_more_tasks_want_the_place() {
    let turn = turn_ns(1, 2);
    assert_eq!((turn_ns(1, 4), turn_ns(3, 4)), (3 * turn, turn));
    assert_eq!((turn_ns(4, 8), turn_ns(0, 8), turn_ns(9, 8)), (turn, turn, turn));
}

#[test]
fn plain_placement_treats_cpus_as_equal() {
    assert_eq!((AS_COUNT.placing(), PLAIN.placing(), HOME.placing()), (0, 1, 1));
}

proptest! {
    #[test]
    fn an_exchange_is_agreed_on_by_both_cpus(a in any_cpu(), b in any_cpu(), params in any_params()) {
        prop_assert_eq!(params.change(&a, &b), params.change(&b, &a));
        prop_assert!(!COUNT.change(&a, &b), "count knows no unequal CPUs");
    }

    #[test]
    fn active_migration_never_plays_ping_pong(a in any_cpu(), b in any_cpu(), params in any_params()) {
        let (runs, idles) = (|cpu| CpuView { idle: false, ..cpu }, |cpu| CpuView { idle: true, ..cpu });
        let leaves = |from, to| params.active(&runs(from), &idles(to));
        prop_assert!(!(leaves(a, b) && leaves(b, a)));
    }

    #[test]
    fn distances_below_the_nearest_do_not_count(a in any_cpu(), b in any_cpu(), params in any_params()) {
        let (near, nearer) = (|cpu| far(10, cpu), |cpu| far(0, cpu));
        prop_assert_eq!(params.place(&near(a), &near(b)), params.place(&nearer(a), &nearer(b)));
        prop_assert_eq!(params.home(&near(a), &near(b)), params.home(&nearer(a), &nearer(b)));
    }

    #[test]
    fn a_move_that_pays_pays_from_a_busier_cpu_too(
        (from, to) in (0..500_u32, 0..500_u32),
        (near, remote) in (0..60_u32, 0..60_u32),
    ) {
        let pays = |from| COST.pays(&far(near, cpu(0, from)), &far(remote, cpu(1, to)), 1 << 20);
        prop_assert!(!pays(from) || pays(from + 1));
    }
}
