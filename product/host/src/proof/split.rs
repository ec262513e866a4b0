//! The proof of a split: windows with and without the pins, alternating at first, seldom later.
//!
//! Windows come in pairs, in turn `without, with` and `with, without`, so that a drift cancels out and
//! there is one change in each pair. Each pair is one sample of the sequential test: the logarithm of
//! how much faster the program ran with the pins.
//!
//! A window must last some phases. In longer phases nothing is tried: windows without would disturb
//! what they are to measure, and show nothing, since a kernel that pulls tasks at the end of a phase
//! makes good for an uneven split. The pins then stay, and their gain is unverified. So it is where no
//! window tells a pace.

use evenkeel_capability::{Plan, Reason, Snapshot};

use super::sequence::Sequence;
use super::stage::{Progress, Stage};
use super::window::{Pace, Window};

/// Length of a window, at least ...
const WINDOW_NS: u64 = 100_000_000;
/// ... and so many phases.
const WINDOW_PHASES: u64 = 2;
/// Phases count as short from so many intervals on, and until none of so many is left.
const SHORT_LOOKS: u32 = 2;
const MOST_SHORT_LOOKS: u32 = 8;
/// Between two windows without, once a gain is shown: at first, and at most. So that is how much of the
/// gain the proof costs: 5 %, and soon 0.5 %.
const FIRST_STRETCH_NS: u64 = 20 * WINDOW_NS;
const LAST_STRETCH_NS: u64 = 200 * WINDOW_NS;
/// A pace that is this much below the usual one ...
const SUSPICIOUS_SHARE: f64 = 0.05;
/// ... in this many windows in a row has the gain measured anew, but not more often than this.
const SUSPICIOUS_WINDOWS: u32 = 3;
const SUSPICION_NS: u64 = 20_000_000_000;
/// Where no pace was told, nothing is tried for this time.
const UNVERIFIED_NS: u64 = 2_000_000_000;
/// Share of a new window in the usual pace: 1/8.
const USUAL_SHARE: f64 = 8.0;

#[derive(Debug, Clone, Default)]
pub(super) struct Split {
    pub(super) progress: Progress,
    /// All pairs since the asymmetry last changed.
    pub(super) sequence: Sequence,
    pub(super) pace: Option<Pace>,
    /// The pins are in force.
    is_on: bool,
    window: Window,
    /// The first window of a pair, and whether the pins were in force in it.
    first: Option<(bool, Window)>,
    /// Time with the pins since the last window without.
    stretch_ns: u64,
    next_stretch_ns: u64,
    /// Pairs since the gain was shown.
    recent: Sequence,
    usual_pace: Option<(Pace, f64)>,
    slow_windows: u32,
    suspects_from_ns: u64,
    /// Nothing that was seen tells the pace.
    pub(super) is_unverified: bool,
    unverified_until_ns: u64,
    /// In how many of the last intervals, more or less, phases were short.
    short_looks: u32,
    window_ns: u64,
    pub(super) off_ns: u64,
    pub(super) on_ns: u64,
}

impl Split {
    /// Takes in the interval that ended, and decides whether the pins and moves of `plan` may be in
    /// force next, and for how long at most.
    pub(super) fn judge(&mut self, now_ns: u64, snapshot: &Snapshot, plan: &Plan) -> (bool, u64) {
        self.window.add(snapshot);
        if self.is_on {
            self.on_ns += snapshot.interval_ns;
            self.stretch_ns += snapshot.interval_ns;
        } else if matches!(self.progress.stage, Stage::Trial | Stage::Gains) {
            self.off_ns += snapshot.interval_ns;
        }
        if plan.pins.is_empty() {
            // The CPUs are equal at the moment, there are fewer tasks, or a long phase ends.
            self.first = None;
            self.set_on(false);
            if self.window.elapsed_ns >= WINDOW_NS {
                self.window = Window::default();
            }
            return (false, u64::MAX);
        }
        let was_short = self.note_phase(plan);
        let is_withdrawn = matches!(self.progress.stage, Stage::Withdrawn { .. });
        let may_try = self.progress.may_try(now_ns, snapshot);
        if self.is_long() && (may_try || !is_withdrawn) {
            self.progress.stage = if is_withdrawn { Stage::Idle } else { self.progress.stage };
            (self.is_on, self.first, self.window) = (true, None, Window::default());
            return (true, u64::MAX);
        }
        if self.is_kept_unverified(now_ns) {
            return (true, u64::MAX);
        }
        if may_try {
            if self.progress.begin(snapshot) {
                self.sequence = Sequence::default();
            }
            let window = std::mem::take(&mut self.window);
            // What ran until now was without, unless phases seemed to be long.
            self.first = (!self.is_on && was_short).then_some((false, window));
            self.is_on = true;
        } else {
            if self.progress.stage == Stage::Gains && self.first.is_none() {
                self.set_on(true);
            }
            if self.window.elapsed_ns >= self.window_ns {
                let window = std::mem::take(&mut self.window);
                match self.progress.stage {
                    Stage::Trial => self.end_in_trial(now_ns, window, snapshot),
                    Stage::Gains => self.end_in_stretch(now_ns, window, snapshot),
                    Stage::Idle | Stage::Withdrawn { .. } => {}
                }
            }
        }
        let is_withdrawn = matches!(self.progress.stage, Stage::Withdrawn { .. });
        let is_short = self.progress.stage == Stage::Trial || !self.is_on;
        let left_ns = if is_short && !is_withdrawn {
            self.window_ns.saturating_sub(self.window.elapsed_ns)
        } else {
            u64::MAX
        };
        (self.is_on, left_ns)
    }

