//! Rests of `evenkeel run`: the exact accounting slows a program down a little, so it is unloaded for
//! a while where the CPUs are unequal and balancing was seen to gain nothing: tasks wait for each other
//! too often, or moves were withdrawn. Then it is looked at again: the program may have changed.

use evenkeel_capability::{Plan, Reason};

/// A plan that looks again this late has seen enough: intervals double while nothing is to be done.
const CALM_NS: u64 = 400_000_000;
/// The first rest lasts so long, ...
const FIRST_NS: u64 = 10_000_000_000;
/// ... and each that follows soon twice as long as the one before, up to this.
const LONGEST_NS: u64 = 80_000_000_000;
/// A rest that begins so soon after another one follows soon.
const SOON_NS: u64 = 5_000_000_000;

/// Whether a plan shows that balancing gains nothing. (On equal CPUs it is no question: should they
/// become unequal, that must be seen soon.)
pub(crate) fn gains_nothing(plan: &Plan) -> bool {
    let is_calm = plan.interval_ns >= CALM_NS;
    let is_such = |reason: &Reason| match reason {
        Reason::Withdrawn { .. } => true,
        Reason::PhasesTooShort { .. } | Reason::Steady { .. } => is_calm,
        _ => false,
    };
    plan.moves.is_empty() && plan.pins.is_empty() && plan.reasons.iter().any(is_such)
}

/// When a run rests.
#[derive(Debug)]
pub(crate) struct Rest {
    is_allowed: bool,
    /// The rest that is on.
    since_ns: Option<u64>,
    until_ns: u64,
    /// Of the next rest.
    length_ns: u64,
    ended_ns: Option<u64>,
}

impl Rest {
    pub(crate) fn new(is_allowed: bool) -> Self {
        Self { is_allowed, since_ns: None, until_ns: 0, length_ns: FIRST_NS, ended_ns: None }
    }

    pub(crate) fn may_begin(&self) -> bool {
        self.is_allowed && self.since_ns.is_none()
    }

    /// When the rest began that is on, on the monotonic clock.
    pub(crate) fn since_ns(&self) -> Option<u64> {
        self.since_ns
    }

    /// When it ends.
    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns
    }

    pub(crate) fn begin(&mut self, now_ns: u64) {
        let follows_soon =
            self.ended_ns.is_some_and(|ended_ns| now_ns.saturating_sub(ended_ns) < SOON_NS);
        self.length_ns = if follows_soon { (self.length_ns * 2).min(LONGEST_NS) } else { FIRST_NS };
        self.since_ns = Some(now_ns);
        self.prolong(now_ns);
    }

    /// It cannot end yet.
    pub(crate) fn prolong(&mut self, now_ns: u64) {
        self.until_ns = now_ns.saturating_add(self.length_ns);
    }

    pub(crate) fn end(&mut self, now_ns: u64) {
        (self.since_ns, self.ended_ns) = (None, Some(now_ns));
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
    fn only_a_calm_plan_for_unequal_cpus_shows_that_nothing_is_gained() {
        let short = Reason::PhasesTooShort { phase_ns: 2_000_000 };
        let withdrawn = Reason::Withdrawn { pace_per_mille: 990, windows: 9 };
        for reason in [short.clone(), Reason::Steady { lag_ns: 7 }] {
            assert!(gains_nothing(&plan(reason.clone(), CALM_NS)), "{reason}");
            assert!(!gains_nothing(&plan(reason, CALM_NS - 1)));
        }
        assert!(gains_nothing(&plan(withdrawn, 1)), "that was measured");
        for reason in [
            Reason::Balanced { spread_ppm: 0 },
            // The next lag may be worth an exchange: of CPUs that differ little it takes long to grow.
            Reason::Level { lag_ns: 7 },
            Reason::Measuring,
            Reason::SpinningUntold,
            Reason::NoActiveTask,
        ] {
            assert!(!gains_nothing(&plan(reason, S)));
        }
        let task = TaskId { tid: 1, start: 1 };
        let pinned = Plan { pins: vec![Pin { task, cpu: 0 }], ..plan(short.clone(), S) };
        assert!(!gains_nothing(&pinned));
        let reason = Reason::MoreRoom { from_ppm: 1, to_ppm: 2 };
        let moved = Move { task, from: 0, to: 1, reason };
        assert!(!gains_nothing(&Plan { moves: vec![moved], ..plan(short, S) }));
    }

    #[test]
    fn rests_that_follow_each_other_become_longer() {
        let mut rest = Rest::new(true);
        let mut now_ns = S;
        let mut lengths = Vec::new();
        for _ in 0..5 {
            assert!(rest.may_begin());
            rest.begin(now_ns);
            assert!(!rest.may_begin() && rest.since_ns() == Some(now_ns));
            lengths.push((rest.until_ns() - now_ns) / S);
            now_ns = rest.until_ns();
            rest.end(now_ns);
            now_ns += S;
        }
        assert_eq!(lengths, [10, 20, 40, 80, 80]);
        // For a while there was something to do.
        now_ns += SOON_NS;
        rest.begin(now_ns);
        assert_eq!(rest.until_ns() - now_ns, FIRST_NS);
        rest.prolong(now_ns + FIRST_NS);
        assert_eq!((rest.since_ns(), rest.until_ns()), (Some(now_ns), now_ns + 2 * FIRST_NS));
        assert!(!Rest::new(false).may_begin());
    }
}
