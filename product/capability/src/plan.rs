//! What a policy answers: the moves that it decides, each with its reason, and why it decides no more.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::snapshot::TaskId;

/// One task that migrates to another CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The task.
    pub task: TaskId,
    /// The CPU that it is on.
    pub from: u32,
    /// The CPU that it migrates to.
    pub to: u32,
    /// Why.
    pub reason: Reason,
}

/// A task that is kept on the CPU where it is once the moves are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// The task.
    pub task: TaskId,
    /// Its CPU.
    pub cpu: u32,
}

/// Why a task migrates, or why no task does. Rates are in parts per million of the fastest CPU without
/// disturbance. It stays a value until it is printed (`Display`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "rule")]
pub enum Reason {
    /// Paper, step 6: both CPUs have a task.
    Swap {
        /// ECPT of the CPU that pulls.
        local_ecpt_ns: u64,
        /// ECPT of the CPU that it pulls from.
        remote_ecpt_ns: u64,
        /// The task's working set, with the `cache` selection.
        working_set_bytes: Option<u64>,
    },
    /// Paper, step 6: only the remote CPU has a task.
    Pull {
        /// ECPT of the CPU that pulls.
        local_ecpt_ns: u64,
        /// ECPT of the CPU that it pulls from.
        remote_ecpt_ns: u64,
        /// The task's working set, with the `cache` selection.
        working_set_bytes: Option<u64>,
    },
    /// Paper, `chcb` (section 3.3): a new task is placed in the order of ECPT.
    Placed {
        /// ECPT of the CPU before the task came.
        ecpt_ns: u64,
    },
    /// Paper: tasks of all programs are balanced together, and in this interval others were moved.
    OthersMoved,
    /// Lag: the task is behind its partner and gets the faster CPU.
    Behind {
        /// How far behind its partner, in capability time.
        lag_ns: u64,
        /// Rate of the CPU that it leaves.
        from_ppm: u64,
        /// Rate of the CPU that it migrates to.
        to_ppm: u64,
    },
    /// Lag: the task is ahead of its partner and gets the slower CPU.
    Ahead {
        /// How far ahead of its partner, in capability time.
        lead_ns: u64,
        /// Rate of the CPU that it leaves.
        from_ppm: u64,
        /// Rate of the CPU that it migrates to.
        to_ppm: u64,
    },
    /// Lag: the program, or this task, gets more on another CPU.
    MoreRoom {
        /// Rate of the task before.
        from_ppm: u64,
        /// Rate of the task after.
        to_ppm: u64,
    },
    /// Lag: the others wait for this task, and on a faster CPU they wait less.
    Critical {
        /// What it receives for work.
        work_ppm: u64,
        /// Rate of the CPU that it leaves.
        from_ppm: u64,
        /// Rate of the CPU that it migrates to.
        to_ppm: u64,
    },
    /// Lag: the task waits for others, and makes room for the critical one.
    Slack {
        /// What it receives for work.
        work_ppm: u64,
        /// Rate of the CPU that it leaves.
        from_ppm: u64,
        /// Rate of the CPU that it migrates to.
        to_ppm: u64,
    },
    /// Lag: the task changes places with one that has more or less work, so that what the tasks of each
    /// CPU have to do is what the CPU is worth.
    Uneven {
        /// What it receives for work.
        work_ppm: u64,
        /// What its partner does.
        partner_ppm: u64,
    },
    /// Lag, with a preference for less energy: the task's work needs less on another CPU.
    LessEnergy {
        /// Rate of the CPU that it leaves.
        from_ppm: u64,
        /// Rate of the CPU that it migrates to.
        to_ppm: u64,
    },
    /// The tasks are kept on the CPUs that need the least energy, as these are enough.
    Gathered {
        /// How many CPUs.
        cpus: u32,
        /// Difference between the best and the worst rate among them.
        spread_ppm: u64,
    },
    /// No task of the program wants a CPU.
    NoActiveTask,
    /// The program may use only one CPU.
    OneCpu,
    /// The CPUs are unequal, but each task may use only the CPU that it is on.
    Bound,
    /// All tasks get the same rate, within the tolerance.
    Balanced {
        /// Difference between the best and the worst rate.
        spread_ppm: u64,
    },
    /// The CPUs are unequal, but no task is far enough behind for an exchange.
    Level {
        /// The largest lag.
        lag_ns: u64,
    },
    /// The CPUs are unequal, but not yet for long enough to act on it.
    Unconfirmed {
        /// Difference between the best and the worst rate.
        spread_ppm: u64,
        /// All tasks get the same rate: a move for more room is due, and no exchange.
        #[serde(default)]
        is_for_room: bool,
    },
    /// The tasks wait for each other more often than a move could help.
    PhasesTooShort {
        /// Mean time from one wait to the next.
        phase_ns: u64,
    },
    /// There are more tasks than CPUs: each is kept on its CPU, so that all get about the same.
    Held {
        /// Difference between the best and the worst rate.
        spread_ppm: u64,
    },
    /// It cannot be told yet whether the tasks work or wait by spinning, so exchanges stay few.
    SpinningUntold,
    /// This is a window without moves and pins, to measure what they gain.
    Measuring,
    /// Moves and pins are withdrawn: no gain was shown.
    Withdrawn {
        /// How fast the program ran with them, in thousandths of its pace without.
        pace_per_mille: u64,
        /// Windows in which that was measured.
        windows: u32,
    },
    /// The program's loops are divided by capability, so its threads stay where they are.
    Shared {
        /// Difference between the best and the worst rate.
        spread_ppm: u64,
    },
    /// This is a window in which loops are divided equally, to measure what shares gain.
    SharedEqually,
    /// Shares of loops are withdrawn: no gain was shown.
    SharesWithdrawn {
        /// How fast the program ran with them, in thousandths of its pace without.
        pace_per_mille: u64,
        /// Windows in which that was measured.
        windows: u32,
    },
    /// The moves would cost more than they gain.
    NotWorthIt {
        /// Predicted gain, as CPU time.
        gain_ns: u64,
        /// Cost of the moves, as CPU time.
        cost_ns: u64,
    },
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, from, to, reason } = self;
        write!(f, "task {} from CPU {from} to CPU {to}: {reason}", task.tid)
    }
}

