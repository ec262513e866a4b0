//! The proof: measures what moves and pins gain while the program runs, keeps what is shown to gain, and
//! withdraws the rest.
//!
//! | lever | how it is measured |
//! |---|---|
//! | a split of more tasks than CPUs, which is pinned | windows with and without (`proof/split.rs`) |
//! | exchanges of one task for each CPU; a critical task | the rates of the CPUs (`proof/rates.rs`) |
//! | a split within a phase that is longer than a window | not at all: `unverified` |
//! | a split of threads that the user asked for | not at all: it is held, and `compare` shows its gain |
//! | shares of loops | windows with and without (`proof/loops.rs`) |
//! | all else; and where spinning is not seen | not at all: `unverified` |
//!
//! Windows alternate by `proof/alternation.rs`. A sequential test (`proof/sequence.rs`) decides after
//! each window: a gain, none, or not yet. What has shown none after 1.8 s of trial is withdrawn, and
//! tried again when the asymmetry changes, or after a pause that doubles each time (`proof/stage.rs`).
//! It is pure: a snapshot and a plan in, less of the plan out.
//!
//! What cannot be measured is not withheld: it is done all the same, and said to be unverified.
//! Where samples may soon tell whether tasks spin, exchanges are few until then.

mod alternation;
mod gain;
mod laps;
mod loops;
mod rates;
mod sequence;
mod split;
mod stage;
mod window;

#[cfg(test)]
mod closed_loop;
#[cfg(test)]
mod tests;

use evenkeel_capability::{Move, Plan, Policy, Reason, Snapshot};

use gain::UNSEEN;
pub use gain::{Gain, Proven};
pub(crate) use laps::Laps;
pub(crate) use loops::{Loops, LoopsProof, Standing};
use rates::{Rates, is_exchange};
use sequence::Sequence;
use split::Split;
use stage::Stage;
pub use window::Pace;

/// While something is withdrawn, the next look is not sooner than this.
const WITHDRAWN_INTERVAL_NS: u64 = 500_000_000;
/// A window is not cut shorter than this.
const LEAST_INTERVAL_NS: u64 = 20_000_000;
const PAPER: &str = "the paper's policy moves tasks in every interval, whatever that gains";
const EFFICIENT: &str = "less energy was asked for, whatever pace that costs";
const LONG: &str = "its phases are longer than the windows in which a split is measured";
const ASKED: &str =
    "the threads were asked for, so their split stays; `evenkeel compare` measures it";
const ROOM: &str = "tasks moved only to CPUs with more room, as the kernel could have done";

/// Measures what moves and pins gain in one program.
#[derive(Debug, Clone)]
pub(crate) struct Proof {
    may_withhold: bool,
    now_ns: u64,
    split: Split,
    rates: Rates,
    /// The CPU time that evenkeel had used at the last look.
    own_cpu_ns: Option<u64>,
    /// Moves or pins were wanted.
    was_used: bool,
    /// A split of threads that the user asked for was held.
    was_held: bool,
    unverified: Option<&'static str>,
}

