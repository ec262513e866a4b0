//! `policy/order.h`: which task runs next.

use proptest::prelude::*;

use crate::native::*;

const SLICE_NS: u64 = 4_000_000;

/// a - b on the circle of vruntimes.
fn ahead(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}

#[test]
fn the_smallest_vruntime_runs_and_a_tie_is_no_switch() {
    assert_eq!(pick(None, None), CHOOSE_NONE);
    assert_eq!(pick(Some(9), None), CHOOSE_PREV);
    assert_eq!(pick(None, Some(9)), CHOOSE_HEAD);
    assert_eq!(pick(Some(9), Some(8)), CHOOSE_HEAD);
    assert_eq!(pick(Some(9), Some(9)), CHOOSE_PREV);
    // Where vruntimes wrap: 2 comes after the largest.
    assert_eq!(pick(Some(2), Some(u64::MAX)), CHOOSE_HEAD);
    assert_eq!(pick(Some(u64::MAX), Some(2)), CHOOSE_PREV);
}

#[test]
fn fair_knows_no_siblings() {
    let sibling = Candidate { bonus: 100, ..Candidate::at(Some(20)) };
    for prev in [None, Some(9), Some(30)] {
        let (prev_at, head) = (Candidate::at(prev), Candidate::at(Some(10)));
        assert_ne!(pick_ias(&[Candidate::at(None), head, sibling, sibling]), CHOOSE_HEAD);
        assert_eq!(pick_fair(&[prev_at, head, sibling, sibling]), pick(prev, Some(10)));
    }
}

#[test]
fn a_new_task_starts_its_share_of_a_slice_late() {
    assert_eq!(place_new(SLICE_NS, 1_000, 1), 1_000 + SLICE_NS);
    assert_eq!(place_new(SLICE_NS, 1_000, 8), 1_000 + SLICE_NS / 8);
    assert_eq!(place_new(SLICE_NS, 1_000, 0), 1_000 + SLICE_NS);
    assert_eq!(place_new(u64::MAX, u64::MAX, 1), BOUND_NS - 1);
    assert_eq!(place_new(u64::MAX, 0, 8), BOUND_NS / 8, "of the longest slice that counts");
}

#[test]
fn a_forked_task_begins_no_earlier_than_the_task_that_forks_it_goes_on() {
    let begins = |late| place_heir(SLICE_NS, 1_000, 8, late, 0, NICE_0);
    assert_eq!(begins(3 * SLICE_NS), 1_000 + 3 * SLICE_NS);
    assert_eq!(begins(SLICE_NS / 9), 1_000 + SLICE_NS / 8, "not before its share of a slice");
    assert_eq!(begins(u64::MAX), 1_000 + BOUND_NS);
}

#[test]
fn a_new_task_pays_for_its_first_slice() {
    // One of eight tasks of a cgroup.
    let (clock, weight) = (1 << 40, NICE_0 / 8);
    let begins = place_heir(SLICE_NS, clock, 8, 0, SLICE_NS, weight);
    assert_eq!(begins, charge(clock, SLICE_NS, weight));
    assert_eq!(debt_ns(begins, clock, weight), SLICE_NS);
    // Alone, it has more of the CPU, and pays in less time.
    assert_eq!(place_heir(SLICE_NS, clock, 8, 0, SLICE_NS, NICE_0), clock + SLICE_NS);
    assert_eq!(debt_ns(clock - 1, clock, weight), 0);
    assert_eq!(debt_ns(clock, clock, weight), 0);
}

#[test]
fn a_new_task_need_not_pay_for_what_others_have_not_used() {
    let slice = SLICE_NS as i64;
    let paid = |prepaid_ns| prepayment_ns(SLICE_NS, prepaid_ns);
    assert_eq!(paid(0), SLICE_NS);
    assert_eq!(paid(slice - 500_000), 500_000);
    assert_eq!((paid(slice), paid(slice + 1), paid(i64::MAX)), (0, 0, 0));
    // It pays at most a slice for others.
    assert_eq!((paid(-slice / 2), paid(-9 * slice)), (SLICE_NS * 3 / 2, 2 * SLICE_NS));
    // Nothing can be saved up, and a long debt is forgotten.
    for (prepaid, change, kept) in [
        (0, 1, true),
        (0, -1, true),
        (16, 1, false),
        (16, -1, true),
        (-17, -1, false),
        (-17, 1, true),
    ] {
        assert_eq!(keeps_prepaid(SLICE_NS, prepaid * slice, change * slice), kept, "{prepaid}");
    }
    assert!(keeps_prepaid(u64::MAX, 0, 1), "a slice above the bound counts as the bound");
}

