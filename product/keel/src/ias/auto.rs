//! The helper thread of paper 003 (section 1; its section 6 leaves it for later): finds by itself how
//! strongly the threads of each address space are to be aggregated. Pure: what was seen goes in, what is
//! to be changed comes out. (`ias::watch` looks at a real machine, the simulator at its own.)
//!
//! What aggregation gains shows in the *pace* of a space: the work that it gets done for its time on
//! CPUs. Work is counted in units that the kernel shows: a thread that goes to sleep has done one
//! (served a request, passed a barrier), and so has one that reads or writes. The more frequent of the
//! two counts: threads of a busy server find the next request waiting, and how often they sleep then
//! says how the scheduler has them take turns, not what they get done. Of threads that do neither,
//! nothing is known, so they are left alone.
//!
//! A multiplier (bonus type 1) is tried in turn with the present one, a window each, in the order
//! A B B A A B ..., so that what changes by itself meets both. It is taken when a t-test over the pairs
//! says that it is better. It is dropped when it is worse, when it can hardly be better, or when it is
//! not better after the most pairs that are made. From no bonus the first step goes to the top: a larger
//! effect takes fewer pairs, and during a trial half of the time goes to the worse multiplier. If the
//! top does not pay, the next step ends a rung below. From time to time the rung below the present one
//! is tried, and taken unless it is worse: it is fairer. A window lasts until enough units were seen, so
//! a space that does little is looked at less often. When the pace falls, no bonus at all is tried at
//! once.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::options::Mode;

/// Multipliers in the mode `paper`, from none on; the largest is the bound. The paper's own are 1 to 5.
/// They are few, because each step costs a trial.
const RUNGS: [u64; 6] = [0, 1, 3, 5, 16, 64];
/// In the mode `rounds` a multiple of the last run is half a slice, whatever the multiplier.
const ROUNDS_RUNGS: [u64; 2] = [0, 1];
/// Units that a window of a trial must see, and one without, by which it is known whether the pace has
/// fallen, ...
const WINDOW_UNITS: u64 = 100;
const REST_UNITS: u64 = 400;
/// ... in this time at most; otherwise too little happens to say anything.
const WINDOW_MAX_NS: u64 = 20_000_000_000;
/// A space that uses less than a part of one CPU is bound by something else.
const LEAST_SHARE: u64 = 4;
/// After so many windows in a row in which nothing was to be seen nothing can be said.
const SILENT: u32 = 3;
/// Pairs of windows that decide, at least and at most.
const PAIRS: std::ops::RangeInclusive<usize> = 4..=60;
/// What is smaller than this is not worth a bonus.
const LEAST_GAIN: f64 = 0.01;
/// A trial ends when the mean gain and so many standard errors are together less than that.
const FUTILE_ERRORS: f64 = 1.5;
/// Student's t that is enough when no more pairs are made: chance has it once in a hundred cases.
const LAST_CERTAIN: f64 = 2.4;
/// Between two looks: while something is tried, while something was found out, and otherwise.
const TRIAL_LOOK_NS: u64 = 250_000_000;
const REST_LOOK_NS: u64 = 1_000_000_000;
const IDLE_LOOK_NS: u64 = 2_000_000_000;
/// A window counts after one part of so many: until then siblings still pay for the lead that they had
/// by the multiplier before.
const SETTLE: u64 = 2;
/// Windows until a decision is looked at again: at first, and at most (each time twice as many).
const REST: u32 = 16;
const MOST_REST: u32 = 512;
/// So many windows in a row in which the pace is lower by this than when the multiplier was taken call
/// for a new look at once.
const FALLEN: u32 = 3;
const FALL: f64 = 0.9;

/// What was seen of an address space since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its name, as it is shown.
    pub space: u64,
    /// Threads that ran or waited for a CPU.
    pub threads: u32,
    /// How long they ran together, in ns.
    pub run_ns: u64,
    /// How often they went to sleep or ended.
    pub sleeps: u64,
    /// How often they read or wrote.
    pub calls: u64,
}

