//! The proof: measures what moves and pins gain while the program runs, keeps what is shown to gain, and
//! withdraws the rest.
//!
//! | lever | how it is measured |
//! |---|---|
//! | a split of more tasks than CPUs, which is pinned | windows with and without (`proof/split.rs`) |
//! | exchanges of one task for each CPU; a critical task | the rates of the CPUs (`proof/rates.rs`) |
//! | a split within a phase that is longer than a window | not at all: `unverified` |
//! | all else; and where spinning and barriers are not seen | not at all: `unverified` |
//!
//! A sequential test (`proof/sequence.rs`) decides after each window: a gain, none, or not yet. What
//! has shown none after 1.8 s of trial is withdrawn, and tried again when the asymmetry changes, or
//! after a pause that doubles each time (`proof/stage.rs`). It is pure: a snapshot and a plan in, less
//! of the plan out.
//!
//! What cannot be measured is not withheld: it is done as it always was, and said to be unverified.

mod rates;
mod sequence;
mod split;
mod stage;
mod window;

#[cfg(test)]
mod closed_loop;
#[cfg(test)]
mod tests;

use std::fmt;

use evenkeel_capability::{Move, Plan, Policy, Reason, Snapshot};
use serde::{Deserialize, Serialize};

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
const LONG: &str = "its phases are longer than the windows in which a split is measured";
const ROOM: &str = "tasks moved only to CPUs with more room, as the kernel could have done";
const UNSEEN: &str = "how the tasks wait for each other cannot be seen here";

/// Measures one program.
#[derive(Debug, Clone)]
pub(crate) struct Proof {
    may_withhold: bool,
    now_ns: u64,
    split: Split,
    rates: Rates,
    /// Moves or pins were wanted.
    was_used: bool,
    unverified: Option<&'static str>,
}

/// How sure a gain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proven {
    /// Nothing was moved, so there is nothing to show.
    #[default]
    Nothing,
    /// It cannot be told.
    Unverified,
    /// It is being measured.
    Measuring,
    /// It was shown.
    Gains,
    /// None was shown, and moves and pins are withdrawn.
    Withdrawn,
}

/// What moves and pins gain, as far as it was measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Gain {
    /// How sure it is.
    pub proven: Proven,
    /// How many times as fast the program ran as without.
    pub ratio: Option<f64>,
    /// The lowest ratio that the measurement allows ...
    pub low: Option<f64>,
    /// ... and the highest, with an error of 5 %.
    pub high: Option<f64>,
    /// Windows, or pairs of windows with and without, in which it was measured.
    pub windows: u32,
    /// What it was measured by.
    pub by: Option<Pace>,
    /// Share of the time that windows without took, in percent.
    pub off_pct: f64,
    /// Why it is unverified.
    pub why: Option<String>,
}

impl Proof {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            may_withhold: matches!(policy, Policy::Lag(_)),
            now_ns: 0,
            split: Split::default(),
            rates: Rates::default(),
            was_used: false,
            unverified: None,
        }
    }

    /// Takes in the interval that ended, and takes out of the plan what may not be done now.
    pub(crate) fn judge(&mut self, snapshot: &Snapshot, plan: &mut Plan) {
        self.now_ns = self.now_ns.saturating_add(snapshot.interval_ns);
        let wants_split = !plan.pins.is_empty();
        self.was_used |= wants_split || !plan.moves.is_empty();
        if !self.may_withhold {
            self.unverified = Some(PAPER);
            return;
        }
        let (is_on, left_ns) = self.split.judge(self.now_ns, snapshot, plan);
        if wants_split {
            if !is_on {
                let reason = match self.split.progress.stage {
                    Stage::Withdrawn { .. } => withdrawn(&self.split.sequence, 1.0),
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
            withhold(plan, withdrawn(&self.rates.sequence, self.rates.evenness()), is_exchange);
        } else if !plan.moves.is_empty() && self.rates.progress.stage == Stage::Idle {
            let other = if snapshot.seen.spinning { ROOM } else { UNSEEN };
            self.unverified = Some(self.rates.unverified.unwrap_or(other));
        }
    }

    /// What is known of the gain.
    pub(crate) fn gain(&self) -> Gain {
        let split = (&self.split.progress.stage, &self.split.sequence, self.split.pace, 1.0);
        let rates = (
            &self.rates.progress.stage,
            &self.rates.sequence,
            Some(Pace::CpuRates),
            self.rates.evenness(),
        );
        // The lever of which more is known.
        let is_split =
            split.1.samples() > rates.1.samples() || matches!(split.0, Stage::Gains | Stage::Trial);
        let (stage, sequence, by, factor) = if is_split { split } else { rates };
        let elapsed_ns = (self.split.on_ns + self.split.off_ns).max(1);
        let mut gain = Gain {
            proven: match stage {
                _ if !self.was_used => Proven::Nothing,
                Stage::Gains => Proven::Gains,
                Stage::Withdrawn { .. } => Proven::Withdrawn,
                Stage::Trial => Proven::Measuring,
                // The tasks that were measured have ended.
                Stage::Idle
                    if sequence.interval().is_some_and(|(low, _)| low + factor.ln() > 0.0) =>
                {
                    Proven::Gains
                }
                Stage::Idle => Proven::Unverified,
            },
            off_pct: self.split.off_ns as f64 * 100.0 / elapsed_ns as f64,
            ..Gain::default()
        };
        if sequence.samples() > 0 {
            gain.windows = sequence.samples();
            gain.by = by;
            gain.ratio = Some(sequence.mean().exp() * factor);
            if let Some((low, high)) = sequence.interval() {
                (gain.low, gain.high) = (Some(low.exp() * factor), Some(high.exp() * factor));
            }
        }
        if self.split.is_unverified || gain.proven == Proven::Unverified {
            let long = (self.split.on_ns > 0 && self.split.is_long()).then_some(LONG);
            let unseen = self.split.is_unverified.then_some(UNSEEN);
            let why = long.or(unseen).or(self.unverified);
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
        pace_per_mille: (sequence.mean().exp() * factor * 1000.0).round() as u64,
        windows: sequence.samples(),
    }
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let windows = |f: &mut fmt::Formatter<'_>| {
            let count = self.windows;
            let noun = if count == 1 { "window" } else { "windows" };
            write!(f, "measured in {count} {noun}")?;
            if self.by == Some(Pace::CpuRates) {
                write!(f, " by the rates of the CPUs")?;
            }
            Ok(())
        };
        let interval = |f: &mut fmt::Formatter<'_>| {
            let (Some(low), Some(high)) = (self.low, self.high) else { return Ok(()) };
            write!(f, "{low:.2}-{high:.2}, ")
        };
        let ratio = self.ratio.unwrap_or(1.0);
        match self.proven {
            Proven::Nothing => write!(f, "nothing was moved"),
            Proven::Unverified => {
                write!(f, "gain unverified: {}", self.why.as_deref().unwrap_or(UNSEEN))
            }
            Proven::Measuring => write!(f, "too short to tell what that gained"),
            Proven::Gains => {
                write!(f, "ran {ratio:.2}x as fast as without (")?;
                interval(f)?;
                windows(f)?;
                write!(f, ")")
            }
            Proven::Withdrawn if self.windows == 0 => {
                write!(f, "withdrawn: no gain was shown, as nothing could be measured")
            }
            Proven::Withdrawn => {
                write!(f, "withdrawn: no gain was shown, {ratio:.2}x as fast as without (")?;
                interval(f)?;
                windows(f)?;
                write!(f, ")")
            }
        }
    }
}
