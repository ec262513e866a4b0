//! The one entry: a snapshot in, a plan out.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::lag::{self, LagParameters, LagState};
use crate::paper::{self, PaperParameters, PaperState};
use crate::snapshot::{Invalid, Snapshot, TaskId};

/// How to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// The paper's eight steps (000, section 3.2).
    Paper(PaperParameters),
    /// Who is furthest behind gets the most capable CPU next.
    Lag(LagParameters),
}

/// What a policy remembers from interval to interval.
#[derive(Debug, Clone)]
pub struct State {
    policy: Memory,
}

#[derive(Debug, Clone)]
enum Memory {
    Paper(PaperState),
    Lag(LagState),
}

/// One task to be put on another CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Move {
    /// Who.
    pub task: TaskId,
    /// Where it is.
    pub from: u32,
    /// Where it goes.
    pub to: u32,
    /// Why.
    pub reason: Reason,
}

/// Why something is done, or why nothing is. Rates are in parts per million of the fastest CPU
/// undisturbed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "rule")]
pub enum Reason {
    /// Paper, step 6: both sides have a task.
    Swap {
        /// ECPT of the CPU that pulls.
        local_ecpt_ns: u64,
        /// ECPT of the CPU that it pulls from.
        remote_ecpt_ns: u64,
        /// The task's working set, where it was selected by that.
        working_set_bytes: Option<u64>,
    },
    /// Paper, step 6: only the remote side has a task.
    Pull {
        /// ECPT of the CPU that pulls.
        local_ecpt_ns: u64,
        /// ECPT of the CPU that it pulls from.
        remote_ecpt_ns: u64,
        /// The task's working set, where it was selected by that.
        working_set_bytes: Option<u64>,
    },
    /// Lag: this one is behind and gets the faster CPU.
    Behind {
        /// How far behind its partner, in capability time.
        lag_ns: u64,
        /// Rate of the CPU that it leaves.
        from_ppm: u64,
        /// Rate of the CPU that it gets.
        to_ppm: u64,
    },
    /// Lag: the partner of a task that is behind gives way to it.
    Ahead {
        /// How far ahead of its partner, in capability time.
        lead_ns: u64,
        /// Rate of the CPU that it leaves.
        from_ppm: u64,
        /// Rate of the CPU that it gets.
        to_ppm: u64,
    },
    /// Lag: on another CPU the program, or this task, gets more.
    MoreRoom {
        /// Rate that it had.
        from_ppm: u64,
        /// Rate that it will have.
        to_ppm: u64,
    },
    /// Nothing runs.
    NoActiveTask,
    /// The program may use only one CPU.
    OneCpu,
    /// The CPUs are unequal, but no task may be given another one.
    Bound,
    /// All tasks get the same, within the tolerance.
    Balanced {
        /// Difference between the best and the worst rate.
        spread_ppm: u64,
    },
    /// The CPUs are unequal, but nobody is far enough behind for an exchange.
    Level {
        /// The largest lag.
        lag_ns: u64,
    },
    /// An asymmetry that has not lasted long enough to act upon.
    Unconfirmed {
        /// Difference between the best and the worst rate.
        spread_ppm: u64,
    },
    /// The tasks wait for each other more often than they could be moved.
    PhasesTooShort {
        /// Mean time from one wait to the next.
        phase_ns: u64,
    },
    /// Moving would cost more than it brings.
    NotWorthIt {
        /// Predicted gain.
        gain_ns: u64,
        /// What the moves cost.
        cost_ns: u64,
    },
}

