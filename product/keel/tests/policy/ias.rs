//! `policy/order.h`, the policy `ias` in its mode `paper`: which sibling runs next. Figures,
//! expressions and sentences are those of paper 003, sections 2.2 and 3.1.

use proptest::prelude::*;

use crate::native::*;

pub const SLICE_NS: u64 = 4_000_000;
pub const BONUS_VRUNTIME: u32 = 0;
pub const BONUS_QUANTUM: u32 = 1;

pub fn on(bonus_type: u32, bonus_value: u64) -> Aggregation {
    let (bonus_max_ns, turn_max_ns) = (u64::MAX, u64::MAX);
    Aggregation { bonus_value, bonus_max_ns, turn_max_ns, limit: 0, bonus_type, agg: 1 }
}

pub fn at(vruntime: u64) -> Candidate {
    Candidate::at(Some(vruntime))
}

fn sibling(vruntime: u64, bonus: u64) -> Candidate {
    Candidate { bonus, ..at(vruntime) }
}

pub const NONE: Candidate = Candidate { exists: false, vruntime: 0, bonus: 0 };

/// Figure 2: A ran; B at 11 is the queue's head, C at 17 the best sibling of A. "If we set the
/// priority bonus equal to or larger than 7 in Fig. 2, TAS will select thread C [...]. Otherwise, TAS
/// selects thread B."
#[test]
fn figure_2() {
    let chosen = |bonus| pick_ias(&[NONE, at(11), sibling(17, bonus), NONE]);
    assert_eq!(
        (6..=8).map(chosen).collect::<Vec<_>>(),
        [CHOOSE_HEAD, CHOOSE_SIBLING, CHOOSE_SIBLING]
    );
}

/// Figure 3 on the slave: E ran; F is the head, G the best sibling of E, H the best of `ia_mm`. Each
/// row: F, G, H, the bonus of all, and the pick by expressions (2), (3) and (4).
#[test]
fn figure_3() {
    for (f, g, h, bonus, expected) in [
        (10, 12, 14, 0, CHOOSE_HEAD),
        // (4) holds, (2) does not.
        (10, 12, 14, 3, CHOOSE_SIBLING),
        (10, 12, 14, 4, CHOOSE_SIBLING),
        // (2) and (3) hold.
        (10, 12, 14, 5, CHOOSE_PUBLISHED),
        (10, 14, 12, 3, CHOOSE_PUBLISHED),
        (10, 14, 13, 3, CHOOSE_HEAD),
        (10, 11, 20, 2, CHOOSE_SIBLING),
    ] {
        let candidates = [NONE, at(f), sibling(g, bonus), sibling(h, bonus)];
        assert_eq!(pick_ias(&candidates), expected, "{f} {g} {h} with {bonus}");
    }
    // Where (2) holds and (3) does not: G's bonus is another one, it is the head itself.
    let candidates = [NONE, at(10), sibling(3, 0), sibling(12, 5)];
    assert_eq!(pick_ias(&candidates), CHOOSE_SIBLING);
    // "a missing G makes (3) true"
    assert_eq!(pick_ias(&[NONE, at(10), NONE, sibling(14, 5)]), CHOOSE_PUBLISHED);
    assert_eq!(pick_ias(&[NONE, at(10), NONE, sibling(14, 4)]), CHOOSE_HEAD);
}

#[test]
fn the_task_that_ran_can_be_what_fair_would_run() {
    // It has less than the head: siblings need no bonus against it, those of the master do.
    assert_eq!(pick_ias(&[at(9), at(10), sibling(11, 5), NONE]), CHOOSE_PREV);
    assert_eq!(pick_ias(&[at(9), at(10), sibling(11, 5), sibling(12, 5)]), CHOOSE_PUBLISHED);
    // It has more: B is the head.
    assert_eq!(pick_ias(&[at(12), at(10), sibling(11, 5), NONE]), CHOOSE_SIBLING);
    assert_eq!(pick_ias(&[at(9), NONE, NONE, NONE]), CHOOSE_PREV);
    assert_eq!(pick_ias(&[NONE, NONE, NONE, NONE]), CHOOSE_NONE);
}