#[test]
fn the_head_is_taken_unseen_only_if_every_head_would_be_picked() {
    assert!(is_head(ORDER_FAIR, None));
    assert_eq!(pick(None, Some(0)), CHOOSE_HEAD);
    assert_eq!(pick(None, Some(u64::MAX)), CHOOSE_HEAD);
    // The task that ran may be ahead of it, and a sibling may have a bonus.
    assert!(!is_head(ORDER_FAIR, Some(9)));
    assert!(!is_head(ORDER_IAS, None));
}

#[test]
fn a_sleeper_is_half_a_slice_ahead_at_most() {
    let clock = 1 << 40;
    assert_eq!(place(SLICE_NS, 5, clock, clock, PLACE_WAKE), clock - SLICE_NS / 2);
    // A task that slept only for a moment has no credit to lose.
    assert_eq!(place(SLICE_NS, clock - 10, clock, clock, PLACE_WAKE), clock - 10);
    assert_eq!(place(SLICE_NS, clock + 10, clock, clock, PLACE_WAKE), clock + 10);
}

#[test]
fn a_task_keeps_its_distance_from_the_clock() {
    assert_eq!(place(SLICE_NS, 130, 100, 900, PLACE_ARRIVE), 930);
    // A task that waits keeps its lead, even one larger than a sleeper's credit.
    let (from, to) = (1 << 40, 1 << 50);
    assert_eq!(place(SLICE_NS, from - 3 * SLICE_NS, from, to, PLACE_ARRIVE), to - 3 * SLICE_NS);
}

#[test]
fn a_task_that_just_got_the_cpu_is_protected() {
    assert!(protects(SLICE_NS, 999_999));
    assert!(!protects(SLICE_NS, 1_000_000));
    assert!(protects(400_000, 99_999));
    assert!(!protects(400_000, 100_000));
}

#[test]
fn a_task_that_yields_gives_way_once_a_switch_pays() {
    assert!(!gives_way(0));
    assert!(!gives_way(9_999));
    assert!(gives_way(10_000));
}

#[test]
fn only_a_task_that_slept_for_long_preempts() {
    let clock = 1 << 40;
    for slice_ns in [100_000, 400_000, SLICE_NS, 1_000_000_000] {
        let sleeper = place(slice_ns, 0, clock, clock, PLACE_WAKE);
        assert!(preempt(slice_ns, sleeper, clock), "{slice_ns}");
    }
    assert!(!preempt(SLICE_NS, clock, clock));
    assert!(!preempt(SLICE_NS, clock, clock + 1_000_000));
    assert!(preempt(SLICE_NS, clock, clock + 1_000_001));
    // With short slices, the granularity is a quarter of them.
    assert!(!preempt(400_000, clock, clock + 100_000));
    assert!(preempt(400_000, clock, clock + 100_001));
    // A task that the gate keeps from an idle CPU needs no more than to be ahead.
    assert!(preempts_kept(clock, clock + 1) && preempts_kept(u64::MAX, 0));
    assert!(!preempts_kept(clock, clock) && !preempts_kept(clock + 1, clock));
}

/// Runs tasks of these weights on one CPU by picks as in `bpf/keel/pick.h`, each for a slice.
/// Returns how long each ran.
fn replay(weights: &[u64], start: u64, slices: u32) -> Vec<u64> {
    let mut vruntimes = vec![start; weights.len()];
    let mut ran_ns = vec![0; weights.len()];
    let mut running = 0;
    for _ in 0..slices {
        ran_ns[running] += SLICE_NS;
        vruntimes[running] = charge(vruntimes[running], SLICE_NS, weights[running]);
        let head = (0..weights.len())
            .filter(|task| *task != running)
            .min_by_key(|task| ahead(vruntimes[*task], start));
        let chosen = pick(Some(vruntimes[running]), head.map(|head| vruntimes[head]));
        if chosen == CHOOSE_HEAD {
            running = head.unwrap();
        }
    }
    ran_ns
}

