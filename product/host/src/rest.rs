//! Rests of `evenkeel run`: the exact accounting slows a program down a little, so it is unloaded for
//! a while where it is of no use:
//!
//! - The CPUs are unequal, and balancing was seen to gain nothing: tasks wait for each other too often,
//!   or moves were withdrawn. After a fixed time it is looked at again: the program may have changed.
//! - The CPUs have been equal for some time, or there is only one. Then files that cost next to nothing
//!   are read each second, as before the first sign (`signs`); with the next sign the rest ends.

use evenkeel_capability::{Plan, Reason};

/// A plan that looks again this late has seen enough: intervals double while nothing is to be done.
const CALM_NS: u64 = 400_000_000;
/// The first rest of a program that gains nothing lasts so long, ...
pub(crate) const FIRST_NS: u64 = 10_000_000_000;
/// ... and each that follows soon twice as long as the one before, up to this.
const LONGEST_NS: u64 = 80_000_000_000;
/// A rest that begins so soon after another one follows soon.
const SOON_NS: u64 = 5_000_000_000;
/// How long the CPUs must be equal before a first rest.
const EQUAL_NS: u64 = 10_000_000_000;
/// A sign that ends a rest within this time doubles that: a sign may be there all the time and yet take
/// nothing that counts.
const ENDED_SOON_NS: u64 = 10_000_000_000;
/// The doubling ends here.
const LONGEST_EQUAL_NS: u64 = 160_000_000_000;
/// Between two looks for a sign.
const LOOK_NS: u64 = 1_000_000_000;

/// Why the accounting is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Useless {
    /// Balancing gains nothing on CPUs that are unequal.
    Gainless,
    /// The CPUs are equal, or there is only one.
    Equal,
}

impl Useless {
    /// Why the accounting is of no use, as far as a plan shows it.
    pub(crate) fn seen_in(plan: &Plan) -> Option<Self> {
        let is_calm = plan.interval_ns >= CALM_NS;
        let of_reason = |reason: &Reason| match reason {
            Reason::Withdrawn { .. } => Some(Self::Gainless),
            Reason::PhasesTooShort { .. } if is_calm => Some(Self::Gainless),
            Reason::Balanced { .. } | Reason::OneCpu if is_calm => Some(Self::Equal),
            _ => None,
        };
        let is_idle = plan.moves.is_empty() && plan.pins.is_empty();
        plan.reasons.iter().find_map(of_reason).filter(|_| is_idle)
    }
}

/// When a run rests.
#[derive(Debug)]
pub(crate) struct Rest {
    is_allowed: bool,
    /// The rest that is on: why, and since when.
    current: Option<(Useless, u64)>,
    until_ns: u64,
    /// Of the next rest of a program that gains nothing.
    length_ns: u64,
    ended_ns: Option<u64>,
    /// Since when the CPUs have been equal.
    equal_since_ns: Option<u64>,
    /// For how long they must be.
    equal_ns: u64,
}

impl Rest {
    pub(crate) fn new(is_allowed: bool) -> Self {
        Self {
            is_allowed,
            current: None,
            until_ns: 0,
            length_ns: FIRST_NS,
            ended_ns: None,
            equal_since_ns: None,
            equal_ns: EQUAL_NS,
        }
    }

    /// Takes in what the last plan shows. Returns why a rest may begin now, if it may.
    pub(crate) fn may_begin(&mut self, seen: Option<Useless>, now_ns: u64) -> Option<Useless> {
        let equal_since_ns = match seen {
            Some(Useless::Equal) => Some(*self.equal_since_ns.get_or_insert(now_ns)),
            _ => None,
        };
        self.equal_since_ns = equal_since_ns;
        let is_long_enough =
            equal_since_ns.is_none_or(|since| now_ns.saturating_sub(since) >= self.equal_ns);
        seen.filter(|_| self.is_allowed && self.current.is_none() && is_long_enough)
    }

    /// Why a rest is on, and since when, on the monotonic clock.
    pub(crate) fn current(&self) -> Option<(Useless, u64)> {
        self.current
    }

