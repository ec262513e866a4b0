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
    /// How far their threads may run ahead.
    pub bonus: Bonus,
    /// Preferred at most so often in a row on a CPU; 0: no limit.
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
    /// CPUs that aggregate together, as [`crate::grouped`] takes them; none: those of a cache.
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