#[test]
fn weights_of_three_to_one_give_three_to_one() {
    let ran_ns = replay(&[3 * NICE_0, NICE_0], 0, 4_000);
    assert_eq!(ran_ns, [3_000 * SLICE_NS, 1_000 * SLICE_NS]);
}

proptest! {
    #[test]
    fn shares_are_the_weights_wherever_the_clock_stands(
        start: u64,
        weights in prop::collection::vec(NICE_0 / 8..8 * NICE_0, 2..6),
    ) {
        let slices = 20_000;
        let ran_ns = replay(&weights, start, slices);
        let all: u64 = weights.iter().sum();
        for (weight, ran) in weights.iter().zip(ran_ns) {
            let due = f64::from(slices) * SLICE_NS as f64 * (*weight as f64 / all as f64);
            // No task is further from its due share than the granularity of turns.
            let error = (ran as f64 - due).abs() / SLICE_NS as f64;
            prop_assert!(error < 3.0 * weights.len() as f64, "{error} slices off");
        }
    }

    #[test]
    fn a_place_is_near_the_clock_and_keeps_the_order(
        slice_ns in 100_000..1_000_000_000_u64,
        from: u64,
        to: u64,
        a in -(1_i64 << 62)..1 << 62,
        b in -(1_i64 << 62)..1 << 62,
        how in 0..3_u32,
    ) {
        let at = |lag: i64| place(slice_ns, from.wrapping_add_signed(lag), from, to, how);
        let lead = if how == PLACE_WAKE { slice_ns / 2 } else { BOUND_NS };
        prop_assert!(ahead(at(a), to) <= BOUND_NS as i64);
        prop_assert!(ahead(at(a), to) >= -(lead as i64));
        if a <= b {
            prop_assert!(ahead(at(a), at(b)) <= 0);
        }
    }

    #[test]
    fn a_new_task_waits_for_what_it_pays(
        slice_ns in 100_000..1_000_000_000_u64,
        clock: u64,
        paid_ns in 0..2 * BOUND_NS,
        weight in MIN_WEIGHT..100 * NICE_0,
    ) {
        let begins = place_heir(slice_ns, clock, 8, 0, paid_ns, weight);
        prop_assert!(ahead(begins, clock) <= BOUND_NS as i64);
        let worth_ns = debt_ns(begins, clock, weight);
        let most_ns = (u128::from(BOUND_NS) * u128::from(weight) / u128::from(NICE_0)) as u64;
        prop_assert!(worth_ns + 100 >= paid_ns.min(most_ns), "{worth_ns} of {paid_ns}");
    }

    #[test]
    fn no_new_task_pays_more_than_two_slices(slice_ns in 1..1_000_000_000_u64, prepaid: i64) {
        prop_assert!(prepayment_ns(slice_ns, prepaid / 4) <= 2 * slice_ns);
    }

    #[test]
    fn running_always_costs_and_heavier_tasks_pay_less(
        vruntime: u64,
        run_ns: u64,
        weight: u64,
        more: u64,
    ) {
        let paid = |weight| charge(vruntime, run_ns, weight).wrapping_sub(vruntime);
        prop_assert!(paid(weight) < 1 << 51);
        prop_assert!(paid(weight.saturating_add(more)) <= paid(weight));
        // Within the longest run that is charged at once, no run is free.
        if weight <= NICE_0 && run_ns > 0 {
            prop_assert!(paid(weight) >= run_ns.min(1 << 40));
        }
        prop_assert_eq!(paid(0), paid(MIN_WEIGHT));
    }

    #[test]
    fn a_preemption_leads_to_a_switch(slice_ns in 100_000..1_000_000_000_u64, waking: u64,
                                      lead in 0..1_u64 << 62) {
        let running = waking.wrapping_add(lead);
        if preempt(slice_ns, waking, running) {
            prop_assert_eq!(pick(Some(running), Some(waking)), CHOOSE_HEAD);
        }
        prop_assert!(!preempt(slice_ns, running, waking));
    }
}
