//! `policy/order.h`, the policy `ias` in its mode `rounds`: how far siblings go first in the turn of
//! their address space, when it ends, and what passes it. Slices are 4 ms and turns 20 ms long.

use proptest::prelude::*;

use crate::ias::{BONUS_QUANTUM, BONUS_VRUNTIME, SLICE_NS, on};
use crate::native::*;

const TURN_NS: u64 = 20_000_000;

/// How far siblings go first at most: half a rotation of all tasks.
const LEAD_NS: u64 = SLICE_NS / 2;

/// A multiple of the last run only says that siblings aggregate, however short or long that run was.
/// Less than half a slice in ns holds as it is.
#[test]
fn a_bonus_is_half_a_slice_at_most() {
    for quantum_ns in [0, 1, SLICE_NS, 1 << 40] {
        assert_eq!(bonus_in_rounds(&on(BONUS_QUANTUM, 0), quantum_ns, 0), 0);
        for times in [1, 3, u64::MAX] {
            assert_eq!(bonus_in_rounds(&on(BONUS_QUANTUM, times), quantum_ns, 0), LEAD_NS);
        }
        for (ns, expected) in [(0, 0), (5_000, 5_000), (SLICE_NS, LEAD_NS), (u64::MAX, LEAD_NS)] {
            assert_eq!(bonus_in_rounds(&on(BONUS_VRUNTIME, ns), quantum_ns, 0), expected);
        }
    }
    let limited = Aggregation { limit: 2, ..on(BONUS_QUANTUM, 3) };
    let bonuses = [0, 1, 2].map(|preferred| bonus_in_rounds(&limited, SLICE_NS, preferred));
    assert_eq!(bonuses, [LEAD_NS, LEAD_NS, 0]);
    let off = Aggregation { agg: 0, ..on(BONUS_QUANTUM, 3) };
    assert_eq!(bonus_in_rounds(&off, SLICE_NS, 0), 0);
    let capped = Aggregation { bonus_max_ns: 7, ..on(BONUS_QUANTUM, 3) };
    assert_eq!(bonus_in_rounds(&capped, SLICE_NS, 0), 7);
}

/// Five slices of 4 ms are a turn of 20 ms, although each is a little shorter or longer.
#[test]
fn a_turn_has_as_many_slices_as_are_nearest() {
    let is_over_after = |ns| is_turn_over(SLICE_NS, TURN_NS, ns);
    for (slices, is_over) in [(0, false), (1, false), (4, false), (5, true), (6, true)] {
        let ns = slices * SLICE_NS;
        assert_eq!(is_over_after(ns), is_over, "{slices} slices");
        assert_eq!(is_over_after(ns + SLICE_NS / 3), is_over, "{slices} long slices");
        if slices > 0 {
            assert_eq!(is_over_after(ns - SLICE_NS / 3), is_over, "{slices} short slices");
        }
    }
}

/// A turn that is set shorter than two slices has room for two: for the slice that began it, and one of
/// a sibling.
#[test]
fn a_turn_has_room_for_two_slices_however_short_it_is_set() {
    for slice_ns in [SLICE_NS, 4 * SLICE_NS] {
        for turn_ns in [100_000, slice_ns, 2 * slice_ns] {
            let is_over = |ns| is_turn_over(slice_ns, turn_ns, ns);
            assert!(!is_over(slice_ns) && is_over(2 * slice_ns), "{slice_ns} {turn_ns}");
        }
    }
}

/// A task that slept is ahead of the clock. One that preempted as it woke has the vruntime that it woke
/// with, or less if another one woke as well.
#[test]
fn tasks_that_slept_or_preempted_pass_a_turn() {
    assert!(passes_turn(99, 100, 0));
    assert!(!passes_turn(100, 100, 0) && !passes_turn(101, 100, 0));
    assert!(passes_turn(104, 100, 105) && passes_turn(105, 100, 105));
    assert!(!passes_turn(106, 100, 105));
    // Vruntimes wrap.
    assert!(passes_turn(u64::MAX, 3, 0) && passes_turn(3, u64::MAX, 5));
}

/// Each task may fall behind by a slice, as under `fair`, and all together wait for one turn.
#[test]
fn others_fall_behind_by_a_slice_and_a_turn_together() {
    let how = on(BONUS_QUANTUM, 1_000);
    for tasks in [2, 5, 100] {
        let may = |owed| may_prefer_in_rounds(&how, 100 + owed, 100, tasks * NICE_0, tasks);
        let most = SLICE_NS + TURN_NS / tasks;
        assert!(may(most) && !may(most + 1), "{tasks} tasks");
    }
    let ordinary = Aggregation { turn_max_ns: 40_000_000, ..how };
    assert!(may_prefer_in_rounds(&ordinary, 400_000, 0, 100 * NICE_0, 100));
    assert!(!may_prefer_in_rounds(&ordinary, 400_001, 0, 100 * NICE_0, 100));
}

proptest! {
    /// Threads of several spaces on one CPU that always want it: whatever turns there are, no thread has
    /// a slice and a half more than another one.
    #[test]
    fn no_thread_is_a_slice_and_a_half_ahead(
        start: u64,
        spaces in prop::collection::vec(0..4_usize, 2..20),
        picks in prop::collection::vec(any::<bool>(), 300),
    ) {
        let mut vruntimes = vec![start; spaces.len()];
        let (mut space, mut prev) = (spaces[0], None::<usize>);
        for over in picks {
            let lag = |thread: &usize| vruntimes[*thread].wrapping_sub(start);
            let waiting = || (0..spaces.len()).filter(|thread| Some(*thread) != prev);
            let head = waiting().min_by_key(lag).unwrap();
            let own = waiting().filter(|thread| spaces[*thread] == space).min_by_key(lag);
            let bonus = bonus_in_rounds(&on(BONUS_QUANTUM, 9), 0, 0);
            let of = |thread: Option<usize>, bonus| Candidate {
                bonus,
                ..Candidate::at(thread.map(|thread| vruntimes[thread]))
            };
            let own = own.filter(|_| !over);
            let candidates = [of(prev, 0), of(Some(head), 0), of(own, bonus), of(None, 0)];
            let next = match pick_ias(&candidates) {
                CHOOSE_PREV => prev.unwrap(),
                CHOOSE_SIBLING => own.unwrap(),
                _ => {
                    space = spaces[head];
                    head
                }
            };
            vruntimes[next] = charge(vruntimes[next], SLICE_NS, NICE_0);
            prev = Some(next);
            let lags = || (0..spaces.len()).map(|thread| vruntimes[thread].wrapping_sub(start));
            prop_assert!(lags().max().unwrap() - lags().min().unwrap() <= SLICE_NS + LEAD_NS);
        }
    }
}
