//! Which programs a round balances, from the number, due time and interval of each.

/// A program that is due within 1/2 of its interval joins a round that starts for another program: one
/// reading then serves both, and they stay in step while they are at rest.
const TOGETHER_SHARE: u64 = 2;
/// Where all have one plan, a program that joined this share of its interval ago or less is left to the
/// next round, because its figures are of too short a time: 1/2.
const FRESH_SHARE: u64 = 2;

/// The programs of the round that starts now where each has its own plan. It is empty until the first
/// program is due, however often it is called.
pub(super) fn each_at(
    now_ns: u64,
    times: impl Iterator<Item = (u32, u64, u64)> + Clone,
) -> Vec<u32> {
    if !times.clone().any(|(_, due_ns, _)| due_ns <= now_ns) {
        return Vec::new();
    }
    times
        .filter(|(_, due_ns, interval_ns)| {
            due_ns.saturating_sub(interval_ns / TOGETHER_SHARE) <= now_ns
        })
        .map(|(program, _, _)| program)
        .collect()
}

/// The same where all have one plan: all of them as soon as one is due, without those that have just
/// joined.
pub(super) fn all_at(
    now_ns: u64,
    times: impl Iterator<Item = (u32, u64, u64)> + Clone,
) -> Vec<u32> {
    if !times.clone().any(|(_, due_ns, _)| due_ns <= now_ns) {
        return Vec::new();
    }
    let is_fresh = |due_ns: u64, interval_ns: u64| {
        let began_ns = due_ns.saturating_sub(interval_ns);
        due_ns > now_ns && now_ns.saturating_sub(began_ns) < interval_ns / FRESH_SHARE
    };
    times
        .filter(|(_, due_ns, interval_ns)| !is_fresh(*due_ns, *interval_ns))
        .map(|(program, ..)| program)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_due_program_takes_others_along_and_no_round_starts_before() {
        let times = [(1, 1000, 100), (2, 1040, 100), (3, 1060, 100)];
        assert!(each_at(999, times.into_iter()).is_empty());
        assert_eq!(each_at(1000, times.into_iter()), [1, 2]);
        assert_eq!(each_at(1010, times.into_iter()), [1, 2, 3]);
    }

    #[test]
    fn a_round_of_one_plan_takes_all_programs_but_those_that_have_just_joined() {
        // The second one began at 900: its figures would be of 100 only. The fourth began at 980.
        let times = [(1, 1000, 1000), (2, 1900, 1000), (3, 1050, 100), (4, 1080, 100)];
        assert!(all_at(999, times.into_iter()).is_empty());
        assert_eq!(all_at(1000, times.into_iter()), [1, 3]);
        assert_eq!(all_at(1400, times.into_iter()), [1, 2, 3, 4]);
    }
}
