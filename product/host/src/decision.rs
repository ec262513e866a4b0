//! Decisions: what the balancer did in one interval and why. They stay values until they are shown:
//! [`Decision::in_words`] turns one into text, for people and for `--json`.

use std::fmt;

use evenkeel_capability::{Move, Plan, Reason, Snapshot, average_per_mille};
use evenkeel_journal::TaskRef;
use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::{boottime_ns, monotonic_ns};
use crate::observe::Accounting;
use crate::waits::Waits;

/// What happened in one interval: the figures, the moves, the refusals, and the reasons.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Decision {
    /// Monotonic clock.
    pub at_ns: u64,
    /// The same on CLOCK_BOOTTIME, as the start of a program; 0: not told, by an older balancer.
    #[serde(default)]
    pub at_boottime_ns: u64,
    /// The source of its figures.
    #[serde(default)]
    pub accounting: Accounting,
    /// Length of the interval before it.
    pub interval_ns: u64,
    /// Average capability of the CPUs in that interval, in thousandths.
    pub average_per_mille: u64,
    /// The CPUs.
    pub cpus: Vec<DecisionCpu>,
    /// How the program waited.
    #[serde(default)]
    pub waits: Waits,
    /// CPUs that came or went since the decision before.
    #[serde(default)]
    pub news: Vec<CpuChange>,
    /// The moves.
    pub moves: Vec<Move>,
    /// The program was only observed: the moves were not made.
    #[serde(default)]
    pub dry_run: bool,
    /// Why there were no moves, or no more of them.
    pub reasons: Vec<Reason>,
    /// The moves that were not made.
    pub refused: Vec<Refusal>,
}

/// A CPU in the interval before a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DecisionCpu {
    /// Its number.
    pub cpu: u32,
    /// Its capability, in thousandths.
    pub capability_per_mille: u64,
    /// The program's runnable tasks on it.
    pub tasks: usize,
}

/// CPUs that the program lost or got while it ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuChange {
    /// They went offline, or left the program's cpuset.
    Gone(CpuSet),
    /// They came online, or entered the program's cpuset.
    Came(CpuSet),
}

/// Why a move was not made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// A change must be in the journal first, and none can be written.
    NoJournal,
    /// The task's user set its mask meanwhile, and the user's mask wins.
    UserChose {
        /// The task.
        task: TaskRef,
        /// The mask that was found.
        cpus: CpuSet,
    },
    /// The kernel, the journal or the supervisor failed; their error in full.
    Failed(String),
}

/// A decision as people read it. Its JSON form is what `status --json` and `explain --json` print.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct DecisionInWords {
    /// See [`Decision`].
    pub at_ns: u64,
    /// See [`Decision`].
    pub accounting: Accounting,
    /// See [`Decision`].
    pub interval_ns: u64,
    /// See [`Decision`].
    pub average_per_mille: u64,
    /// See [`Decision`].
    pub cpus: Vec<DecisionCpu>,
    /// How the program waited, where that was looked for.
    pub waits: Option<String>,
    /// One line for each change of CPUs.
    pub news: Vec<String>,
    /// One line for each move.
    pub moves: Vec<String>,
    /// One line for each reason.
    pub reasons: Vec<String>,
    /// One line for each refusal.
    pub refused: Vec<String>,
}

impl Decision {
    pub(crate) fn new(
        (at_ns, accounting): (u64, Accounting),
        plan: Plan,
        snapshot: &Snapshot,
        waits: Waits,
        news: Vec<CpuChange>,
        refused: Vec<Refusal>,
        dry_run: bool,
    ) -> Self {
        let cpus = snapshot.cpus.iter().map(|cpu| {
            let tasks = snapshot.tasks.iter().filter(|task| task.cpu == cpu.cpu && task.runnable);
            let given = cpu.effective_ns(snapshot.interval_ns) * 1000 / snapshot.interval_ns.max(1);
            DecisionCpu { cpu: cpu.cpu, capability_per_mille: given, tasks: tasks.count() }
        });
        Self {
            at_ns,
            at_boottime_ns: at_ns + boottime_ns().saturating_sub(monotonic_ns()),
            accounting,
            interval_ns: snapshot.interval_ns,
            average_per_mille: average_per_mille(snapshot),
            cpus: cpus.collect(),
            waits,
            news,
            moves: plan.moves,
            dry_run,
            reasons: plan.reasons,
            refused,
        }
    }

