//! Which gates take part.

use anyhow::Result;
use evenkeel_keel::{Gate, IdleWait, Options, Zone};
use evenkeel_sim::Scheduler;

use crate::simulated::{Contestant, contestant};

/// The level that the paper measured.
pub const WARM_HIGH_LEVEL: &str = "warm-high";

/// The gate that is always open.
pub const ALWAYS: &str = "always";
/// The last of the paper's levels, by the utilisation of the CPU that a task would leave.
pub const WARM_HIGH: &str = WARM_HIGH_LEVEL;
/// The same level by the mean of all CPUs.
const MEAN: &str = "warm-high, mean";
/// The same level as the paper has it: no task moves in the quiet zone, however long it waits.
pub const STRICT: &str = "warm-high, strict";
/// All.
pub const ALL: [&str; 6] = [ALWAYS, "cold", "warm-mid", WARM_HIGH, MEAN, STRICT];

/// The options of the gate of this name: `always`, or one that begins with its level.
///
/// # Errors
/// No level has this name.
pub fn options(name: &str) -> Result<Options> {
    let mut options = Options::default();
    if name != ALWAYS {
        let level = name.split(',').next().unwrap_or(name);
        options.gate = Gate::Zone;
        options.zone = Zone::default();
        options.zone.set_level(level.parse()?);
        options.zone.set("bal_cpus_avg_enable", if name == MEAN { "1" } else { "0" })?;
    }
    if name == STRICT {
        options.max_idle_wait = IdleWait::NEVER;
    }
    Ok(options)
}

/// The contestants of these names.
///
/// # Errors
/// As [`options`].
pub fn contestants(names: &[&str]) -> Result<Vec<Contestant>> {
    names.iter().map(|name| Ok(contestant(name, Scheduler::Keel(options(name)?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_schedulers_and_differ() {
        let names: std::collections::BTreeSet<String> =
            contestants(&ALL).unwrap().iter().map(|one| one.how.scheduler.to_string()).collect();
        assert_eq!(names.len(), ALL.len(), "{names:?}");
    }
}
