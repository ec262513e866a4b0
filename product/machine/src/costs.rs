//! What scheduling costs on a machine, for simulations. A cost of 0 is switched off.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// No single cost may be longer: 1 s.
const MAX_NS: u64 = 1_000_000_000;

macro_rules! costs {
    ($($(#[$doc:meta])* $name:ident: $default:literal),+ $(,)?) => {
        /// Costs of scheduling. Times are in ns of a CPU, whatever its capability.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Costs {
            $($(#[$doc])* pub $name: u64),+
        }

        impl Default for Costs {
            fn default() -> Self {
                Self { $($name: $default),+ }
            }
        }

        impl Costs {
            /// The names of all costs.
            pub const NAMES: &[&str] = &[$(stringify!($name)),+];

            /// The cost of this name; `None` if there is none.
            pub fn get(&self, name: &str) -> Option<u64> {
                match name {
                    $(stringify!($name) => Some(self.$name),)+
                    _ => None,
                }
            }

            /// Sets the cost of this name.
            ///
            /// # Errors
            /// [`Error::Rule`] for an unknown name or a value out of range; it names `file`.
            pub fn set(&mut self, name: &str, value: u64, file: &str) -> Result<(), Error> {
                match name {
                    $(stringify!($name) => self.$name = value,)+
                    _ => return Err(Error::Rule {
                        file: file.to_owned(),
                        field: format!("costs.{name}"),
                        rule: format!("there is no such cost; there are: {}", Self::NAMES.join(", ")),
                    }),
                }
                self.check(file)
            }
        }
    };
}

costs! {
    /// Time between two ticks of a busy CPU (the kernel's CONFIG_HZ). Not 0.
    tick_ns: 4_000_000,
    /// A switch from one task to another.
    switch_ns: 1_500,
    /// Added for a switch to another address space.
    space_ns: 1_000,
    /// From a kick of another CPU until that CPU schedules.
    kick_ns: 2_000,
    /// Searching a domain for a task to pull.
    balance_ns: 1_000,
    /// Looking at one entry of a queue.
    scan_ns: 50,
    /// Taking another CPU's lock to migrate a task.
    lock_ns: 200,
    /// Filling the caches again on another core that shares the last one.
    refill_core_ns: 10_000,
    /// Filling them under another last-level cache of the node.
    refill_cache_ns: 50_000,
    /// Filling them on another node.
    refill_node_ns: 100_000,
    /// Filling them where another address space ran in between.
    refill_space_ns: 5_000,
    /// Size of a last-level cache in KiB, for threads that declare how much memory they use; 0: off.
    cache_kib: 0,
    /// Fetching a KiB that the last-level cache does not hold.
    fetch_ns: 300,
    /// Size of a core's own caches in KiB, for threads that declare how much memory they use; 0: off.
    near_kib: 0,
    /// Fetching a KiB that a core's own caches do not hold from the last-level cache.
    near_fetch_ns: 300,
    /// Speed of a CPU while an SMT sibling is busy, in % of its full speed.
    smt_pct: 60,
    /// How much a remote node slows down a task that only uses memory, in % of the distance beyond the
    /// local one: with 100, a distance of 20 means half the speed.
    remote_pct: 30,
    /// 1: interrupt time is not charged to the interrupted task (CONFIG_IRQ_TIME_ACCOUNTING).
    irq_accounting: 0,
}

impl Costs {
    /// No cost but the tick's length: an ideal machine.
    pub fn none() -> Self {
        let zero = Self::NAMES.iter().fold(Self::default(), |mut costs, name| {
            // Ignored: `tick_ns` and `smt_pct` must not be 0, and are set below.
            let _ = costs.set(name, 0, "");
            costs
        });
        Self { tick_ns: Self::default().tick_ns, smt_pct: 100, ..zero }
    }

    /// Checks that all costs are in range.
    ///
    /// # Errors
    /// [`Error::Rule`] for the first one that is not.
    pub(crate) fn check(&self, file: &str) -> Result<(), Error> {
        let wrong = |name: &str, rule: String| Error::Rule {
            file: file.to_owned(),
            field: format!("costs.{name}"),
            rule,
        };
        for name in Self::NAMES {
            let value = self.get(name).unwrap_or_default();
            let (least, most) = match *name {
                "tick_ns" => (10_000, MAX_NS),
                "smt_pct" => (1, 100),
                "remote_pct" => (0, 1000),
                "irq_accounting" => (0, 1),
                "cache_kib" | "near_kib" => (0, 1 << 30),
                _ => (0, MAX_NS),
            };
            if !(least..=most).contains(&value) {
                return Err(wrong(name, format!("is {value}, must be {least} to {most}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cost_is_read_and_set_by_its_name() {
        let mut costs = Costs::default();
        for name in Costs::NAMES {
            let value = costs.get(name).unwrap();
            costs.set(name, value, "test").unwrap();
        }
        assert_eq!(costs, Costs::default());
        let why = costs.set("tea_ns", 1, "test").unwrap_err().to_string();
        assert!(why.starts_with("machine file test: costs.tea_ns: there is no such cost"), "{why}");
    }

    #[test]
    fn impossible_costs_are_refused() {
        for (name, value) in
            [("tick_ns", 0), ("smt_pct", 0), ("smt_pct", 101), ("switch_ns", MAX_NS + 1)]
        {
            let why = Costs::default().set(name, value, "x").unwrap_err().to_string();
            assert!(why.contains(&format!("costs.{name}: is {value}, must be")), "{why}");
        }
    }

    #[test]
    fn without_costs_nothing_but_the_tick_is_left() {
        let none = Costs::none();
        assert_eq!((none.switch_ns, none.refill_node_ns, none.remote_pct), (0, 0, 0));
        assert_eq!((none.tick_ns, none.smt_pct), (Costs::default().tick_ns, 100));
        none.check("none").unwrap();
    }
}