impl Reason {
    /// The rule's name, as in JSON.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Swap { .. } => "swap",
            Self::Pull { .. } => "pull",
            Self::Placed { .. } => "placed",
            Self::OthersMoved => "others-moved",
            Self::Behind { .. } => "behind",
            Self::Ahead { .. } => "ahead",
            Self::MoreRoom { .. } => "more-room",
            Self::Critical { .. } => "critical",
            Self::Slack { .. } => "slack",
            Self::Uneven { .. } => "uneven",
            Self::LessEnergy { .. } => "less-energy",
            Self::Gathered { .. } => "gathered",
            Self::NoActiveTask => "no-active-task",
            Self::OneCpu => "one-cpu",
            Self::Bound => "bound",
            Self::Balanced { .. } => "balanced",
            Self::Level { .. } => "level",
            Self::Unconfirmed { .. } => "unconfirmed",
            Self::PhasesTooShort { .. } => "phases-too-short",
            Self::Held { .. } => "held",
            Self::SpinningUntold => "spinning-untold",
            Self::Measuring => "measuring",
            Self::Withdrawn { .. } => "withdrawn",
            Self::Shared { .. } => "shared",
            Self::SharedEqually => "shared-equally",
            Self::SharesWithdrawn { .. } => "shares-withdrawn",
            Self::NotWorthIt { .. } => "not-worth-it",
        }
    }

    /// The reason as it is told after the program's end: nothing is waited for any more.
    pub fn in_the_past(&self) -> String {
        let before = "and the program ended before that was confirmed";
        match self {
            Self::Unconfirmed { is_for_room: true, .. } => {
                format!("there was more room on another CPU, {before}")
            }
            Self::Unconfirmed { spread_ppm, .. } => {
                format!("CPUs differed by {:.0} %, {before}", percent_up(*spread_ppm))
            }
            _ => self.to_string(),
        }
    }
}

