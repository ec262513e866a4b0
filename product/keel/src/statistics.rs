//! The keel's counters and the state of each CPU, in the convention of `scx_stats`.

use std::collections::BTreeMap;
use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::layout::{COUNTERS, RawCapability, RawCpuState};

/// The state of a CPU at this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuStatistics {
    /// The number of its tasks that run or wait.
    pub runnable: u64,
    /// The share of recent time that it was busy, 0..=100.
    pub busy_pct: u64,
    /// Whether a higher scheduling class has it.
    pub taken: bool,
    /// Its capability, 0..=1024; noise lowers it only with the balance policy `capability`.
    #[serde(default)]
    pub capability: u32,
}

/// All figures. The counters count from the first load of the keel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Statistics {
    /// The policies: order, gate, balance.
    pub policies: [String; 3],
    /// The slice, in microseconds.
    pub slice_us: u64,
    /// How often the keel was loaded again after hotplug.
    pub restarts: u64,
    /// The CPUs, by number.
    pub cpus: BTreeMap<u32, CpuStatistics>,
    /// The counters, by name.
    pub counters: BTreeMap<String, u64>,
}

/// Name and meaning of the fields that are no counters.
const FIELDS: [(&str, &str); 5] = [
    ("policies", "The policies: order, gate, balance"),
    ("slice_us", "How long a task may run before the next pick, in microseconds"),
    ("restarts", "Times that the keel was loaded again after hotplug"),
    (
        "cpus",
        "By CPU: tasks that run or wait, percent busy lately, taken by a higher class, capability",
    ),
    ("counters", "The counters, by name (described in the same list)"),
];

/// A full share in `struct cpu_state`: ten bits more than `FULL` of `policy/views.h`.
const FULL_SHARE: u64 = 1024 << 10;

impl Statistics {
    /// Adds the state and the counters of these CPUs.
    pub(crate) fn add(&mut self, cpus: &[(u32, RawCpuState)]) {
        for (cpu, state) in cpus {
            let statistics = CpuStatistics {
                runnable: state.runnable,
                busy_pct: state.busy_share.min(FULL_SHARE) * 100 / FULL_SHARE,
                taken: state.taken_since_ns != 0,
                capability: 0,
            };
            self.cpus.insert(*cpu, statistics);
        }
        for (at, (name, _)) in COUNTERS.iter().enumerate() {
            let count: u64 = cpus.iter().map(|(_, state)| state.counters[at]).sum();
            *self.counters.entry((*name).to_owned()).or_default() += count;
        }
    }

    /// Sets the capabilities of the CPUs that were added.
    pub(crate) fn add_capabilities(&mut self, capabilities: &[RawCapability]) {
        for (id, cpu) in &mut self.cpus {
            cpu.capability = capabilities.get(*id as usize).map_or(0, |raw| raw.now.into());
        }
    }

    /// What `stats_meta` answers: the fields and their meaning.
    pub(crate) fn meta() -> Value {
        let fields: BTreeMap<&str, Value> = FIELDS
            .iter()
            .chain(COUNTERS.iter())
            .map(|(name, desc)| (*name, json!({"desc": desc, "datum": "u64"})))
            .collect();
        json!({"keel": {"ident": "keel", "top": null, "fields": fields}})
    }

    /// One line of what was counted since `earlier`; counters that did not change are left out.
    pub fn line_since(&self, earlier: &Self) -> String {
        let busy: u64 = self.cpus.values().map(|cpu| cpu.busy_pct).sum();
        let runnable: u64 = self.cpus.values().map(|cpu| cpu.runnable).sum();
        let cpus = self.cpus.len().max(1) as u64;
        let mut line = format!("busy {:3} % runnable {runnable:4}", busy / cpus);
        for (name, _) in &COUNTERS {
            let before = earlier.counters.get(*name).copied().unwrap_or(0);
            let count = self.counters.get(*name).copied().unwrap_or(0).saturating_sub(before);
            if count > 0 {
                // Writing into a string cannot fail.
                let _ = write!(line, " {name} {count}");
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytemuck::Zeroable;

    fn state(enqueued: u64, runnable: u64) -> RawCpuState {
        let mut state = RawCpuState::zeroed();
        state.counters[1] = enqueued;
        state.runnable = runnable;
        state.busy_share = FULL_SHARE / 2;
        state
    }

    #[test]
    fn counters_are_summed_and_cpus_shown_apart() {
        let mut statistics = Statistics::default();
        statistics.add(&[(0, state(3, 1)), (4, state(4, 2))]);
        assert_eq!(statistics.counters["enqueue"], 7);
        assert_eq!(statistics.counters.len(), COUNTERS.len());
        assert_eq!(statistics.cpus[&4].runnable, 2);
        assert_eq!(statistics.cpus[&0].busy_pct, 50);
    }

    #[test]
    fn a_line_shows_what_happened_since() {
        let (mut earlier, mut now) = (Statistics::default(), Statistics::default());
        earlier.add(&[(0, state(3, 1))]);
        now.add(&[(0, state(10, 2))]);
        assert_eq!(now.line_since(&earlier), "busy  50 % runnable    2 enqueue 7");
        assert_eq!(earlier.line_since(&now), "busy  50 % runnable    1");
    }

    #[test]
    fn every_field_is_described() {
        let value = serde_json::to_value(Statistics::default()).unwrap();
        let meta = Statistics::meta();
        let described = meta["keel"]["fields"].as_object().unwrap();
        for field in value.as_object().unwrap().keys() {
            assert!(described.contains_key(field), "{field}");
        }
        assert_eq!(described.len(), FIELDS.len() + COUNTERS.len());
    }
}