    /// Whether no CPU changed, no task was moved and no move was refused.
    pub(crate) fn is_rest(&self) -> bool {
        self.news.is_empty() && self.moves.is_empty() && self.refused.is_empty()
    }

    /// Whether tasks changed places, so that those behind catch up.
    pub(crate) fn has_exchanged(&self) -> bool {
        self.moves.iter().any(|made| matches!(made.reason, Reason::Behind { .. }))
    }

    /// The same as text.
    pub fn in_words(&self) -> DecisionInWords {
        fn lines(values: &[impl fmt::Display]) -> Vec<String> {
            values.iter().map(ToString::to_string).collect()
        }
        DecisionInWords {
            at_ns: self.at_ns,
            accounting: self.accounting,
            interval_ns: self.interval_ns,
            average_per_mille: self.average_per_mille,
            cpus: self.cpus.clone(),
            waits: (!self.waits.is_nothing()).then(|| self.waits.to_string()),
            news: lines(&self.news),
            moves: lines(&self.moves),
            reasons: lines(&self.reasons),
            refused: lines(&self.refused),
        }
    }
}

impl fmt::Display for CpuChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cpus, what) = match self {
            Self::Gone(cpus) => (cpus, "gone: offline, or taken out of the cpuset"),
            Self::Came(cpus) => (cpus, "there now"),
        };
        let (noun, verb) = if cpus.len() == 1 { ("CPU", "is") } else { ("CPUs", "are") };
        write!(f, "{noun} {cpus} {verb} {what}")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoJournal => write!(f, "no journal can be written, so no task is moved"),
            Self::UserChose { task, cpus } => write!(f, "{task}: its user chose CPUs {cpus}"),
            Self::Failed(why) => write!(f, "{why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waits::Spinning;
    use evenkeel_capability::TaskId;

    #[test]
    fn a_decision_survives_its_file_and_is_shown_as_text() {
        let task = TaskRef { tid: 7, tgid: 7, start_time_ticks: 1 };
        let decision = Decision {
            at_ns: 5,
            at_boottime_ns: 6,
            accounting: Accounting::Daemon,
            interval_ns: 4,
            average_per_mille: 800,
            cpus: vec![DecisionCpu { cpu: 0, capability_per_mille: 600, tasks: 1 }],
            waits: Waits { spinning: Spinning::Seen { samples: 100, spun: 20 }, barriers: None },
            news: vec![CpuChange::Gone(CpuSet::first(2))],
            moves: vec![Move {
                task: TaskId { tid: 7, start: 1 },
                from: 0,
                to: 1,
                reason: Reason::Pull {
                    local_ecpt_ns: 2_000_000,
                    remote_ecpt_ns: 1_000_000,
                    working_set_bytes: None,
                },
            }],
            dry_run: false,
            reasons: vec![Reason::OneCpu, Reason::Balanced { spread_ppm: 0 }],
            refused: vec![
                Refusal::NoJournal,
                Refusal::UserChose { task, cpus: CpuSet::first(1) },
                Refusal::Failed("no such CPU".to_owned()),
            ],
        };
        let text = serde_json::to_string(&decision).unwrap();
        let again: Decision = serde_json::from_str(&text).unwrap();
        let (one, other) = (decision.in_words(), again.in_words());
        assert_eq!(serde_json::to_value(&one).unwrap(), serde_json::to_value(&other).unwrap());
        assert_eq!(one.accounting, Accounting::Daemon);
        assert_eq!(one.news, ["CPUs 0-1 are gone: offline, or taken out of the cpuset"]);
        assert!(
            one.moves[0].starts_with("task 7 from CPU 0 to CPU 1: pull: ECPT 2.0 ms"),
            "{one:?}"
        );
        assert_eq!(
            one.reasons[1],
            "no moves needed: beside all that runs there, each CPU gives a task the same, within 1 %"
        );
        assert_eq!(one.refused[2], "no such CPU");
        assert_eq!(one.waits.as_deref(), Some("spins for 20 % (13-29) of its run time"));
    }
}