/// Why a multiplier was changed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "why")]
pub enum Why {
    /// It takes its turn in a trial against another one.
    Tried {
        /// The other one.
        against: u64,
    },
    /// It was better than the other one.
    Better {
        /// The other one.
        than: u64,
        /// By how much, in percent of the pace.
        gain_pct: f64,
    },
    /// The other one was worse.
    Worse {
        /// The other one.
        other: u64,
        /// By how much, in percent of the pace.
        loss_pct: f64,
    },
    /// The other one was not certainly better.
    NoGain {
        /// The other one.
        other: u64,
    },
    /// Threads are too few, hardly run, or never sleep: nothing can be said.
    Nothing,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tried { against } => write!(f, "tried against {against}x"),
            Self::Better { than, gain_pct } => {
                write!(f, "{gain_pct:.1} % more work for its time than with {than}x")
            }
            Self::Worse { other, loss_pct } => {
                write!(f, "{other}x had {loss_pct:.1} % less work for its time")
            }
            Self::NoGain { other } => write!(f, "{other}x was not certainly better"),
            Self::Nothing => f.write_str(
                "nothing to be seen: fewer than two threads at work, hardly any, or none that sleeps, \
                 reads or writes",
            ),
        }
    }
}

/// From now on a space has this multiplier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tuning {
    /// The space, as it was called in [`Seen`].
    pub space: u64,
    /// 0: no aggregation.
    pub multiplier: u64,
    /// Why.
    #[serde(flatten)]
    pub why: Why,
}

/// What is known of all address spaces.
#[derive(Debug, Clone)]
pub struct Auto {
    rungs: &'static [u64],
    tuners: BTreeMap<u64, Tuner>,
}

impl Auto {
    /// Nothing is known yet of spaces that aggregate in this mode.
    pub fn new(mode: Mode) -> Self {
        let rungs: &'static [u64] = match mode {
            Mode::Paper => &RUNGS,
            Mode::Rounds => &ROUNDS_RUNGS,
        };
        Self { rungs, tuners: BTreeMap::new() }
    }

    /// Takes in what was seen during the last `window_ns`; spaces that are not in it are forgotten.
    pub fn look(&mut self, window_ns: u64, seen: &[Seen]) -> Vec<Tuning> {
        self.tuners.retain(|space, _| seen.iter().any(|seen| seen.space == *space));
        let mut changes = Vec::new();
        for seen in seen {
            let rungs = self.rungs;
            let tuner = self.tuners.entry(seen.space).or_insert_with(|| Tuner::new(rungs));
            let change = tuner.look(window_ns, seen);
            let change =
                change.map(|(multiplier, why)| Tuning { space: seen.space, multiplier, why });
            changes.extend(change);
        }
        changes
    }

    /// How long until the next look: often while something is tried, seldom while nothing can be said.
    pub fn interval_ns(&self) -> u64 {
        let of = |tuner: &Tuner| match (&tuner.trial, tuner.pace) {
            (Some(_), _) => TRIAL_LOOK_NS,
            (None, Some(_)) => REST_LOOK_NS,
            (None, None) => IDLE_LOOK_NS,
        };
        self.tuners.values().map(of).min().unwrap_or(IDLE_LOOK_NS)
    }
}

/// What counts as work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Sleep,
    Call,
}

/// What was seen in a window so far.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    wall_ns: u64,
    run_ns: u64,
    sleeps: u64,
    calls: u64,
    /// The most threads at work at a time.
    threads: u32,
}

impl Window {
    fn add(&mut self, window_ns: u64, seen: &Seen) {
        self.wall_ns += window_ns;
        self.run_ns += seen.run_ns;
        self.sleeps += seen.sleeps;
        self.calls += seen.calls;
        self.threads = self.threads.max(seen.threads);
    }

    /// The unit that came more often.
    fn unit(&self) -> Unit {
        if self.calls > self.sleeps { Unit::Call } else { Unit::Sleep }
    }

    fn units(&self, unit: Unit) -> u64 {
        match unit {
            Unit::Sleep => self.sleeps,
            Unit::Call => self.calls,
        }
    }

    /// Whether something was to be seen.
    fn shows(&self) -> bool {
        let is_busy = self.run_ns >= self.wall_ns / LEAST_SHARE;
        self.units(self.unit()) >= WINDOW_UNITS && self.threads >= 2 && is_busy
    }

    /// Never 0, so that paces have ratios.
    fn pace(&self, unit: Unit) -> f64 {
        self.units(unit).max(1) as f64 / self.run_ns.max(1) as f64
    }
}

/// Two multipliers by turns.
#[derive(Debug, Clone)]
struct Trial {
    /// Whether the other one is the larger one.
    is_upwards: bool,
    other: u64,
    unit: Unit,
    /// Paces of the windows with the one that holds, and with the other one.
    held: Vec<f64>,
    tried: Vec<f64>,
}

/// What trials say of the other multiplier.
enum Verdict {
    Better(f64),
    Worse(f64),
    NoGain,
}

