//! The helper thread of paper 003 (section 1; its section 6 leaves it for later): finds by itself how
//! strongly the threads of each address space are to be aggregated. Pure: what was seen goes in, what is
//! to be changed comes out. (`ias::watch` looks at a real machine, the simulator at its own.)
//!
//! What aggregation is for shows in the *pace* of a space: the work that it gets done for its time on
//! CPUs. Work is counted in units that the kernel shows: a thread that goes to sleep has done one (served
//! a request, passed a barrier). Of threads that never sleep nothing is known, and nothing is done.
//!
//! A multiplier (bonus type 1) is tried against the one that holds by turns, a window each, in the order
//! A B B A A B ..., so that what changes by itself meets both. It is taken when the mean of the pairs
//! says by a t-test that it is better, and dropped when it is worse, or not better after the most pairs
//! that are made. So it climbs from rung to rung as long as that pays. A window lasts until enough
//! units were seen: whoever does little is looked at less often. After a climb the pace is watched: if it
//! falls, and from time to time anyway, no bonus at all is tried again, and taken unless it is worse.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Multipliers, from none on; the largest is the bound. They are few, because each step up costs a trial.
pub const RUNGS: [u64; 3] = [0, 4, 16];
/// Units that a window must see, ...
const WINDOW_UNITS: u64 = 250;
/// ... in this time at most; otherwise too little happens to say anything.
const WINDOW_MAX_NS: u64 = 20_000_000_000;
/// A space that uses less than a part of one CPU is bound by something else.
const LEAST_SHARE: u64 = 4;
/// Pairs of windows that decide, at least and at most.
const PAIRS: std::ops::RangeInclusive<usize> = 4..=24;
/// What is smaller than this is not worth a bonus.
const LEAST_GAIN: f64 = 0.01;
/// Student's t that a decision needs, by the number of pairs from the least on: chance has it once in a
/// thousand cases, and so once in about a hundred trials, of which each looks so often.
const CERTAIN: [f64; 21] = [
    10.2, 7.17, 5.89, 5.21, 4.79, 4.50, 4.30, 4.14, 4.02, 3.93, 3.85, 3.79, 3.73, 3.69, 3.65, 3.61,
    3.58, 3.55, 3.53, 3.50, 3.48,
];
/// Pairs after which a mean gain below a fifth of [`LEAST_GAIN`] ends a trial.
const FUTILE: usize = 6;
/// Between two looks: while something is tried, while something was found out, and otherwise.
const TRIAL_LOOK_NS: u64 = 250_000_000;
const REST_LOOK_NS: u64 = 1_000_000_000;
const IDLE_LOOK_NS: u64 = 2_000_000_000;
/// The part of a window that passes after a change before anything counts.
const SETTLE: u64 = 4;
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
    /// Its name for whoever looks.
    pub space: u64,
    /// Threads that ran or waited for a CPU.
    pub threads: u32,
    /// How long they ran together, in ns.
    pub run_ns: u64,
    /// How often they went to sleep or ended: units of work.
    pub units: u64,
}

/// Why a multiplier was changed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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
                "nothing to be seen: fewer than two threads at work, hardly any, or none that sleeps",
            ),
        }
    }
}

/// From now on a space has this multiplier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// The space, as it was called in [`Seen`].
    pub space: u64,
    /// 0: no aggregation.
    pub multiplier: u64,
    /// What for.
    #[serde(flatten)]
    pub why: Why,
}

/// What is known of all address spaces.
#[derive(Debug, Clone, Default)]
pub struct Auto {
    tuners: BTreeMap<u64, Tuner>,
}

