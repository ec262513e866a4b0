//! The last refusals of the gate, each with the figures that it was made from. `evenkeel explain` shows
//! them. Each CPU keeps a sample of them.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::layout::{RawCpuState, RawDecision};
use crate::zone::LEVELS;

/// `enum move_reason` of `policy/views.h`, as the words after "to move task 7, which".
const REASONS: [&str; 7] = [
    "woke",
    "was forked",
    "became another program",
    "waited while a CPU was idle",
    "waited while a CPU had less load",
    "waited while its address space ran on the group's CPUs",
    "ran alone while a more capable CPU was idle",
];

/// The refusals of `enum gate_verdict` of `policy/gate.h`.
const VERDICTS: [&str; 3] = [
    "refused: the utilisation is not above the zone's limit",
    "refused: not above the zone's limit without the task's points",
    "refused: to wait costs less than to refill caches",
];
/// `GATE_REFUSALS`.
const REFUSALS: u32 = 5;
/// `FULL` in `policy/views.h`.
const FULL: u32 = 1024;

/// One refusal of the gate, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Decision {
    /// The time since boot, in ns; at a wake-up, the time of the last tick or switch.
    pub at_ns: u64,
    /// The CPU that asked the gate.
    pub cpu: u32,
    /// The task that would move.
    pub pid: u32,
    /// The source CPU.
    pub source: u32,
    /// Why the gate was asked.
    pub reason: String,
    /// The refusal, and its rule.
    pub verdict: String,
    /// The zone's level at that time.
    pub level: String,
    /// The limit of that level, in percent.
    pub limit_pct: u32,
    /// The utilisation of the source CPU, in percent; while it is busy, as of its last tick.
    pub source_pct: u32,
    /// The mean utilisation of the CPUs, in percent; 0 where the gate does not use it.
    pub mean_pct: u32,
    /// The share of its CPU that the task used lately, in percent.
    pub task_pct: u32,
    /// How long that share has been above the zone's limit, in ms; 0: it was not, or scores do not
    /// count.
    pub above_ms: u64,
}

impl Decision {
    fn new(cpu: u32, raw: &RawDecision) -> Self {
        let word = |words: &[&str], at: u32| {
            words.get(at as usize).map_or_else(|| format!("{at}"), |word| (*word).to_owned())
        };
        let pct = |share: u32| share.min(FULL) * 100 / FULL;
        Self {
            at_ns: raw.at_ns,
            cpu,
            pid: raw.pid,
            source: raw.source,
            reason: word(&REASONS, raw.reason),
            verdict: word(&VERDICTS, raw.verdict.wrapping_sub(REFUSALS)),
            level: word(&LEVELS, raw.level.into()),
            limit_pct: raw.limit_pct.into(),
            source_pct: pct(raw.source_utilisation),
            mean_pct: pct(raw.mean_utilisation),
            task_pct: pct(raw.task_share),
            above_ms: raw.above_ns / 1_000_000,
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.3} s, CPU {}: to move task {}, which {}, from CPU {}: {} ({}: {} %, CPU {}: {} %",
            self.at_ns as f64 / 1e9,
            self.cpu,
            self.pid,
            self.reason,
            self.source,
            self.verdict,
            self.level,
            self.limit_pct,
            self.source,
            self.source_pct,
        )?;
        if self.mean_pct > 0 {
            write!(f, ", mean {} %", self.mean_pct)?;
        }
        write!(f, ", task {} %", self.task_pct)?;
        if self.above_ms > 0 {
            write!(f, " and above the limit for {} ms", self.above_ms)?;
        }
        f.write_str(")")
    }
}

/// The last refusals that the CPUs keep, the oldest first; of those, the ones about tasks that may be
/// seen: `is_seen` is asked with a task's number and the time of the refusal.
pub(crate) fn decisions(
    cpus: &[(u32, RawCpuState)],
    is_seen: impl Fn(u32, u64) -> bool,
) -> Vec<Decision> {
    let mut decisions: Vec<Decision> = cpus
        .iter()
        .flat_map(|(cpu, state)| state.decision.iter().map(|raw| (*cpu, raw)))
        .filter(|(_, raw)| raw.at_ns > 0 && is_seen(raw.pid, raw.at_ns))
        .map(|(cpu, raw)| Decision::new(cpu, raw))
        .collect();
    decisions.sort_by_key(|decision| decision.at_ns);
    decisions
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;

    const GATE: &str = include_str!("../../../policy/gate.h");
    const VIEWS: &str = include_str!("../../../policy/views.h");

    /// The number of names with this prefix in an enum of the header, up to its last one.
    fn values(header: &str, prefix: &str, end: &str) -> usize {
        let names = header.lines().map(str::trim).filter(|line| line.starts_with(prefix));
        names.take_while(|line| !line.starts_with(end)).count()
    }

    #[test]
    fn every_reason_and_verdict_has_words() {
        assert_eq!(values(VIEWS, "MOVE_", "MOVE_REASONS"), REASONS.len());
        let verdicts = GATE.split("enum gate_verdict {").nth(1).unwrap();
        assert_eq!(values(verdicts, "GATE_", "GATE_REFUSALS"), REFUSALS as usize);
        // GATE_REFUSALS itself is no verdict.
        let all = REFUSALS as usize + VERDICTS.len();
        assert_eq!(values(verdicts, "GATE_", "GATE_VERDICTS"), all + 1);
    }

    #[test]
    fn figures_and_rule_in_a_sentence() {
        let mut state = RawCpuState::zeroed();
        state.decision[0] = RawDecision {
            at_ns: 2_500_000_000,
            above_ns: 6_000_000_000,
            pid: 7,
            source: 1,
            reason: 3,
            verdict: 6,
            source_utilisation: 522,
            level: 2,
            limit_pct: 50,
            task_share: 1000,
            ..RawDecision::zeroed()
        };
        state.decision[1] = RawDecision { at_ns: 1, verdict: 5, ..RawDecision::zeroed() };
        let of_task_7 = decisions(&[(0, state)], |pid, at_ns| (pid, at_ns) == (7, 2_500_000_000));
        assert_eq!(of_task_7.iter().map(|decision| decision.pid).collect::<Vec<_>>(), [7]);
        let decisions = decisions(&[(0, state)], |_, _| true);
        assert_eq!(decisions.len(), 2, "empty places are left out");
        assert_eq!(decisions[0].verdict, VERDICTS[0]);
        assert_eq!(
            decisions[1].to_string(),
            "2.500 s, CPU 0: to move task 7, which waited while a CPU was idle, from CPU 1: \
             refused: not above the zone's limit without the task's points (warm-mid: 50 %, \
             CPU 1: 50 %, task 97 % and above the limit for 6000 ms)"
        );
    }
}