/// Rounded up: "within 0 %" would claim more than was measured.
fn percent_up(ppm: u64) -> f64 {
    (ppm as f64 / 1e4).ceil().max(1.0)
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
                "swap: ECPT {:.1} ms on the local CPU, {:.1} ms on the remote CPU{}",
                ms(local_ecpt_ns),
                ms(remote_ecpt_ns),
                working_set(working_set_bytes)
            ),
            Self::Pull { local_ecpt_ns, remote_ecpt_ns, working_set_bytes } => write!(
                f,
                "pull: ECPT {:.1} ms on the local CPU without a task, {:.1} ms on the remote CPU{}",
                ms(local_ecpt_ns),
                ms(remote_ecpt_ns),
                working_set(working_set_bytes)
            ),
            Self::Placed { ecpt_ns } => {
                write!(f, "a new task, in the order of ECPT: {:.1} ms there", ms(ecpt_ns))
            }
            Self::OthersMoved => {
                write!(f, "no task of this program was selected: tasks of other programs were")
            }
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
            // The program gets more in all, although this task gets less.
            Self::MoreRoom { from_ppm, to_ppm } if to_ppm < from_ppm => write!(
                f,
                "more room for the program in all; this task gets {:.0} % of a CPU instead of {:.0} %",
                pct(to_ppm),
                pct(from_ppm)
            ),
            Self::MoreRoom { from_ppm, to_ppm } => {
                write!(f, "more room: from {:.0} % of a CPU to {:.0} %", pct(from_ppm), pct(to_ppm))
            }
            Self::Critical { work_ppm, from_ppm, to_ppm } => write!(
                f,
                "the others wait for it (it works {:.0} % of the time of a CPU): from a CPU at {:.0} % \
                 to one at {:.0} %",
                pct(work_ppm),
                pct(from_ppm),
                pct(to_ppm)
            ),
            Self::Slack { work_ppm, from_ppm, to_ppm } => write!(
                f,
                "it waits for others (it works {:.0} % of the time of a CPU): from a CPU at {:.0} % \
                 to one at {:.0} %",
                pct(work_ppm),
                pct(from_ppm),
                pct(to_ppm)
            ),
            Self::Uneven { work_ppm, partner_ppm } => write!(
                f,
                "changes places, so that the work on each CPU is what it is worth: its own is {:.1} % \
                 of the fastest CPU, its partner's {:.1} %",
                pct(work_ppm),
                pct(partner_ppm)
            ),
            Self::LessEnergy { from_ppm, to_ppm } => write!(
                f,
                "less energy for its work: from a CPU at {:.0} % to one at {:.0} %",
                pct(from_ppm),
                pct(to_ppm)
            ),
            Self::Gathered { cpus, spread_ppm } => write!(
                f,
                "{cpus} CPUs that need less energy are enough: tasks are kept there, within {:.0} % of \
                 each other",
                percent_up(*spread_ppm)
            ),
            Self::NoActiveTask => write!(f, "no task of the program uses a CPU"),
            Self::OneCpu => write!(f, "the program may use only one CPU"),
            Self::Bound => write!(f, "each task may use only the CPU that it is on"),
            Self::Balanced { spread_ppm } => {
                write!(
                    f,
                    "no moves needed: beside all that runs there, each CPU gives a task the same, \
                     within {:.0} %",
                    percent_up(*spread_ppm)
                )
            }
            // What lag is enough depends on the two tasks, so the largest lag alone is no reason.
            Self::Level { lag_ns } => write!(
                f,
                "no exchange is due: the largest lag is {:.1} ms, and no partner is both clearly ahead \
                 and on a clearly faster CPU",
                ms(lag_ns)
            ),
            Self::Unconfirmed { is_for_room: true, .. } => {
                write!(f, "there is more room on another CPU: waiting to see whether that lasts")
            }
            Self::Unconfirmed { spread_ppm, .. } => write!(
                f,
                "CPUs differ by {:.0} %: waiting to see whether that lasts",
                percent_up(*spread_ppm)
            ),
            Self::PhasesTooShort { phase_ns } => write!(
                f,
                "the tasks wait for each other every {:.1} ms: too often for moves to help",
                ms(phase_ns)
            ),
            Self::Held { spread_ppm } => write!(
                f,
                "more tasks than CPUs: each is kept on its CPU, where all get the same within {:.0} %",
                percent_up(*spread_ppm)
            ),
            Self::SpinningUntold => {
                write!(f, "it cannot be told yet whether tasks work or spin: exchanges stay few")
            }
            Self::Measuring => {
                write!(f, "a window without moves, to measure what they gain")
            }
            Self::Withdrawn { pace_per_mille, windows } => write!(
                f,
                "moves are withdrawn: with them the program ran {:.2}x as fast as without, by \
                 {windows} windows",
                *pace_per_mille as f64 / 1000.0
            ),
            Self::Shared { spread_ppm } => write!(
                f,
                "CPUs differ by {:.0} %: loops are divided by capability, and threads stay where \
                 they are",
                pct(spread_ppm)
            ),
            Self::SharedEqually => {
                write!(f, "a window with equal shares of loops, to measure what shares gain")
            }
            Self::SharesWithdrawn { pace_per_mille, windows } => write!(
                f,
                "shares of loops are withdrawn: with them the program ran {:.2}x as fast as without, by \
                 {windows} windows",
                *pace_per_mille as f64 / 1000.0
            ),
            Self::NotWorthIt { gain_ns, cost_ns } => {
                write!(
                    f,
                    "no moves: {:.2} ms of gain for {:.2} ms of cost",
                    ms(gain_ns),
                    ms(cost_ns)
                )
            }
        }
    }
}