impl Proof {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            may_withhold: matches!(policy, Policy::Lag(_)),
            now_ns: 0,
            split: Split::default(),
            rates: Rates::default(),
            own_cpu_ns: None,
            was_used: false,
            was_held: false,
            unverified: None,
        }
    }

    /// Takes in how much CPU time evenkeel has used so far: without it, the program would have had that.
    pub(crate) fn take_in_own_cpu(&mut self, own_cpu_ns: u64) {
        let before_ns = self.own_cpu_ns.replace(own_cpu_ns).unwrap_or(own_cpu_ns);
        self.rates.own_ns = own_cpu_ns.saturating_sub(before_ns);
    }

    /// Takes in the interval that ended, and takes out of the plan what may not be done now.
    pub(crate) fn judge(&mut self, snapshot: &Snapshot, plan: &mut Plan) {
        self.now_ns = self.now_ns.saturating_add(snapshot.interval_ns);
        let wants_split = !plan.pins.is_empty();
        self.was_used |= wants_split || !plan.moves.is_empty();
        if !self.may_withhold || plan.is_gathered() {
            self.unverified = Some(if self.may_withhold { EFFICIENT } else { PAPER });
            return;
        }
        let (is_on, left_ns) = self.split.judge(self.now_ns, snapshot, plan);
        if wants_split {
            self.was_held |= snapshot.seen.asked;
            if !is_on {
                let reason = match self.split.windows.progress.stage {
                    Stage::Withdrawn { .. } => withdrawn(&self.split.windows.sequence, 1.0),
                    _ => Reason::Measuring,
                };
                // All moves are part of the split.
                plan.pins.clear();
                withhold(plan, reason, |_| true);
            }
            plan.interval_ns = plan.interval_ns.min(left_ns.max(LEAST_INTERVAL_NS));
            return;
        }
        let is_allowed = self.rates.judge(self.now_ns, snapshot, plan);
        if !is_allowed && plan.moves.iter().any(is_exchange) {
            let reason = match self.rates.progress.stage {
                Stage::Idle => Reason::SpinningUntold,
                _ => withdrawn(&self.rates.sequence, self.rates.evenness()),
            };
            withhold(plan, reason, is_exchange);
        } else if !plan.moves.is_empty() && self.rates.progress.stage == Stage::Idle {
            let other = if snapshot.seen.spinning { ROOM } else { UNSEEN };
            self.unverified = Some(self.rates.unverified.unwrap_or(other));
        }
    }

    /// Nothing is moved for a while: what a window has so far counts for nothing.
    pub(crate) fn rest(&mut self) {
        self.split.windows.rest();
    }

    /// Time has passed in which nothing was observed.
    pub(crate) fn pass(&mut self, time_ns: u64) {
        self.now_ns = self.now_ns.saturating_add(time_ns);
    }

    /// What is known of the gain.
    pub(crate) fn gain(&self) -> Gain {
        let split = (
            &self.split.windows.progress.stage,
            &self.split.windows.sequence,
            self.split.windows.pace,
            1.0,
        );
        let rates = (
            &self.rates.progress.stage,
            &self.rates.sequence,
            Some(Pace::CpuRates),
            self.rates.evenness(),
        );
        // The lever of which more is known.
        let is_split = (self.was_held && rates.1.samples() == 0)
            || split.1.samples() > rates.1.samples()
            || matches!(split.0, Stage::Gains | Stage::Trial);
        let (stage, sequence, by, factor) = if is_split { split } else { rates };
        let mut gain = Gain::of(stage, sequence, by, factor, self.was_used);
        let windows = &self.split.windows;
        gain.off_pct = windows.off_pct();
        if windows.is_unverified || gain.proven == Proven::Unverified {
            let asked = self.was_held.then_some(ASKED);
            let long = (windows.on_ns > 0 && self.split.is_long()).then_some(LONG);
            let unseen = windows.is_unverified.then_some(UNSEEN);
            let why = asked.or(long).or(unseen).or(self.unverified);
            gain.why = Some(why.unwrap_or(UNSEEN).to_owned());
        }
        gain
    }
}

/// Takes the moves of one kind out of the plan.
fn withhold(plan: &mut Plan, reason: Reason, is_meant: impl Fn(&Move) -> bool) {
    let is_withdrawn = matches!(reason, Reason::Withdrawn { .. });
    plan.moves.retain(|made| !is_meant(made));
    plan.reasons.insert(0, reason);
    if is_withdrawn {
        plan.interval_ns = plan.interval_ns.max(WITHDRAWN_INTERVAL_NS);
    }
}

fn withdrawn(sequence: &Sequence, factor: f64) -> Reason {
    Reason::Withdrawn {
        pace_per_mille: (libm::exp(sequence.mean()) * factor * 1000.0).round() as u64,
        windows: sequence.samples(),
    }
}
