//! The proof of a split: windows with and without the pins (`alternation.rs`).
//!
//! A window must last some phases. In longer phases nothing is tried: windows without would disturb
//! what they are to measure, and show nothing, since a kernel that pulls tasks at the end of a phase
//! makes good for an uneven split. The pins then stay, and their gain is unverified. So it is where no
//! window tells a pace.
//!
//! The split of threads that the user asked for (`--threads`) is held: the kernel spreads threads anew
//! only some time after their pins are gone, so windows without cost more than they show. Such threads
//! cannot be taken away either, so what they gain is shown by `compare` only.

use evenkeel_capability::{Plan, Reason, Snapshot};

use super::alternation::{Alternation, WINDOW_NS};
use super::stage::Stage;

/// A window lasts so many phases, at least. A phase that is cut by the end of a window makes both kinds
/// of windows more alike, so a window that is shorter than usual has more of them.
const WINDOW_PHASES: u64 = 2;
const SHORT_WINDOW_PHASES: u64 = 4;
/// Phases count as short from so many intervals on, and until none of so many is left.
const SHORT_LOOKS: u32 = 2;
const MOST_SHORT_LOOKS: u32 = 8;

#[derive(Debug, Clone, Default)]
pub(super) struct Split {
    pub(super) windows: Alternation,
    /// In how many of the last intervals, more or less, phases were short.
    short_looks: u32,
}

impl Split {
    /// Takes in the interval that ended, and decides whether the pins and moves of `plan` may be in
    /// force next, and for how long at most.
    pub(super) fn judge(&mut self, now_ns: u64, snapshot: &Snapshot, plan: &Plan) -> (bool, u64) {
        if snapshot.seen.redefined {
            self.windows.begin_anew();
        }
        self.windows.add(snapshot, None);
        if plan.pins.is_empty() {
            // The CPUs are equal at the moment, there are fewer tasks, or a long phase ends.
            self.windows.rest();
            return (false, u64::MAX);
        }
        let was_short = self.note_phase(plan);
        if snapshot.seen.asked {
            self.windows.progress.stage = Stage::Idle;
            self.windows.stay_on();
            return (true, u64::MAX);
        }
        let progress = &mut self.windows.progress;
        let is_withdrawn = matches!(progress.stage, Stage::Withdrawn { .. });
        let may_try = progress.may_try(now_ns, snapshot);
        if self.is_long() && (may_try || !is_withdrawn) {
            let progress = &mut self.windows.progress;
            progress.stage = if is_withdrawn { Stage::Idle } else { progress.stage };
            self.windows.stay_on();
            return (true, u64::MAX);
        }
        if self.windows.is_kept_unverified(now_ns) {
            return (true, u64::MAX);
        }
        if may_try {
            // What ran until now was without, unless phases seemed to be long.
            self.windows.begin(snapshot, was_short);
        } else {
            self.windows.go_on(now_ns, snapshot, None);
            if self.windows.is_unverified && self.windows.sequence.samples() == 0 {
                self.windows.keep_unverified(now_ns);
            }
        }
        self.windows.next()
    }

    /// Whether phases are too long for windows.
    pub(super) fn is_long(&self) -> bool {
        self.short_looks < SHORT_LOOKS
    }

    /// Takes in the length of a phase, if it is short. Returns whether it was before.
    fn note_phase(&mut self, plan: &Plan) -> bool {
        let was_short = !self.is_long();
        let phase_ns = plan.reasons.iter().find_map(|reason| match reason {
            Reason::PhasesTooShort { phase_ns } => Some(*phase_ns),
            _ => None,
        });
        self.short_looks = match phase_ns {
            Some(_) => (self.short_looks + 1).min(MOST_SHORT_LOOKS),
            None => self.short_looks.saturating_sub(1),
        };
        if let Some(phase_ns) = phase_ns {
            let short_ns = phase_ns.saturating_mul(SHORT_WINDOW_PHASES).min(WINDOW_NS);
            self.windows.least_ns = phase_ns.saturating_mul(WINDOW_PHASES).max(short_ns);
        }
        was_short
    }
}