/// "When the scheduler on master Core finds a chance of aggregating sibling threads, it sets [...]
/// ia_mm [...]. Otherwise, ia_mm is NULL."
#[test]
fn a_master_publishes_what_it_aggregates() {
    let found = sibling(11, 5);
    assert!(publishes(CHOOSE_SIBLING, &found));
    assert!(publishes(CHOOSE_PREV, &found), "it aggregates already");
    assert!(!publishes(CHOOSE_PREV, &NONE));
    assert!(!publishes(CHOOSE_PREV, &at(11)), "no bonus, no chance");
    for choice in [CHOOSE_NONE, CHOOSE_HEAD, CHOOSE_PUBLISHED] {
        assert!(!publishes(choice, &found));
    }
}

/// "If bonus_type is 0, IAS gives the priority bonus in vruntime specified in bonus_value. [...] 1,
/// [...] by multiplying the quantum time of the previously executed thread by bonus_value."
#[test]
fn both_kinds_of_bonus() {
    assert_eq!(bonus(&on(BONUS_VRUNTIME, 5_000), SLICE_NS, 0), 5_000);
    assert_eq!(bonus(&on(BONUS_QUANTUM, 3), SLICE_NS, 0), 3 * SLICE_NS);
    assert_eq!(bonus(&on(BONUS_QUANTUM, 3), 0, 0), 0);
    // No overflow, and no task waits for longer than the bound.
    for kind in [BONUS_VRUNTIME, BONUS_QUANTUM] {
        assert_eq!(bonus(&on(kind, u64::MAX), SLICE_NS, 0), BOUND_NS);
        assert_eq!(bonus(&on(kind, u64::MAX), 1, 0), BOUND_NS);
    }
    assert_eq!(bonus(&on(BONUS_QUANTUM, BOUND_NS), 1, 0), BOUND_NS);
}

/// A number of ns of vruntime is that, whatever the sibling weighs; a multiple of the last run is run
/// time of the sibling that gets it.
#[test]
fn a_multiple_of_the_last_run_is_run_time_of_the_sibling() {
    let (fixed, multiple) = (on(BONUS_VRUNTIME, 5_000), on(BONUS_QUANTUM, 3));
    for weight in [NICE_0 / 100, NICE_0, 50 * NICE_0] {
        assert_eq!(weighed(&fixed, 5_000, weight), 5_000);
        assert_eq!(weighed(&multiple, 5_000, weight), charge(0, 5_000, weight));
    }
    assert_eq!(weighed(&multiple, BOUND_NS, NICE_0 / 100), BOUND_NS);
}

/// "The kernel initializes the values of agg as 0"; "IAS does not give the priority bonus [...] when
/// the number of aggregations exceeds limit".
#[test]
fn aggregation_is_off_by_default_and_limited() {
    let off = Aggregation { agg: 0, ..on(BONUS_VRUNTIME, 5_000) };
    assert_eq!(bonus(&off, SLICE_NS, 0), 0);
    let limited = Aggregation { limit: 2, ..on(BONUS_VRUNTIME, 5_000) };
    assert_eq!(
        [0, 1, 2, 3].map(|preferred| bonus(&limited, SLICE_NS, preferred)),
        [5_000, 5_000, 0, 0]
    );
    assert_eq!(bonus(&on(BONUS_VRUNTIME, 5_000), SLICE_NS, u64::MAX), 5_000, "0: no limit");
}

#[test]
fn only_threads_of_one_space_are_siblings_and_only_under_ias() {
    assert_eq!([is_sibling(ORDER_IAS, 7, 7), is_sibling(ORDER_IAS, 7, 8)], [1, 0]);
    assert_eq!(is_sibling(ORDER_IAS, 0, 0), 0, "kernel threads have no space to share");
    assert_eq!(is_sibling(ORDER_FAIR, 7, 7), 0);
}

