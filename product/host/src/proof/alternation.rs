//! Windows with a lever and without it, alternating at first, seldom later: the machine by which a split
//! and shares of loops are measured.
//!
//! Windows come in pairs, in turn `without, with` and `with, without`, so that a drift cancels out and
//! there is one change in each pair. Each pair is one sample of the sequential test: the logarithm of
//! how much faster the program ran with the lever.
//!
//! The test needs some pairs, however large the gain is. So the first windows of a trial are short: a
//! large gain shows in them, and little of a short program's time is spent without the lever. A small
//! gain needs windows that differ less from each other, so those that follow are longer.

use evenkeel_capability::Snapshot;

use super::laps::Laps;
use super::sequence::Sequence;
use super::stage::{Progress, Stage};
use super::window::{Pace, Window};

/// Length of a window, at least ...
pub(super) const WINDOW_NS: u64 = 100_000_000;
/// ... but for the first windows of a trial: until the sequential test has so many pairs.
const SHORT_WINDOW_NS: u64 = 40_000_000;
const SHORT_PAIRS: u32 = 5;
/// A lever that seems to gain after this many pairs ...
const SEEMING_PAIRS: u32 = 3;
/// ... is in force for this many times as long as it is not, while it stays on trial.
const SEEMING_STRETCH: u64 = 4;
/// The time between two windows without the lever, once a gain is shown: at first, and at most. So the
/// proof costs 5 % of the gain, and soon 0.5 %.
const FIRST_STRETCH_NS: u64 = 20 * WINDOW_NS;
const LAST_STRETCH_NS: u64 = 200 * WINDOW_NS;
/// A pace that is this much below the usual one ...
const SUSPICIOUS_SHARE: f64 = 0.05;
/// ... in this many windows in a row has the gain measured anew, but not more often than this.
const SUSPICIOUS_WINDOWS: u32 = 3;
const SUSPICION_NS: u64 = 20_000_000_000;
/// Where no pace was told, nothing is tried for this time.
const UNVERIFIED_NS: u64 = 2_000_000_000;
/// Share of the windows before in the usual pace, with each new one.
const USUAL_SHARE: f64 = 7.0 / 8.0;

/// The windows of one lever.
#[derive(Debug, Clone, Default)]
pub(super) struct Alternation {
    pub(super) progress: Progress,
    /// All pairs since the asymmetry last changed.
    pub(super) sequence: Sequence,
    pub(super) pace: Option<Pace>,
    /// The lever is in force.
    is_on: bool,
    /// In the interval that runs, it is not wanted.
    is_unwanted: bool,
    window: Window,
    /// The first window of a pair, and whether the lever was in force in it.
    first: Option<(bool, Window)>,
    /// Time with the lever since the last window without.
    stretch_ns: u64,
    next_stretch_ns: u64,
    /// On trial for longer, because it seems to gain.
    seems_to_gain: bool,
    /// Pairs since the gain was shown.
    recent: Sequence,
    /// The pace that the program usually has with the lever.
    usual: Option<Window>,
    slow_windows: u32,
    suspects_from_ns: u64,
    /// Nothing that was seen tells the pace.
    pub(super) is_unverified: bool,
    unverified_until_ns: u64,
    /// A shorter window would tell no pace.
    pub(super) least_ns: u64,
    pub(super) off_ns: u64,
    pub(super) on_ns: u64,
}

impl Alternation {
    /// Takes in the interval that ended, with the laps that ended in it, where these are counted.
    pub(super) fn add(&mut self, snapshot: &Snapshot, laps: Option<&Laps>) {
        self.window.add(snapshot, laps);
        // Time in which it was not wanted is no cost of measuring it.
        let was_unwanted = std::mem::take(&mut self.is_unwanted);
        if self.is_on {
            self.on_ns += snapshot.interval_ns;
            self.stretch_ns += snapshot.interval_ns;
        } else if !was_unwanted && matches!(self.progress.stage, Stage::Trial | Stage::Gains) {
            self.off_ns += snapshot.interval_ns;
        }
    }

    /// What was measured took waiting for work: windows before mean nothing, nor does a verdict by them.
    pub(super) fn begin_anew(&mut self) {
        (self.sequence, self.recent) = (Sequence::default(), Sequence::default());
        (self.window, self.first, self.usual) = (Window::default(), None, None);
        self.progress.stage = Stage::Idle;
    }

    /// The lever is not wanted now.
    pub(super) fn rest(&mut self) {
        self.is_unwanted = true;
        self.first = None;
        self.set_on(false);
        if self.window.elapsed_ns >= WINDOW_NS {
            self.window = Window::default();
        }
    }

    /// The lever is in force, and not measured.
    pub(super) fn stay_on(&mut self) {
        (self.is_on, self.first, self.window) = (true, None, Window::default());
    }

    /// Puts the lever in force, or out of it: no window has both.
    fn set_on(&mut self, is_on: bool) {
        if self.is_on != is_on {
            (self.is_on, self.window) = (is_on, Window::default());
        }
    }

    /// The lever stays in force for a while although no window tells a pace.
    pub(super) fn keep_unverified(&mut self, now_ns: u64) {
        self.progress.stage = Stage::Idle;
        self.unverified_until_ns = now_ns.saturating_add(UNVERIFIED_NS);
        self.first = None;
        self.set_on(true);
    }