/// Student's t that a decision after so many pairs needs. Chance reaches it once in a thousand cases on
/// either side; a trial looks many times, so once in about a hundred trials.
fn certain(pairs: usize) -> f64 {
    const FEW: [f64; 21] = [
        10.21, 7.17, 5.89, 5.21, 4.79, 4.50, 4.30, 4.14, 4.02, 3.93, 3.85, 3.79, 3.73, 3.69, 3.65,
        3.61, 3.58, 3.55, 3.53, 3.50, 3.48,
    ];
    let at = pairs.saturating_sub(*PAIRS.start());
    // From there on it is as good as that of the normal distribution and a part for what is uncertain.
    FEW.get(at).copied().unwrap_or(3.09 + 9.0 / pairs as f64)
}

impl Trial {
    /// Whether the next window is the other one's: A B B A A B B A ...
    fn is_others_turn(&self) -> bool {
        matches!((self.held.len() + self.tried.len()) % 4, 1 | 2)
    }

    /// After whole pairs, if they are enough: how many, the mean of the logarithms of their gains (twice
    /// as much and half as much are equally far from 0 in these), and its standard error.
    fn gain(&self) -> Option<(usize, f64, f64)> {
        let pairs = self.held.iter().zip(&self.tried);
        let gains: Vec<f64> = pairs.map(|(held, tried)| libm::log(tried / held)).collect();
        if self.held.len() != self.tried.len() || !PAIRS.contains(&gains.len()) {
            return None;
        }
        let n = gains.len() as f64;
        let mean = gains.iter().sum::<f64>() / n;
        let variance = gains.iter().map(|gain| (gain - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Some((gains.len(), mean, (variance / n).sqrt()))
    }

    fn verdict(&self) -> Option<Verdict> {
        let (pairs, mean, error) = self.gain()?;
        let is_last = pairs == *PAIRS.end();
        let wanted = if is_last { LAST_CERTAIN } else { certain(pairs) };
        let is_certain = mean.abs() >= wanted * error;
        let gain = libm::exp(mean) - 1.0;
        // What the larger one of the two is worth.
        let worth = if self.is_upwards { mean } else { -mean };
        // A multiplier that was found to be better once stays, unless it seems to be so no more.
        let stays = is_last && !self.is_upwards && worth >= LEAST_GAIN;
        if gain >= LEAST_GAIN && is_certain {
            Some(Verdict::Better(100.0 * gain))
        } else if gain <= -LEAST_GAIN && (is_certain || stays) {
            Some(Verdict::Worse(-100.0 * gain))
        } else if is_last || worth + FUTILE_ERRORS * error < LEAST_GAIN {
            Some(Verdict::NoGain)
        } else {
            None
        }
    }
}

/// What is known of one space.
#[derive(Debug, Clone)]
struct Tuner {
    rungs: &'static [u64],
    /// The multiplier that holds, and the one that is set now.
    held: u64,
    set: u64,
    window: Window,
    /// What must pass of the window before anything counts.
    settle_ns: u64,
    trial: Option<Trial>,
    /// Windows until the next trial, and how many it will be then.
    rest: u32,
    next_rest: u32,
    /// Windows in a row in which nothing was to be seen.
    silent: u32,
    /// Where the next step up from none ends.
    next_up: u64,
    /// The pace when the multiplier was taken, and for how many windows it has been lower.
    pace: Option<(Unit, f64)>,
    fallen: u32,
}

impl Tuner {
    fn new(rungs: &'static [u64]) -> Self {
        let mut tuner = Self {
            rungs,
            held: 0,
            set: 0,
            window: Window::default(),
            settle_ns: 0,
            trial: None,
            rest: 0,
            next_rest: REST,
            silent: 0,
            next_up: 0,
            pace: None,
            fallen: 0,
        };
        tuner.next_up = tuner.top();
        tuner
    }

    /// The largest multiplier.
    fn top(&self) -> u64 {
        self.rungs.last().copied().unwrap_or(0)
    }

    /// The rung below a multiplier; none below none.
    fn below(&self, multiplier: u64) -> u64 {
        self.rungs.iter().rev().copied().find(|rung| *rung < multiplier).unwrap_or(0)
    }

    fn look(&mut self, window_ns: u64, seen: &Seen) -> Option<(u64, Why)> {
        if self.settle_ns > 0 {
            self.settle_ns = self.settle_ns.saturating_sub(window_ns);
            return None;
        }
        self.window.add(window_ns, seen);
        let window = self.window;
        let wanted = if self.trial.is_some() { WINDOW_UNITS } else { REST_UNITS };
        if window.units(window.unit()) < wanted && window.wall_ns < WINDOW_MAX_NS {
            return None;
        }
        self.window = Window::default();
        let set = self.set;
        let change = self.judge(&window);
        self.settle_ns = if self.set == set { 0 } else { window.wall_ns / SETTLE };
        change
    }

    /// A window is over.
    fn judge(&mut self, window: &Window) -> Option<(u64, Why)> {
        self.silent = if window.shows() { 0 } else { self.silent + 1 };
        if (1..SILENT).contains(&self.silent) {
            // A program with threads in a row has pauses: that alone means nothing.
            return None;
        }
        if self.silent > 0 {
            // A program at that edge is not tried again and again.
            let had_any = self.held > 0 || self.trial.is_some();
            let (rest, next_rest) = match had_any {
                true => (self.next_rest, (self.next_rest * 2).min(MOST_REST)),
                false => (self.rest, self.next_rest),
            };
            let Self { rungs, held, set, next_up, .. } = *self;
            *self = Self { set, rest, next_rest, next_up, ..Self::new(rungs) };
            if held > 0 {
                // To be told even where none was just tried against it.
                self.set = 0;
                return Some((0, Why::Nothing));
            }
            return self.change(0, Why::Nothing);
        }
        match self.trial.take() {
            Some(trial) => self.compare(trial, window),
            None => self.hold(window),
        }
    }

    /// A window of a trial is over.
    fn compare(&mut self, mut trial: Trial, window: &Window) -> Option<(u64, Why)> {
        let pace = window.pace(trial.unit);
        if self.set == trial.other {
            trial.tried.push(pace);
        } else {
            trial.held.push(pace);
        }
        let other = trial.other;
        let Some(verdict) = trial.verdict() else {
            let against = if trial.is_others_turn() { self.held } else { other };
            let next = if trial.is_others_turn() { other } else { self.held };
            self.trial = Some(trial);
            return self.change(next, Why::Tried { against });
        };
        let held = self.held;
        if trial.is_upwards && !matches!(verdict, Verdict::Better(_)) {
            // The other rungs have their turns, too.
            self.next_up = if self.below(other) > 0 { self.below(other) } else { self.top() };
        }
        match verdict {
            Verdict::Better(gain_pct) => {
                self.take(other, trial.unit, &trial.tried);
                self.change(other, Why::Better { than: held, gain_pct })
            }
            Verdict::Worse(loss_pct) => {
                self.take(held, trial.unit, &trial.held);
                self.change(held, Why::Worse { other, loss_pct })
            }
            // Without a difference the smaller one is fairer.
            Verdict::NoGain => {
                let fairer = held.min(other);
                let paces = if fairer == held { &trial.held } else { &trial.tried };
                self.take(fairer, trial.unit, paces);
                self.change(fairer, Why::NoGain { other: held.max(other) })
            }
        }
    }

    fn take(&mut self, multiplier: u64, unit: Unit, paces: &[f64]) {
        self.held = multiplier;
        self.pace = Some((unit, paces.iter().sum::<f64>() / paces.len().max(1) as f64));
        self.fallen = 0;
        self.rest = self.next_rest;
        self.next_rest = (self.next_rest * 2).min(MOST_REST);
    }

    /// A window without a trial is over.
    fn hold(&mut self, window: &Window) -> Option<(u64, Why)> {
        let falls = |(unit, before): (Unit, f64)| window.pace(unit) < before * FALL;
        let has_fallen = self.pace.is_some_and(falls);
        self.fallen = if has_fallen { self.fallen + 1 } else { 0 };
        let is_doubtful = self.held > 0 && self.fallen >= FALLEN;
        self.rest = self.rest.saturating_sub(1);
        if self.rest > 0 && !is_doubtful {
            return None;
        }
        let other = match self.held {
            0 => self.next_up,
            _ if is_doubtful => 0,
            held => self.below(held),
        };
        let (is_upwards, unit) = (other > self.held, window.unit());
        let held = vec![window.pace(unit)];
        self.trial = Some(Trial { is_upwards, other, unit, held, tried: Vec::new() });
        self.change(other, Why::Tried { against: self.held })
    }

    fn change(&mut self, multiplier: u64, why: Why) -> Option<(u64, Why)> {
        if self.set == multiplier && matches!(why, Why::Tried { .. } | Why::Nothing) {
            return None;
        }
        self.set = multiplier;
        Some((multiplier, why))
    }
}

#[cfg(test)]
mod tests;