#[test]
fn an_exchanged_task_keeps_its_distance_from_the_mean() {
    // It is 30 below the mean of 1000, and then of 5000, where the clock is at 4900.
    assert_eq!(exchange(970, 1000, 5000, 4900, 200), 4970);
    assert_eq!(exchange(1030, 1000, 5000, 4900, 200), 5030);
    // It is within the vruntimes that are there, wherever it was in the source queue.
    assert_eq!(exchange(800, 1000, 5000, 4900, 200), 4900);
    assert_eq!(exchange(1800, 1000, 5000, 4900, 200), 5100);
    // Where vruntimes wrap.
    assert_eq!(exchange(u64::MAX, 9, 5, u64::MAX - 9, 200), u64::MAX - 4);
}

#[test]
fn exchanged_tasks_weigh_the_same_to_a_quarter() {
    let pairs = [(1000, 1000), (1000, 1250), (1000, 1251), (1000, 800), (1000, 799), (1, 2)];
    let expected = [true, true, false, true, false, false];
    assert_eq!(pairs.map(|(weight, other)| alike(weight, other)), expected);
    assert_eq!(pairs.map(|(weight, other)| alike(other, weight)), expected);
}

#[test]
fn a_mean_is_over_all_tasks_and_bounded() {
    assert_eq!(mean_of_all(1_000, 600, 3, 0, 5_000), 1_200);
    // No task is counted any more.
    assert_eq!(mean_of_all(1_000, 600, 0, 0, 5_000), 1_600);
    assert_eq!(mean_of_all(1_000, 0, 1, 1_500, 2_000), 1_500);
    assert_eq!(mean_of_all(1_000, 0, 1, 0, 900), 900);
}

/// A thread of a space, with what it has received.
#[derive(Clone, Copy)]
struct Thread {
    space: usize,
    vruntime: u64,
}

/// Runs threads on one CPU by picks as in `bpf/keel/pick.h`, each for a slice. Calls `look` with
/// the running thread and all threads before each slice.
fn replay(
    spaces: &[usize],
    start: u64,
    how: &Aggregation,
    slices: u32,
    mut look: impl FnMut(usize, &[Thread]),
) -> Vec<usize> {
    let mut threads: Vec<Thread> =
        spaces.iter().map(|space| Thread { space: *space, vruntime: start }).collect();
    let (mut running, mut preferred, mut ran) = (0, 0, Vec::new());
    for _ in 0..slices {
        look(running, &threads);
        ran.push(running);
        threads[running].vruntime = charge(threads[running].vruntime, SLICE_NS, NICE_0);
        let best = |wanted: &dyn Fn(usize) -> bool| {
            (0..threads.len())
                .filter(|thread| *thread != running && wanted(*thread))
                .min_by_key(|thread| threads[*thread].vruntime.wrapping_sub(start))
        };
        let (head, own) =
            (best(&|_| true), best(&|it| threads[it].space == threads[running].space));
        let bonus = bonus(how, SLICE_NS, preferred);
        let candidate = |thread: Option<usize>, bonus| Candidate {
            bonus,
            ..Candidate::at(thread.map(|thread| threads[thread].vruntime))
        };
        let from = [at(threads[running].vruntime), candidate(head, 0), candidate(own, bonus), NONE];
        let (chosen, space) = (pick_ias(&from), threads[running].space);
        running = match chosen {
            CHOOSE_HEAD => head.unwrap(),
            CHOOSE_SIBLING => own.unwrap(),
            _ => running,
        };
        preferred = match chosen {
            _ if threads[running].space != space => 0,
            CHOOSE_SIBLING => preferred + 1,
            _ => preferred,
        };
    }
    ran
}

fn switches(ran: &[usize], spaces: &[usize]) -> usize {
    ran.windows(2).filter(|pair| spaces[pair[0]] != spaces[pair[1]]).count()
}

#[test]
fn siblings_run_in_a_row() {
    let spaces: Vec<usize> = (0..10).map(|thread| thread % 2).collect();
    let count = |how| switches(&replay(&spaces, 0, &how, 1_000, |_, _| {}), &spaces);
    let plain = count(on(BONUS_VRUNTIME, 0));
    let once = count(on(BONUS_QUANTUM, 1));
    let many = count(on(BONUS_QUANTUM, 5));
    assert!(once < plain && many < once, "{plain} {once} {many}");
}

