//! Statistics of the daemon and of the time that the CPUs lost: as JSON for `scx_stats` clients, and as
//! OpenMetrics (`openmetrics`) for monitoring systems.

use std::collections::BTreeMap;

use evenkeel_control::Peer;
use serde::Serialize;
use serde_json::{Value, json};

use super::known_metrics::{METRICS, ONLY_IN_JSON};
use crate::summary::Totals;

/// The pace of a program that another process balances, as that told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunPace {
    /// The number of its user.
    pub user: u32,
    /// The step of Slurm that it is part of, like `77.0`; empty: of none.
    pub step: String,
    /// In thousandths of its pace without moves.
    pub pace_milli: u64,
}

/// All figures. Counters begin at the start of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Statistics {
    /// Joined programs now.
    pub programs: u64,
    /// Programs that a `run` without privileges balances with the daemon's figures now.
    pub observed: u64,
    /// The tasks of joined programs now.
    pub tasks: u64,
    /// CPUs of the machine that are online.
    pub cpus: u64,
    /// 1: the figures are exact; 0: they are approximate, from /proc.
    pub exact: u64,
    /// 1: tasks can be moved; 0: they are only observed.
    pub moving: u64,
    /// Intervals that ended, over all programs.
    pub intervals: u64,
    /// Moves by the rule that decided.
    pub moves: BTreeMap<&'static str, u64>,
    /// Tasks that are no longer moved because their user set their mask.
    pub yielded: u64,
    /// Moves that the kernel or a rule refused.
    pub refused: u64,
    /// Joined programs now, by what is known of their gain.
    pub gains: BTreeMap<&'static str, u64>,
    /// How fast each program runs with its moves, in thousandths of its pace without, where that was
    /// measured and the moves are not withdrawn.
    pub pace_milli: BTreeMap<u32, u64>,
    /// Programs of this node that `run` and jobs balance by themselves, as far as these tell.
    pub run_programs: u64,
    /// The same by what is known of their gain.
    pub run_gains: BTreeMap<&'static str, u64>,
    /// How fast each of them runs with its moves, where that was measured.
    pub run_paces: BTreeMap<u32, RunPace>,
    /// CPU time of the daemon itself, in microseconds.
    pub own_cpu_us: u64,
    /// Time lost to fair-class tasks by CPU and cause, in microseconds.
    pub lost_us: BTreeMap<u32, BTreeMap<&'static str, u64>>,
    /// The same over all CPUs, since the daemon's start.
    pub all_cpus_lost_us: BTreeMap<&'static str, u64>,
    /// What the CPU that loses the most loses now, by cause, in thousandths of its time.
    pub worst_cpu_lost_milli: BTreeMap<&'static str, u64>,
}

impl Statistics {
    /// Adds what is counted of a program.
    pub(super) fn add(&mut self, totals: &Totals) {
        self.intervals += totals.intervals;
        self.yielded += totals.yielded;
        self.refused += totals.refused;
        for (rule, count) in &totals.moves_by_rule {
            *self.moves.entry(rule).or_default() += count;
        }
    }

    /// The part that a user may see: the steps of other users are not the user's business. The metrics
    /// have them all, at an address that the administrator chose.
    pub(super) fn seen_by(mut self, peer: &Peer) -> Self {
        self.run_paces.retain(|_, run| peer.may_steer(run.user));
        self
    }

    /// The answer to `stats_meta`: the fields and their meaning in the form of `scx_stats`.
    pub(crate) fn meta() -> Value {
        let exported = METRICS.iter().filter_map(|metric| Some((metric.field?, metric.help)));
        let fields: BTreeMap<&str, Value> = exported
            .chain(ONLY_IN_JSON)
            .map(|(field, help)| (field, json!({"desc": help, "datum": "u64"})))
            .collect();
        json!({"evenkeel": {"ident": "evenkeel", "top": null, "fields": fields}})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_sees_the_steps_of_no_other_user() {
        let run = |user| RunPace { user, step: "77.0".to_owned(), pace_milli: 1_220 };
        let run_paces = [(1, run(7)), (2, run(8)), (3, run(0))].into();
        let all = Statistics { run_programs: 3, run_paces, ..Statistics::default() };
        let seen_by = |uid| {
            let seen = all.clone().seen_by(&Peer { uid, pid: 1 });
            assert_eq!(seen.run_programs, 3, "how many there are is not withheld");
            seen.run_paces.into_keys().collect::<Vec<u32>>()
        };
        assert_eq!((seen_by(7), seen_by(9)), (vec![1], vec![]));
        assert_eq!(seen_by(0), [1, 2, 3]);
    }
}