    /// Puts the pins in force, or out of it: no window has both.
    fn set_on(&mut self, is_on: bool) {
        if self.is_on != is_on {
            (self.is_on, self.window) = (is_on, Window::default());
        }
    }

    /// What cannot be measured is not withheld: whether the pins stay since no window tells a pace.
    fn is_kept_unverified(&mut self, now_ns: u64) -> bool {
        if !self.is_unverified || self.progress.stage != Stage::Idle {
            return false;
        }
        self.set_on(true);
        if self.window.elapsed_ns >= self.window_ns {
            let window = std::mem::take(&mut self.window);
            let is_told = window.pace_with(&window).is_some();
            self.is_unverified = !is_told || now_ns < self.unverified_until_ns;
        }
        self.is_unverified
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
            self.window_ns = phase_ns.saturating_mul(WINDOW_PHASES).max(WINDOW_NS);
        }
        was_short
    }

    /// Takes a pair of windows.
    fn compare(&mut self, is_on: bool, one: &Window, other: &Window) {
        let pace = one.pace_with(other);
        self.is_unverified = pace.is_none();
        let Some(pace) = pace else { return };
        if self.pace != Some(pace) {
            // Samples of two kinds do not belong together.
            (self.sequence, self.recent) = (Sequence::default(), Sequence::default());
            self.pace = Some(pace);
        }
        let (on, off) = if is_on { (one, other) } else { (other, one) };
        let sample = (on.pace(pace) / off.pace(pace)).ln();
        self.sequence.add(sample);
        self.recent.add(sample);
    }

    fn end_in_trial(&mut self, now_ns: u64, window: Window, snapshot: &Snapshot) {
        let Some((was_on, first)) = self.first.take() else {
            self.first = Some((self.is_on, window));
            self.is_on = !self.is_on;
            return;
        };
        self.progress.pass(first.elapsed_ns + window.elapsed_ns);
        self.compare(was_on, &first, &window);
        if self.sequence.samples() == 0 {
            self.progress.stage = Stage::Idle;
            self.is_unverified = true;
            self.unverified_until_ns = now_ns.saturating_add(UNVERIFIED_NS);
            self.set_on(true);
            return;
        }
        match self.progress.decide(self.sequence.interval(), false) {
            Some(true) => {
                self.progress.gain();
                self.is_on = true;
                (self.stretch_ns, self.next_stretch_ns) = (0, FIRST_STRETCH_NS);
                self.recent = Sequence::default();
                (self.usual_pace, self.slow_windows) = (None, 0);
            }
            Some(false) => self.withdraw(now_ns, snapshot),
            // The next pair begins as this one ended.
            None => {}
        }
    }

    /// A gain was shown: seldom a window without.
    fn end_in_stretch(&mut self, now_ns: u64, window: Window, snapshot: &Snapshot) {
        if !self.is_on {
            if let Some((_, on)) = self.first.take() {
                self.compare(true, &on, &window);
            }
            self.is_on = true;
            self.stretch_ns = 0;
            self.next_stretch_ns = (self.next_stretch_ns * 2).min(LAST_STRETCH_NS);
            if self.recent.interval().is_some_and(|(_, high)| high < 0.0) {
                self.withdraw(now_ns, snapshot);
            }
            return;
        }
        if self.is_suspicious(now_ns, &window) {
            self.suspects_from_ns = now_ns + SUSPICION_NS;
            self.progress.begin(snapshot);
            self.sequence = Sequence::default();
            self.first = Some((true, window));
            self.is_on = false;
        } else if self.stretch_ns >= self.next_stretch_ns {
            self.first = Some((true, window));
            self.is_on = false;
        }
    }

    /// Whether the program has become slower than it was with the pins.
    fn is_suspicious(&mut self, now_ns: u64, window: &Window) -> bool {
        let Some(pace) = window.pace_with(window) else { return false };
        let value = window.pace(pace);
        let usual = match self.usual_pace {
            Some((kind, usual)) if kind == pace => usual,
            _ => value,
        };
        self.usual_pace = Some((pace, usual + (value - usual) / USUAL_SHARE));
        let is_slow = value < usual * (1.0 - SUSPICIOUS_SHARE);
        self.slow_windows = if is_slow { self.slow_windows + 1 } else { 0 };
        self.slow_windows >= SUSPICIOUS_WINDOWS && now_ns >= self.suspects_from_ns
    }

    fn withdraw(&mut self, now_ns: u64, snapshot: &Snapshot) {
        self.progress.withdraw(now_ns, snapshot);
        (self.is_on, self.first) = (false, None);
    }
}