#[test]
fn a_limit_ends_the_row() {
    let spaces = [0, 0, 0, 0, 1];
    let limited = Aggregation { limit: 2, ..on(BONUS_QUANTUM, 1_000) };
    let ran = replay(&spaces, 0, &limited, 500, |_, _| {});
    assert!(ran.contains(&4), "a task without siblings runs in spite of a huge bonus");
    let lone = ran.iter().filter(|thread| **thread == 4).count();
    assert!(lone >= 500 / 8, "{lone} of 500");
}

proptest! {
    /// "In case the aggregation [...] degrade the performance, we only have to set the priority bonus
    /// as 0."
    #[test]
    fn without_a_bonus_every_pick_is_that_of_fair(
        start: u64,
        prev in prop::option::of(0..1_u64 << 32),
        queue in prop::collection::vec(0..1_u64 << 32, 0..6),
        own: prop::sample::Index,
        published: prop::sample::Index,
    ) {
        let mut queue = queue;
        queue.sort_unstable();
        let place = |lag: u64| start.wrapping_add(lag);
        let of_queue = |which: &prop::sample::Index| match queue.is_empty() {
            true => NONE,
            false => at(place(*which.get(&queue))),
        };
        let (prev, head) = (prev.map(place), queue.first().copied().map(place));
        let candidates = [
            Candidate::at(prev), Candidate::at(head), of_queue(&own), of_queue(&published),
        ];
        prop_assert_eq!(pick_ias(&candidates), pick(prev, head));
    }

    #[test]
    fn no_task_is_preferred_beyond_the_bonus(
        start: u64,
        lags in prop::array::uniform4(0..1_u64 << 33),
        exist in prop::array::uniform4(any::<bool>()),
        bonuses in prop::array::uniform2(0..1_u64 << 33),
    ) {
        let mut candidates: [Candidate; 4] = std::array::from_fn(|which| Candidate {
            exists: exist[which],
            vruntime: start.wrapping_add(lags[which]),
            bonus: if which < 2 { 0 } else { bonuses[which - 2] },
        });
        candidates[2].exists &= exist[1];
        candidates[3].exists &= exist[1];
        let lag = |which: usize| lags[which] as i128;
        let chosen = pick_ias(&candidates);
        for other in 0..4 {
            if candidates[other].exists && chosen != CHOOSE_NONE {
                let runs = chosen as usize - 1;
                // Siblings are not compared with the master's, but for the choice of the latter.
                if other < 2 || chosen == CHOOSE_PUBLISHED {
                    prop_assert!(lag(runs) - candidates[runs].bonus as i128 <= lag(other));
                }
            }
        }
    }

    /// The virtual lag of a thread that waits: never more than the bonus and a slice behind the
    /// running one.
    #[test]
    fn lags_are_bounded_by_bonus_and_slice(
        start: u64,
        spaces in prop::collection::vec(0..3_usize, 2..8),
        factor in 0..6_u64,
    ) {
        let how = on(BONUS_QUANTUM, factor);
        let most = factor * SLICE_NS + SLICE_NS;
        let mut worst = 0;
        replay(&spaces, start, &how, 300, |running, threads| {
            for thread in threads {
                let lag = threads[running].vruntime.wrapping_sub(thread.vruntime) as i64;
                worst = worst.max(lag);
            }
        });
        prop_assert!(worst <= most as i64, "{worst} > {most}");
    }

    /// For any turns of any tasks, and where vruntimes wrap.
    #[test]
    fn the_mean_is_the_mean_of_all_vruntimes(
        start: u64,
        weights in prop::collection::vec(NICE_0 / 4..4 * NICE_0, 1..20),
        turns in prop::collection::vec((any::<prop::sample::Index>(), 0..SLICE_NS), 0..200),
    ) {
        let mut vruntimes = vec![start; weights.len()];
        let mut seen = start;
        let lag = |vruntime: u64| vruntime.wrapping_sub(start);
        for (turn, run_ns) in &turns {
            let task = turn.index(weights.len());
            let before = vruntimes[task];
            vruntimes[task] = charge(before, *run_ns, weights[task]);
            let charged = vruntimes[task].wrapping_sub(before);
            let order = || vruntimes.iter().copied();
            let least = order().min_by_key(|vruntime| lag(*vruntime)).unwrap();
            let most = order().max_by_key(|vruntime| lag(*vruntime)).unwrap();
            seen = mean_of_all(seen, charged, weights.len() as u64, least, most);
            prop_assert!(lag(least) <= lag(seen) && lag(seen) <= lag(most));
        }
        let exact = vruntimes.iter().map(|vruntime| lag(*vruntime)).sum::<u64>() / weights.len() as u64;
        // Each turn may be off by the fraction of a ns.
        prop_assert!(exact - lag(seen) <= turns.len() as u64);
    }

    #[test]
    fn an_exchanged_task_is_within_the_vruntimes_there(
        vruntime: u64, from: u64, to: u64, clock: u64, spread in 0..1_u64 << 40,
    ) {
        prop_assert!(exchange(vruntime, from, to, clock, spread).wrapping_sub(clock) <= spread);
    }

    #[test]
    fn any_mean_is_between_the_least_and_the_most(
        before: u64, charged: u64, tasks: u64, least: u64, spread in 0..1_u64 << 62,
    ) {
        let most = least.wrapping_add(spread);
        prop_assert!(mean_of_all(before, charged, tasks, least, most).wrapping_sub(least) <= spread);
    }

    #[test]
    fn any_bonus_is_bounded(how in any::<(u64, u64, u32, u32)>(), quantum: u64, preferred: u64) {
        let (bonus_value, limit, bonus_type, agg) = how;
        let space = Aggregation { limit, agg, ..on(bonus_type, bonus_value) };
        prop_assert!(bonus(&space, quantum, preferred) <= BOUND_NS);
        let capped = Aggregation { bonus_max_ns: 7, ..space };
        prop_assert!(bonus(&capped, quantum, preferred) <= 7);
    }
}

