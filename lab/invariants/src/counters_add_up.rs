//! A scheduler's own counters agree with each other: none ever shrinks, and the counters by reason add
//! up to the total.

use std::collections::BTreeMap;

use crate::findings::Violation;

const NAME: &str = "counters_add_up";

/// A counter that is the sum of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// The sum.
    pub total: &'static str,
    /// Its parts; without any, the total must stay 0.
    pub parts: &'static [&'static str],
    /// How far both may differ, because they are not read at the same instant.
    pub slack: u64,
}

/// Compares two readings of a scheduler's counters, the later one taken at `time_ns`.
///
/// A counter that a sum names and that does not exist is a violation, too: otherwise a renamed counter
/// would silently stop being checked.
pub fn counters_add_up(
    earlier: &BTreeMap<String, u64>,
    later: &BTreeMap<String, u64>,
    sums: &[Sum],
    time_ns: u64,
) -> Vec<Violation> {
    let violation = |what| Violation { invariant: NAME, time_ns, what };
    let mut found = Vec::new();
    for (name, before) in earlier {
        match later.get(name) {
            None => found.push(violation(format!("counter {name} has vanished"))),
            Some(now) if now < before => {
                found.push(violation(format!("counter {name} fell from {before} to {now}")));
            }
            Some(_) => {}
        }
    }
    for sum in sums {
        let names = sum.parts.iter().chain([&sum.total]);
        let missing: Vec<&str> = names.copied().filter(|name| !later.contains_key(*name)).collect();
        if !missing.is_empty() {
            found.push(violation(format!("there is no counter {}", missing.join(", "))));
            continue;
        }
        let parts: u64 = sum.parts.iter().map(|name| later[*name]).sum();
        let total = later[sum.total];
        if parts.abs_diff(total) > sum.slack {
            let names = if sum.parts.is_empty() { "nothing" } else { &sum.parts.join(" + ") };
            found.push(violation(format!("{names} = {parts}, but {} = {total}", sum.total)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVES: Sum = Sum { total: "moves", parts: &["pull", "push"], slack: 1 };

    fn counters(pull: u64, push: u64, moves: u64) -> BTreeMap<String, u64> {
        [("pull", pull), ("push", push), ("moves", moves)]
            .map(|(name, count)| (name.to_owned(), count))
            .into()
    }

    fn check(earlier: BTreeMap<String, u64>, later: BTreeMap<String, u64>) -> Vec<String> {
        let found = counters_add_up(&earlier, &later, &[MOVES], 1);
        found.into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn counters_that_agree_are_accepted() {
        assert!(check(counters(1, 1, 2), counters(2, 3, 5)).is_empty());
        assert!(
            check(counters(1, 1, 2), counters(2, 3, 6)).is_empty(),
            "a difference within the slack"
        );
    }

    #[test]
    fn a_counter_that_shrinks_is_a_violation() {
        let found = check(counters(2, 1, 3), counters(1, 2, 3));
        assert_eq!(found, ["counter pull fell from 2 to 1"]);
    }

    #[test]
    fn a_total_that_differs_from_its_parts_is_a_violation() {
        let found = check(counters(0, 0, 0), counters(2, 3, 7));
        assert_eq!(found, ["pull + push = 5, but moves = 7"]);
    }

    #[test]
    fn a_total_without_parts_must_stay_zero() {
        let never = Sum { total: "moves", parts: &[], slack: 0 };
        let of = |moves| counters_add_up(&counters(0, 0, 0), &counters(0, 0, moves), &[never], 1);
        assert!(of(0).is_empty());
        assert_eq!(of(2)[0].what, "nothing = 0, but moves = 2");
    }

    #[test]
    fn a_missing_counter_is_a_violation() {
        let mut later = counters(2, 3, 5);
        later.remove("push");
        let found = check(counters(0, 0, 0), later);
        assert_eq!(found, ["counter push has vanished", "there is no counter push"]);
    }
}
