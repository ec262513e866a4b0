//! What is known of a lever's gain: the figure with its interval, and how sure it is; as a value and as
//! text.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sequence::Sequence;
use super::stage::Stage;
use super::window::Pace;

/// Why nothing can be told, where nothing else is known.
pub(super) const UNSEEN: &str = "how the tasks wait for each other cannot be seen here";

/// How sure a gain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
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

impl Gain {
    /// What was measured of a lever. A sample times `factor` is a pace; a lever that was not `used` has
    /// nothing to show.
    pub(super) fn of(
        stage: &Stage,
        sequence: &Sequence,
        by: Option<Pace>,
        factor: f64,
        was_used: bool,
    ) -> Self {
        let mut gain = Self {
            proven: match stage {
                _ if !was_used => Proven::Nothing,
                Stage::Gains => Proven::Gains,
                Stage::Withdrawn { .. } => Proven::Withdrawn,
                Stage::Trial => Proven::Measuring,
                // The tasks that were measured have ended.
                Stage::Idle
                    if sequence
                        .interval()
                        .is_some_and(|(low, _)| low + libm::log(factor) > 0.0) =>
                {
                    Proven::Gains
                }
                Stage::Idle => Proven::Unverified,
            },
            ..Self::default()
        };
        if sequence.samples() > 0 {
            gain.windows = sequence.samples();
            gain.by = by;
            gain.ratio = Some(libm::exp(sequence.mean()) * factor);
            if let Some((low, high)) = sequence.interval() {
                (gain.low, gain.high) =
                    (Some(libm::exp(low) * factor), Some(libm::exp(high) * factor));
            }
        }
        gain
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
