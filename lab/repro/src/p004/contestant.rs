//! Which gates take part.

use anyhow::Result;
use evenkeel_keel::{Gate, IdleWait, Options, Zone};
use evenkeel_sim::Scheduler;

/// A gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contestant {
    /// What the page calls it.
    pub name: &'static str,
    /// The level's name; none: the gate is always open.
    level: Option<&'static str>,
    use_mean: bool,
    is_strict: bool,
}

const fn zone(level: &'static str) -> Contestant {
    Contestant { name: level, level: Some(level), use_mean: false, is_strict: false }
}

/// The level that the paper measured.
pub const WARM_HIGH_LEVEL: &str = "warm-high";

/// The gate that is always open.
pub const ALWAYS: Contestant =
    Contestant { name: "always", level: None, use_mean: false, is_strict: false };
/// The paper's levels, by the utilisation of the CPU that a task would leave.
pub const COLD: Contestant = zone("cold");
pub const WARM_MID: Contestant = zone("warm-mid");
pub const WARM_HIGH: Contestant = zone(WARM_HIGH_LEVEL);
/// The last level by the mean of all CPUs.
pub const MEAN: Contestant =
    Contestant { name: "warm-high, mean", use_mean: true, ..zone(WARM_HIGH_LEVEL) };
/// The same level as the paper has it: no task moves in the quiet zone, however long it waits.
pub const STRICT: Contestant =
    Contestant { name: "warm-high, strict", is_strict: true, ..zone(WARM_HIGH_LEVEL) };
/// All.
pub const ALL: [Contestant; 6] = [ALWAYS, COLD, WARM_MID, WARM_HIGH, MEAN, STRICT];

impl Contestant {
    /// The scheduler.
    ///
    /// # Errors
    /// No level has this name.
    pub fn scheduler(&self) -> Result<Scheduler> {
        let mut options = Options::default();
        if let Some(level) = self.level {
            options.gate = Gate::Zone;
            options.zone = Zone::default();
            options.zone.set_level(level.parse()?);
            options.zone.set("bal_cpus_avg_enable", if self.use_mean { "1" } else { "0" })?;
        }
        if self.is_strict {
            options.max_idle_wait = IdleWait::NEVER;
        }
        Ok(Scheduler::Keel(options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_schedulers_and_differ() {
        let names: std::collections::BTreeSet<String> =
            ALL.iter().map(|one| one.scheduler().unwrap().to_string()).collect();
        assert_eq!(names.len(), ALL.len(), "{names:?}");
    }
}