    /// Whether the lever stays since no window tells a pace.
    pub(super) fn is_kept_unverified(&mut self, now_ns: u64) -> bool {
        if !self.is_unverified || self.progress.stage != Stage::Idle {
            return false;
        }
        self.set_on(true);
        if self.window.elapsed_ns >= self.window_ns() {
            let window = std::mem::take(&mut self.window);
            let is_told = window.ratio_to(&window).is_some();
            self.is_unverified = !is_told || now_ns < self.unverified_until_ns;
        }
        self.is_unverified
    }

    /// Begins a trial. What ran until now counts as the first window where it was `without` the lever,
    /// and nothing else was different.
    pub(super) fn begin(&mut self, snapshot: &Snapshot, without: bool) {
        if self.progress.begin(snapshot) {
            self.sequence = Sequence::default();
        }
        let window = std::mem::take(&mut self.window);
        self.first = (!self.is_on && without).then_some((false, window));
        self.is_on = true;
    }

    /// Goes on: ends the window if it is time. What seems to gain by `seeming` may stay on trial for
    /// longer.
    pub(super) fn go_on(&mut self, now_ns: u64, snapshot: &Snapshot, seeming: Option<f64>) {
        if self.progress.stage == Stage::Gains && self.first.is_none() {
            self.set_on(true);
        }
        if self.window.elapsed_ns < self.window_ns() {
            return;
        }
        let window = std::mem::take(&mut self.window);
        match self.progress.stage {
            Stage::Trial => self.end_in_trial(now_ns, window, snapshot, seeming),
            Stage::Gains => self.end_in_stretch(now_ns, window, snapshot),
            Stage::Idle | Stage::Withdrawn { .. } => {}
        }
    }

    /// Whether the lever is to be in force next, and for how long at most.
    pub(super) fn next(&self) -> (bool, u64) {
        let is_withdrawn = matches!(self.progress.stage, Stage::Withdrawn { .. });
        let is_short = self.progress.stage == Stage::Trial || !self.is_on;
        let left_ns = if is_short && !is_withdrawn {
            self.window_ns().saturating_sub(self.window.elapsed_ns)
        } else {
            u64::MAX
        };
        (self.is_on, left_ns)
    }

    /// How long the window lasts that runs now.
    fn window_ns(&self) -> u64 {
        let (pairs, is_trial) = (self.sequence.samples(), self.progress.stage == Stage::Trial);
        let is_short = is_trial && pairs < SHORT_PAIRS;
        let is_stretched = is_trial && pairs >= SEEMING_PAIRS && self.is_on && self.seems_to_gain;
        let window_ns = if is_short { SHORT_WINDOW_NS } else { WINDOW_NS };
        let stretch = if is_stretched { SEEMING_STRETCH } else { 1 };
        self.least_ns.max(window_ns) * stretch
    }

    /// Share of the time that windows without took, in percent.
    pub(super) fn off_pct(&self) -> f64 {
        let elapsed_ns = (self.on_ns + self.off_ns).max(1);
        self.off_ns as f64 * 100.0 / elapsed_ns as f64
    }

    /// Takes a pair of windows.
    fn compare(&mut self, is_on: bool, one: &Window, other: &Window) {
        let (on, off) = if is_on { (one, other) } else { (other, one) };
        let told = on.ratio_to(off);
        self.is_unverified = told.is_none();
        let Some((pace, ratio)) = told else { return };
        if self.pace != Some(pace) {
            // Samples of two kinds do not belong together.
            (self.sequence, self.recent) = (Sequence::default(), Sequence::default());
            self.pace = Some(pace);
        }
        let sample = libm::log(ratio);
        self.sequence.add(sample);
        self.recent.add(sample);
    }

    fn end_in_trial(
        &mut self,
        now_ns: u64,
        window: Window,
        snapshot: &Snapshot,
        seeming: Option<f64>,
    ) {
        let Some((was_on, first)) = self.first.take() else {
            self.first = Some((self.is_on, window));
            self.is_on = !self.is_on;
            return;
        };
        self.progress.pass(first.elapsed_ns + window.elapsed_ns);
        self.compare(was_on, &first, &window);
        self.seems_to_gain = seeming.is_some_and(|least| self.sequence.mean() >= least);
        match self.progress.decide(self.sequence.interval(), self.seems_to_gain) {
            Some(true) => {
                self.progress.gain();
                self.is_on = true;
                (self.stretch_ns, self.next_stretch_ns) = (0, FIRST_STRETCH_NS);
                self.recent = Sequence::default();
                (self.usual, self.slow_windows) = (None, 0);
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

    /// Whether the program has become slower than it was with the lever.
    fn is_suspicious(&mut self, now_ns: u64, window: &Window) -> bool {
        let usual = self.usual.get_or_insert_with(|| window.clone());
        let told = window.ratio_to(usual);
        usual.follow(window, USUAL_SHARE);
        let Some((_, ratio)) = told else { return false };
        let is_slow = ratio < 1.0 - SUSPICIOUS_SHARE;
        self.slow_windows = if is_slow { self.slow_windows + 1 } else { 0 };
        self.slow_windows >= SUSPICIOUS_WINDOWS && now_ns >= self.suspects_from_ns
    }

    fn withdraw(&mut self, now_ns: u64, snapshot: &Snapshot) {
        self.progress.withdraw(now_ns, snapshot);
        (self.is_on, self.first) = (false, None);
    }
}
