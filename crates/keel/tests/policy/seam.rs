//! The seam between the policies: each answers its own question. The functions share no state, so
//! it is enough that no question in between changes another one's answer: identical views are
//! replayed under other policies.

use proptest::prelude::*;

use crate::balance::any_cpu;
use crate::gate::{any_view, any_zone};
use crate::native::*;

proptest! {
    #[test]
    fn changing_the_gate_changes_no_pick_and_the_order_no_quota(
        prev: u64,
        head: u64,
        cpus in prop::collection::vec(any_cpu(), 1..16),
        own in any_cpu(),
        zone in any_zone(),
        view in any_view(),
    ) {
        let (picked, wanted) = (pick(Some(prev), Some(head)), quota(&sum(&cpus), &own, true));
        let answers = [GATE_ALWAYS, GATE_ZONE].map(|kind| verdict(kind, &zone, &view));
        prop_assert_eq!(answers[0], OPEN);
        prop_assert_eq!(pick(Some(prev), Some(head)), picked);
        charge(prev, head, NICE_0);
        prop_assert_eq!(quota(&sum(&cpus), &own, true), wanted);
        prop_assert_eq!(verdict(GATE_ZONE, &zone, &view), answers[1]);
    }
}