    /// When it ends, or when the next look for a sign is due.
    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns
    }

    pub(crate) fn begin(&mut self, why: Useless, now_ns: u64) {
        if why == Useless::Gainless {
            let follows_soon =
                self.ended_ns.is_some_and(|ended_ns| now_ns.saturating_sub(ended_ns) < SOON_NS);
            self.length_ns =
                if follows_soon { (self.length_ns * 2).min(LONGEST_NS) } else { FIRST_NS };
        }
        self.current = Some((why, now_ns));
        self.prolong(now_ns);
    }

    /// It does not end yet.
    pub(crate) fn prolong(&mut self, now_ns: u64) {
        let is_equal = matches!(self.current, Some((Useless::Equal, _)));
        self.until_ns = now_ns.saturating_add(if is_equal { LOOK_NS } else { self.length_ns });
    }

    pub(crate) fn end(&mut self, now_ns: u64) {
        if let Some((Useless::Equal, since_ns)) = self.current {
            let was_short = now_ns.saturating_sub(since_ns) < ENDED_SOON_NS;
            self.equal_ns =
                if was_short { (self.equal_ns * 2).min(LONGEST_EQUAL_NS) } else { EQUAL_NS };
        }
        (self.current, self.ended_ns, self.equal_since_ns) = (None, Some(now_ns), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_capability::{Move, Pin, TaskId};

    const S: u64 = 1_000_000_000;

    fn plan(reason: Reason, interval_ns: u64) -> Plan {
        Plan {
            moves: vec![],
            pins: vec![],
            reasons: vec![reason],
            interval_ns,
            spread_ppm: 400_000,
        }
    }

    #[test]
    fn only_a_calm_plan_shows_that_the_accounting_is_of_no_use() {
        use Useless::{Equal, Gainless};
        let short = Reason::PhasesTooShort { phase_ns: 2_000_000 };
        let balanced = Reason::Balanced { spread_ppm: 0 };
        let withdrawn = Reason::Withdrawn { pace_per_mille: 990, windows: 9 };
        for (reason, why) in [(short.clone(), Gainless), (balanced, Equal), (Reason::OneCpu, Equal)]
        {
            assert_eq!(Useless::seen_in(&plan(reason.clone(), CALM_NS)), Some(why), "{reason}");
            assert_eq!(Useless::seen_in(&plan(reason, CALM_NS - 1)), None);
        }
        assert_eq!(Useless::seen_in(&plan(withdrawn, 1)), Some(Gainless), "that was measured");
        for reason in [
            // The next lag may be worth an exchange: of CPUs that differ little it takes long to grow.
            Reason::Level { lag_ns: 7 },
            Reason::Measuring,
            Reason::SpinningUntold,
            Reason::NoActiveTask,
        ] {
            assert_eq!(Useless::seen_in(&plan(reason, S)), None);
        }
        let task = TaskId { tid: 1, start: 1 };
        let pinned = Plan { pins: vec![Pin { task, cpu: 0 }], ..plan(short.clone(), S) };
        assert_eq!(Useless::seen_in(&pinned), None);
        let reason = Reason::MoreRoom { from_ppm: 1, to_ppm: 2 };
        let moved = Move { task, from: 0, to: 1, reason };
        assert_eq!(Useless::seen_in(&Plan { moves: vec![moved], ..plan(short, S) }), None);
    }

    #[test]
    fn rests_that_follow_each_other_become_longer() {
        let seen = Some(Useless::Gainless);
        let mut rest = Rest::new(true);
        let mut now_ns = S;
        let mut lengths = Vec::new();
        for _ in 0..5 {
            assert_eq!(rest.may_begin(seen, now_ns), seen);
            rest.begin(Useless::Gainless, now_ns);
            assert_eq!(rest.may_begin(seen, now_ns), None);
            assert_eq!(rest.current(), Some((Useless::Gainless, now_ns)));
            lengths.push((rest.until_ns() - now_ns) / S);
            now_ns = rest.until_ns();
            rest.end(now_ns);
            now_ns += S;
        }
        assert_eq!(lengths, [10, 20, 40, 80, 80]);
        // For a while there was something to do.
        now_ns += SOON_NS;
        rest.begin(Useless::Gainless, now_ns);
        assert_eq!(rest.until_ns() - now_ns, FIRST_NS);
        rest.prolong(now_ns + FIRST_NS);
        assert_eq!(rest.until_ns(), now_ns + 2 * FIRST_NS);
        assert_eq!(Rest::new(false).may_begin(seen, S), None);
    }

    /// Until a rest begins: the CPUs are equal from `since_ns` on, and looked at each half second.
    fn until_rest(rest: &mut Rest, since_ns: u64) -> u64 {
        let looks = (0..).map(|look| since_ns + look * S / 2);
        let mut looks =
            looks.skip_while(|now| rest.may_begin(Some(Useless::Equal), *now).is_none());
        looks.next().unwrap() - since_ns
    }

    #[test]
    fn a_rest_on_equal_cpus_begins_late_and_looks_for_signs() {
        let mut rest = Rest::new(true);
        let mut now_ns = S;
        assert_eq!(until_rest(&mut rest, now_ns), EQUAL_NS);
        // They were unequal in between.
        assert_eq!(rest.may_begin(None, now_ns), None);
        let mut needed = Vec::new();
        for _ in 0..6 {
            let equal_ns = until_rest(&mut rest, now_ns);
            needed.push(equal_ns / S);
            now_ns += equal_ns;
            rest.begin(Useless::Equal, now_ns);
            assert_eq!(rest.until_ns() - now_ns, LOOK_NS);
            now_ns += 2 * LOOK_NS;
            rest.prolong(now_ns);
            assert_eq!(rest.until_ns() - now_ns, LOOK_NS);
            rest.end(now_ns);
        }
        assert_eq!(needed, [10, 20, 40, 80, 160, 160]);
        now_ns += until_rest(&mut rest, now_ns);
        rest.begin(Useless::Equal, now_ns);
        now_ns += ENDED_SOON_NS;
        rest.end(now_ns);
        assert_eq!(until_rest(&mut rest, now_ns), EQUAL_NS, "that rest was worth it");
    }
}
