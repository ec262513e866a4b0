//! `policy/views.h`: utilisation as a share that halves every 33.6 ms.

use proptest::prelude::*;

use crate::native::*;

const HALF_LIFE_NS: u64 = 1 << 25;
/// The share that stands for a whole CPU: ten bits more than `FULL`.
const WHOLE: u32 = FULL << 10;

#[test]
fn half_of_a_share_is_gone_after_a_half_life() {
    assert_eq!(decayed_share(WHOLE, HALF_LIFE_NS, false), WHOLE / 2);
    assert_eq!(decayed_share(0, HALF_LIFE_NS, true), WHOLE / 2);
    assert_eq!(decayed_share(0, 2 * HALF_LIFE_NS, true), WHOLE / 4 * 3);
    assert_eq!(decayed_share(WHOLE, 0, false), WHOLE);
    assert_eq!(decayed_share(123, u64::MAX, true), WHOLE);
    assert_eq!(decayed_share(u32::MAX, 1, false), 0, "out of range: counts as none");
}

#[test]
fn a_cpu_busy_half_of_the_time_settles_at_half() {
    let mut share = 0;
    for _ in 0..1_000 {
        share = decayed_share(share, 1_000_000, true);
        share = decayed_share(share, 1_000_000, false);
    }
    assert!(share.abs_diff(WHOLE / 2) < WHOLE / 50, "{share} of {WHOLE}");
}

proptest! {
    #[test]
    fn shares_stay_in_range_and_move_the_right_way(value in 0..=WHOLE, ns: u64, longer: u64) {
        let (idle, busy) = (decayed_share(value, ns, false), decayed_share(value, ns, true));
        prop_assert!(idle <= value && value <= busy && busy <= WHOLE);
        let ns_longer = ns.saturating_add(longer);
        prop_assert!(decayed_share(value, ns_longer, false) <= idle.saturating_add(1));
    }

    #[test]
    fn shares_are_near_the_exact_curve(value in 0..=WHOLE, ns in 0..10 * HALF_LIFE_NS) {
        let exact = f64::from(value) * 0.5_f64.powf(ns as f64 / HALF_LIFE_NS as f64);
        let error = (f64::from(decayed_share(value, ns, false)) - exact).abs();
        prop_assert!(error <= exact * 0.0625 + 2.0, "{error}");
    }
}