impl Reason {
    /// The rule's name, as in JSON.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Swap { .. } => "swap",
            Self::Pull { .. } => "pull",
            Self::Behind { .. } => "behind",
            Self::Ahead { .. } => "ahead",
            Self::MoreRoom { .. } => "more-room",
            Self::NoActiveTask => "no-active-task",
            Self::OneCpu => "one-cpu",
            Self::Bound => "bound",
            Self::Balanced { .. } => "balanced",
            Self::Level { .. } => "level",
            Self::Unconfirmed { .. } => "unconfirmed",
            Self::PhasesTooShort { .. } => "phases-too-short",
            Self::NotWorthIt { .. } => "not-worth-it",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ns: &u64| *ns as f64 / 1e6;
        let pct = |ppm: &u64| *ppm as f64 / 1e4;
        let working_set = |bytes: &Option<u64>| {
            bytes.map_or_else(String::new, |bytes| {
                format!("; its working set is {:.1} MiB", bytes as f64 / f64::from(1 << 20))
            })
        };
        match self {
            Self::Swap { local_ecpt_ns, remote_ecpt_ns, working_set_bytes } => write!(
                f,
                "swap: ECPT {:.1} ms here, {:.1} ms there{}",
                ms(local_ecpt_ns),
                ms(remote_ecpt_ns),
                working_set(working_set_bytes)
            ),
            Self::Pull { local_ecpt_ns, remote_ecpt_ns, working_set_bytes } => write!(
                f,
                "pull: ECPT {:.1} ms here without a task, {:.1} ms there{}",
                ms(local_ecpt_ns),
                ms(remote_ecpt_ns),
                working_set(working_set_bytes)
            ),
            Self::Behind { lag_ns, from_ppm, to_ppm } => write!(
                f,
                "{:.1} ms behind: from a CPU at {:.0} % to one at {:.0} %",
                ms(lag_ns),
                pct(from_ppm),
                pct(to_ppm)
            ),
            Self::Ahead { lead_ns, from_ppm, to_ppm } => write!(
                f,
                "{:.1} ms ahead: from a CPU at {:.0} % to one at {:.0} %",
                ms(lead_ns),
                pct(from_ppm),
                pct(to_ppm)
            ),
            Self::MoreRoom { from_ppm, to_ppm } => {
                write!(f, "more room: to {:.0} % of a CPU from {:.0} %", pct(to_ppm), pct(from_ppm))
            }
            Self::NoActiveTask => write!(f, "no task of the program uses a CPU"),
            Self::OneCpu => write!(f, "the program may use only one CPU"),
            Self::Bound => write!(f, "each task is bound to its CPU"),
            Self::Balanced { spread_ppm } => {
                write!(f, "no asymmetry: all tasks get the same within {:.1} %", pct(spread_ppm))
            }
            Self::Level { lag_ns } => {
                write!(f, "nobody is far behind: the largest lag is {:.1} ms", ms(lag_ns))
            }
            Self::Unconfirmed { spread_ppm } => {
                write!(f, "an asymmetry of {:.1} % is new: waiting for it to last", pct(spread_ppm))
            }
            Self::PhasesTooShort { phase_ns } => write!(
                f,
                "the tasks wait for each other every {:.1} ms: too often for moving to help",
                ms(phase_ns)
            ),
            Self::NotWorthIt { gain_ns, cost_ns } => {
                write!(f, "a gain of {:.2} ms does not pay for {:.2} ms", ms(gain_ns), ms(cost_ns))
            }
        }
    }
}

/// What to do now, and when to look again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// At most one per task; none when nothing is to be done.
    pub moves: Vec<Move>,
    /// Why nothing (more) is done.
    pub reasons: Vec<Reason>,
    /// Length of the next interval.
    pub interval_ns: u64,
    /// Difference between the best and the worst CPU's rate per task, in parts per million.
    pub spread_ppm: u64,
}

impl State {
    /// A policy that has seen nothing yet.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy: match policy {
                Policy::Paper(parameters) => Memory::Paper(PaperState::new(parameters)),
                Policy::Lag(parameters) => Memory::Lag(LagState::new(parameters)),
            },
        }
    }

    /// Length of the first interval.
    pub fn first_interval_ns(&self) -> u64 {
        match &self.policy {
            Memory::Paper(state) => state.interval_ns(),
            Memory::Lag(state) => state.first_interval_ns(),
        }
    }

    /// How far each task was behind the one furthest ahead, in capability time, at the last plan.
    /// Empty for the paper's policy, which has no such memory.
    pub fn lags_ns(&self) -> BTreeMap<TaskId, u64> {
        match &self.policy {
            Memory::Paper(_) => BTreeMap::new(),
            Memory::Lag(state) => state.lags_ns(),
        }
    }
}

/// Decides what to do after the interval that `snapshot` describes.
///
/// # Errors
/// When the snapshot contradicts itself; `state` is then unchanged.
pub fn plan(snapshot: &Snapshot, state: &mut State) -> Result<Plan, Invalid> {
    snapshot.validate()?;
    Ok(match &mut state.policy {
        Memory::Paper(memory) => paper::plan(snapshot, memory),
        Memory::Lag(memory) => lag::plan(snapshot, memory),
    })
}