impl Plan {
    /// Whether tasks are kept on the CPUs that need the least energy ([`Reason::Gathered`]).
    pub fn is_gathered(&self) -> bool {
        self.reasons.iter().any(|why| matches!(why, Reason::Gathered { .. }))
    }
}

/// The moves to make now, and when to plan again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// At most one per task.
    pub moves: Vec<Move>,
    /// Tasks to keep where they are after the moves, by CPU number; all others are free.
    pub pins: Vec<Pin>,
    /// Why there are no moves, or no more of them.
    pub reasons: Vec<Reason>,
    /// Length of the next interval.
    pub interval_ns: u64,
    /// Difference between the best and the worst CPU's rate per task, in parts per million.
    pub spread_ppm: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unconfirmed(spread_ppm: u64, is_for_room: bool) -> Reason {
        Reason::Unconfirmed { spread_ppm, is_for_room }
    }

    #[test]
    fn what_was_not_confirmed_is_told_by_its_cause_and_in_the_past_at_the_end() {
        let waiting = "waiting to see whether that lasts";
        let unequal = unconfirmed(50_001, false);
        assert_eq!(unequal.to_string(), format!("CPUs differ by 6 %: {waiting}"));
        let room = unconfirmed(0, true);
        assert_eq!(room.to_string(), format!("there is more room on another CPU: {waiting}"));
        let ended = "and the program ended before that was confirmed";
        assert_eq!(unequal.in_the_past(), format!("CPUs differed by 6 %, {ended}"));
        assert_eq!(room.in_the_past(), format!("there was more room on another CPU, {ended}"));
        assert_eq!(Reason::OneCpu.in_the_past(), Reason::OneCpu.to_string());
    }

    #[test]
    fn a_move_to_less_is_explained_by_what_the_program_gets_in_all() {
        let room = |from_ppm, to_ppm| Reason::MoreRoom { from_ppm, to_ppm }.to_string();
        assert_eq!(room(320_000, 470_000), "more room: from 32 % of a CPU to 47 %");
        assert_eq!(
            room(470_000, 320_000),
            "more room for the program in all; this task gets 32 % of a CPU instead of 47 %"
        );
    }

    #[test]
    fn a_large_lag_without_a_partner_is_not_called_small() {
        let told = Reason::Level { lag_ns: 160_800_000 }.to_string();
        assert!(told.contains("160.8 ms") && told.contains("no partner"), "{told}");
        assert!(!told.contains("far behind"), "{told}");
    }
}
