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

/// Each rule in the table of docs/policies.md is in the header that the table names.
#[test]
fn the_documented_rules_are_there() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let read = |path: &str| std::fs::read_to_string(format!("{root}{path}")).unwrap();
    let page = read("docs/policies.md");
    let section = page.split("\n## ").find(|part| part.starts_with("Which rule decides what"));
    let mut rules = 0;
    for row in section.unwrap().lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = row.split('|').collect();
        let header = cells[3].split(['[', ']', ' ']).find(|word| word.ends_with(".h")).unwrap();
        let header = read(&format!("policy/{header}"));
        for rule in cells[2].split('`').skip(1).step_by(2) {
            let defined =
                |line: &str| line.starts_with("POLICY") && line.contains(&format!(" {rule}("));
            assert!(header.lines().any(defined), "{rule}: {row}");
            rules += 1;
        }
    }
    assert!(rules > 20, "{rules}");
}
