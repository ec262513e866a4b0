//! The seam between the policies: each answers only its own question. The functions share no state,
//! so it is enough to show that a question to one policy changes no answer of another: identical
//! views are replayed under other policies.

use proptest::prelude::*;

use crate::balance::any_cpu;
use crate::gate::{any_view, any_zone};
use crate::ias::{NONE, at};
use crate::native::*;

const COUNT: BalanceParams = BalanceParams { kind: 0, parts: 0, faster: 0, tasks: 0 };

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
        let picked = pick(Some(prev), Some(head));
        let wanted = COUNT.quota(&COUNT.sum(&cpus), &own, true);
        let ordered = [at(prev), at(head), at(head), NONE].map(|it| Candidate { bonus: 9, ..it });
        let preferred = pick_ias(&ordered);
        let answers = [GATE_ALWAYS, GATE_ZONE].map(|kind| verdict(kind, &zone, &view));
        prop_assert_eq!(answers[0], OPEN);
        prop_assert_eq!(pick(Some(prev), Some(head)), picked);
        prop_assert_eq!(pick_ias(&ordered), preferred);
        charge(prev, head, NICE_0);
        prop_assert_eq!(COUNT.quota(&COUNT.sum(&cpus), &own, true), wanted);
        prop_assert_eq!(verdict(GATE_ZONE, &zone, &view), answers[1]);
    }
}

/// Each rule that docs/policies.md names for the keel is in the header that its row names: a policy's
/// as a `POLICY` function, one of the keel by its name.
#[test]
fn the_documented_rules_are_there() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let read = |path: &str| std::fs::read_to_string(format!("{root}{path}")).unwrap();
    let page = read("docs/policies.md");
    let section =
        page.split("\n## ").find(|part| part.starts_with("The keel: order, gate, balance"));
    let (mut of_policies, mut of_the_core) = (0, 0);
    for row in section.unwrap().lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split('|').collect();
        let header = cells[3].split(['[', ']', ' ']).find(|word| word.ends_with(".h"));
        let Some(header) = header else { continue };
        let is_policy = ["order.h", "gate.h", "balance.h"].contains(&header);
        let folder = if is_policy { "policy" } else { "bpf/keel" };
        let source = read(&format!("{folder}/{header}"));
        for rule in cells[2].split('`').skip(1).step_by(2) {
            let defined = |line: &str| {
                let is_function = line.contains(&format!("{rule}("));
                if is_policy {
                    line.starts_with("POLICY") && is_function
                } else {
                    line.contains(rule)
                }
            };
            assert!(source.lines().any(defined), "{rule}: {row}");
            *(if is_policy { &mut of_policies } else { &mut of_the_core }) += 1;
        }
    }
    assert!(of_policies > 20 && of_the_core > 5, "{of_policies}, {of_the_core}");
}
