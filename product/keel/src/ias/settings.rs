//! Table `[ias]` of a configuration: which CPUs aggregate together, and which programs aggregate as
//! soon as they run.

use std::collections::BTreeMap;

use evenkeel_control::Program;
use schemars::JsonSchema;
use serde::Deserialize;

use super::aggregation::Aggregation;
use super::bonus::Bonus;

/// How the processes of a program aggregate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Preference {
    /// Set how far their threads may be behind in vruntime and still be preferred: a multiple of the
    /// last run, like 3x, or a time, like 10ms [default: 3x].
    pub bonus: Bonus,
    /// Prefer them at most so often in a row on a CPU; 0: no limit [default: 0].
    pub limit: u64,
}

impl Preference {
    /// For one of them.
    pub fn aggregation(&self, pid: u32) -> Aggregation {
        let (bonus_type, bonus_value) = self.bonus.type_and_value();
        Aggregation { pid, agg: 1, bonus_type, bonus_value, limit: self.limit }
    }
}

/// Table `[ias]` of a configuration: what holds whenever the keel runs with this order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IasSettings {
    /// Set which CPUs aggregate together: llc (CPUs that share a last-level cache), l2 (a level-2
    /// cache), node, or lists like 0-3/4-7; the first CPU of each group is the master [default: CPUs
    /// that share a cache].
    pub groups: Option<String>,
    /// Programs with processes that aggregate as soon as they run.
    pub programs: BTreeMap<Program, Preference>,
}

impl IasSettings {
    /// What is set here, and for the rest what is set in `other`.
    pub fn or(self, other: Self) -> Self {
        let mut programs = other.programs;
        programs.extend(self.programs);
        Self { groups: self.groups.or(other.groups), programs }
    }
}