/// The fair clock moves on as fast as each task would, a little slower while tasks run in turn.
#[test]
fn the_fair_clock_is_what_each_task_should_have() {
    const TASKS: u64 = 4;
    let after = |fair_clock, clock, vruntime, tasks| {
        fair_clock_after(fair_clock, clock, vruntime, SLICE_NS, TASKS * NICE_0, tasks)
    };
    // Out of turn, in its turn, and a task that uses the credit for its sleep.
    assert_eq!(after(500, 500, 501, TASKS), 500 + SLICE_NS / TASKS);
    assert_eq!(after(500, 500, 500, TASKS), 500 + SLICE_NS / TASKS / 8 * 7);
    assert_eq!(after(500, 500, 499, TASKS), 500);
    // It is never behind the clock, nor far ahead of it; with no other task nothing is owed.
    assert_eq!(after(500, 5_000_000, 5_000_000, TASKS), 5_000_000);
    assert_eq!(after(500 + 2 * BOUND_NS, 500, 501, TASKS), 500 + BOUND_NS);
    assert_eq!(after(9_000, 500, 501, 1), 500);
    assert_eq!(after(u64::MAX, u64::MAX, 0, TASKS), SLICE_NS / TASKS - 1);
}

/// Siblings are preferred until the next task is behind its fair share by bonus and slice, or all tasks
/// together have waited for the longest turn.
#[test]
fn siblings_are_not_preferred_while_others_have_fallen_behind() {
    let how = on(BONUS_VRUNTIME, 5_000_000);
    let may = |how: &Aggregation, owed, tasks: u64| {
        may_prefer(how, 5_000_000, 100 + owed, 100, tasks * NICE_0, tasks)
    };
    let most = 5_000_000 + SLICE_NS;
    for tasks in [2, 3, 100] {
        // The division by the number of tasks may lose a ns.
        assert!(may(&how, most - 1, tasks) && !may(&how, most + 1, tasks), "{tasks} tasks");
    }
    // More tasks than a machine can have: the longest turn bounds what they wait.
    assert!(may_prefer(&how, 5_000_000, 100, 0, NICE_0, 1 << 63));
    let ordinary = Aggregation { turn_max_ns: 100_000_000, ..how };
    assert!(may(&ordinary, most, 2));
    assert!(may(&ordinary, 1_000_000, 100) && !may(&ordinary, 1_000_001, 100));
}