impl Auto {
    /// Takes in what was seen during the last `window_ns`; spaces that are not in it are forgotten.
    pub fn look(&mut self, window_ns: u64, seen: &[Seen]) -> Vec<Tuning> {
        self.tuners.retain(|space, _| seen.iter().any(|seen| seen.space == *space));
        let mut changes = Vec::new();
        for seen in seen {
            let tuner = self.tuners.entry(seen.space).or_default();
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

/// What was seen in a window so far.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    wall_ns: u64,
    run_ns: u64,
    units: u64,
    /// The most threads at work at a time.
    threads: u32,
}

impl Window {
    fn add(&mut self, window_ns: u64, seen: &Seen) {
        self.wall_ns += window_ns;
        self.run_ns += seen.run_ns;
        self.units += seen.units;
        self.threads = self.threads.max(seen.threads);
    }

    fn pace(&self) -> f64 {
        self.units as f64 / self.run_ns.max(1) as f64
    }
}

/// Two multipliers by turns.
#[derive(Debug, Clone)]
struct Trial {
    other: u64,
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

impl Trial {
    /// Whether the next window is the other one's: A B B A A B B A ...
    fn is_others_turn(&self) -> bool {
        matches!((self.held.len() + self.tried.len()) % 4, 1 | 2)
    }

    /// The mean gain of the pairs, and t.
    fn gain(&self) -> Option<(usize, f64, f64)> {
        let pairs = self.held.iter().zip(&self.tried);
        let gains: Vec<f64> = pairs.map(|(held, tried)| tried / held - 1.0).collect();
        if self.held.len() != self.tried.len() || !PAIRS.contains(&gains.len()) {
            return None;
        }
        let n = gains.len() as f64;
        let mean = gains.iter().sum::<f64>() / n;
        let variance = gains.iter().map(|gain| (gain - mean).powi(2)).sum::<f64>() / (n - 1.0);
        // Paces that are all the same are certain.
        let t = mean / (variance / n).sqrt().max(f64::MIN_POSITIVE);
        Some((gains.len(), mean, t))
    }

    fn verdict(&self) -> Option<Verdict> {
        let (pairs, mean, t) = self.gain()?;
        let certain = CERTAIN.get(pairs - PAIRS.start()).copied()?;
        if mean >= LEAST_GAIN && t >= certain {
            Some(Verdict::Better(100.0 * mean))
        } else if mean <= -LEAST_GAIN && t <= -certain {
            Some(Verdict::Worse(-100.0 * mean))
        } else if pairs == *PAIRS.end() || (pairs >= FUTILE && mean.abs() < LEAST_GAIN / 5.0) {
            Some(Verdict::NoGain)
        } else {
            None
        }
    }
}

/// What is known of one space.
#[derive(Debug, Clone)]
struct Tuner {
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
    /// It was taken instead of a smaller one just now: perhaps a larger one is better still.
    climbs: bool,
    /// The pace when the multiplier was taken, and for how many windows it has been lower.
    pace: Option<f64>,
    fallen: u32,
}

impl Default for Tuner {
    fn default() -> Self {
        Self {
            held: 0,
            set: 0,
            window: Window::default(),
            settle_ns: 0,
            trial: None,
            rest: 0,
            next_rest: REST,
            climbs: false,
            pace: None,
            fallen: 0,
        }
    }
}

/// The next rung above a multiplier.
fn above(multiplier: u64) -> Option<u64> {
    RUNGS.into_iter().find(|rung| *rung > multiplier)
}

impl Tuner {
    fn look(&mut self, window_ns: u64, seen: &Seen) -> Option<(u64, Why)> {
        if self.settle_ns > 0 {
            self.settle_ns = self.settle_ns.saturating_sub(window_ns);
            return None;
        }
        self.window.add(window_ns, seen);
        let Window { wall_ns, run_ns, units, threads } = self.window;
        if units < WINDOW_UNITS && wall_ns < WINDOW_MAX_NS {
            return None;
        }
        let pace = self.window.pace();
        self.window = Window::default();
        let set = self.set;
        let change = self.judge(pace, units, threads, run_ns >= wall_ns / LEAST_SHARE);
        self.settle_ns = if self.set == set { 0 } else { wall_ns / SETTLE };
        change
    }

    /// A window is over.
    fn judge(&mut self, pace: f64, units: u64, threads: u32, is_busy: bool) -> Option<(u64, Why)> {
        if units < WINDOW_UNITS || threads < 2 || !is_busy {
            // Who is at the edge of that is not to be tried again and again.
            let had_any = self.held > 0 || self.trial.is_some();
            let (rest, next_rest) = match had_any {
                true => (self.next_rest, (self.next_rest * 2).min(MOST_REST)),
                false => (self.rest, self.next_rest),
            };
            *self = Self { set: self.set, rest, next_rest, ..Self::default() };
            return self.change(0, Why::Nothing);
        }
        match self.trial.take() {
            Some(trial) => self.compare(trial, pace),
            None => self.hold(pace),
        }
    }

    /// A window of a trial is over.
    fn compare(&mut self, mut trial: Trial, pace: f64) -> Option<(u64, Why)> {
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
        match verdict {
            Verdict::Better(gain_pct) => {
                self.take(other, pace_of(&trial.tried));
                self.climbs = other > held && above(other).is_some();
                self.change(other, Why::Better { than: held, gain_pct })
            }
            Verdict::Worse(loss_pct) => {
                self.take(held, pace_of(&trial.held));
                self.change(held, Why::Worse { other, loss_pct })
            }
            // Without a difference the smaller one is fairer.
            Verdict::NoGain => {
                let fairer = held.min(other);
                let pace = pace_of(if fairer == held { &trial.held } else { &trial.tried });
                self.take(fairer, pace);
                self.change(fairer, Why::NoGain { other: held.max(other) })
            }
        }
    }

    fn take(&mut self, multiplier: u64, pace: f64) {
        self.held = multiplier;
        self.pace = Some(pace);
        self.fallen = 0;
        self.climbs = false;
        self.rest = self.next_rest;
        self.next_rest = (self.next_rest * 2).min(MOST_REST);
    }

    /// A window without a trial is over.
    fn hold(&mut self, pace: f64) -> Option<(u64, Why)> {
        let has_fallen = self.pace.is_some_and(|before| pace < before * FALL);
        self.fallen = if has_fallen { self.fallen + 1 } else { 0 };
        let is_doubtful = self.held > 0 && self.fallen >= FALLEN;
        self.rest = self.rest.saturating_sub(1);
        if self.rest > 0 && !is_doubtful && !self.climbs {
            return None;
        }
        // What has just climbed climbs on; what has rested is held against none.
        let upwards = self.held == 0 || self.climbs;
        let other = above(self.held).filter(|_| upwards).unwrap_or(0);
        self.trial = Some(Trial { other, held: vec![pace], tried: Vec::new() });
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

fn pace_of(windows: &[f64]) -> f64 {
    windows.iter().sum::<f64>() / windows.len().max(1) as f64
}

#[cfg(test)]
mod tests;
