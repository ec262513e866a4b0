//! Whether an interval shows what was claimed before measuring.

use evenkeel_stats::{Estimate, LEVEL, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is claimed of a figure, or of a ratio to another contestant (above 1 is better).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Claim {
    /// The ratio's verdict is better.
    Better,
    /// The ratio is at most this much below 1, and its verdict, where there is one, is not worse.
    NotWorse(f64),
    /// The ratio is at most this far from 1.
    Similar(f64),
    /// It is at least this.
    AtLeast(f64),
    /// It is at most this.
    AtMost(f64),
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reached {
    /// The whole interval shows it.
    Reached,
    /// The whole interval shows the opposite.
    Missed,
    /// Part of the interval shows it, or there are too few rounds for an interval.
    Undecided,
}

impl Claim {
    /// The values that the claim allows.
    fn range(self) -> (f64, f64) {
        match self {
            Self::Better => (1.0, f64::INFINITY),
            Self::NotWorse(margin) => (1.0 - margin, f64::INFINITY),
            Self::Similar(margin) => (1.0 - margin, 1.0 + margin),
            Self::AtLeast(least) => (least, f64::INFINITY),
            Self::AtMost(most) => (f64::NEG_INFINITY, most),
        }
    }

    /// Judges the claim. `verdict` is the corrected one, where there is one; undecided passes no
    /// claim.
    pub fn judge(self, found: Option<Estimate>, verdict: Option<Verdict>) -> Reached {
        match (self, verdict) {
            (Self::Better | Self::NotWorse(_), Some(Verdict::Better)) => return Reached::Reached,
            // A loss that is shown is one, also within the margin.
            (Self::Better | Self::NotWorse(_), Some(Verdict::Worse)) => return Reached::Missed,
            (Self::Better, _) => return Reached::Undecided,
            _ => {}
        }
        let (least, most) = self.range();
        match found {
            Some(found) if found.coverage < LEVEL => Reached::Undecided,
            Some(found) if found.lo >= least && found.hi <= most => Reached::Reached,
            Some(found) if found.hi < least || found.lo > most => Reached::Missed,
            _ => Reached::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(lo: f64, hi: f64) -> Option<Estimate> {
        Some(Estimate { median: (lo + hi) / 2.0, lo, hi, coverage: LEVEL })
    }

    #[test]
    fn the_whole_interval_must_show_the_claim() {
        for (claim, lo, hi, want) in [
            (Claim::AtLeast(0.95), 0.95, 1.2, Reached::Reached),
            (Claim::AtLeast(0.95), 0.94, 1.2, Reached::Undecided),
            (Claim::AtLeast(0.95), 0.90, 0.94, Reached::Missed),
            (Claim::AtMost(10.0), 9.0, 10.0, Reached::Reached),
            (Claim::AtMost(10.0), 10.5, 11.0, Reached::Missed),
            (Claim::NotWorse(0.02), 0.98, 2.0, Reached::Reached),
            (Claim::NotWorse(0.02), 0.97, 0.99, Reached::Undecided),
            (Claim::NotWorse(0.02), 0.90, 0.97, Reached::Missed),
            (Claim::Similar(0.03), 0.98, 1.02, Reached::Reached),
            (Claim::Similar(0.03), 1.02, 1.05, Reached::Undecided),
            (Claim::Similar(0.03), 1.04, 1.05, Reached::Missed),
            (Claim::Similar(0.03), 0.5, 2.0, Reached::Undecided),
        ] {
            assert_eq!(claim.judge(found(lo, hi), None), want, "{claim:?} of {lo} - {hi}");
        }
    }

    #[test]
    fn better_needs_the_corrected_verdict() {
        let clear = found(1.5, 1.6);
        assert_eq!(Claim::Better.judge(clear, Some(Verdict::Better)), Reached::Reached);
        assert_eq!(Claim::Better.judge(clear, Some(Verdict::Worse)), Reached::Missed);
        assert_eq!(Claim::Better.judge(clear, Some(Verdict::Undecided)), Reached::Undecided);
        assert_eq!(Claim::Better.judge(clear, None), Reached::Undecided);
    }

    #[test]
    fn not_worse_follows_a_verdict_and_else_its_margin() {
        let claim = Claim::NotWorse(0.05);
        let near = found(0.97, 0.99);
        assert_eq!(claim.judge(near, Some(Verdict::Undecided)), Reached::Reached);
        assert_eq!(claim.judge(near, Some(Verdict::Worse)), Reached::Missed);
        assert_eq!(claim.judge(found(0.9, 1.5), Some(Verdict::Better)), Reached::Reached);
        assert_eq!(claim.judge(found(0.9, 1.5), Some(Verdict::Undecided)), Reached::Undecided);
    }

    #[test]
    fn too_few_rounds_decide_nothing() {
        let few = found(2.0, 3.0).map(|few| Estimate { coverage: 0.5, ..few });
        assert_eq!(Claim::AtLeast(1.0).judge(few, None), Reached::Undecided);
        assert_eq!(Claim::AtLeast(1.0).judge(None, None), Reached::Undecided);
    }
}
