//! Shielded CPUs: they run only the tasks that may run nowhere else. This file checks which CPUs can be
//! shielded, and helps the keel to clear one; the keel itself keeps other tasks off
//! (`bpf/keel/shield.h`).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::thread::{Builder, JoinHandle};

use evenkeel_journal::affinity;
use evenkeel_machine::{CpuSet, Machine};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::layout::MAX_CPUS;
use crate::option_error::{OptionError, from_text};

/// Why CPUs cannot be shielded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShieldError {
    /// There is no such CPU.
    #[error("shield {shield}: there is no CPU {cpu}; this machine has {present}")]
    NoSuchCpu {
        /// The shield, as it was given.
        shield: Shield,
        /// The CPU.
        cpu: u32,
        /// The CPUs of this machine.
        present: CpuSet,
    },
    /// The CPU is offline.
    #[error("shield {shield}: CPU {cpu} is offline; online are {online}")]
    Offline {
        /// The shield, as it was given.
        shield: Shield,
        /// The CPU.
        cpu: u32,
        /// The CPUs that are online.
        online: CpuSet,
    },
    /// No CPU is left for all other tasks.
    #[error("shield {shield}: these are all CPUs that are online; leave at least one")]
    All {
        /// The shield, as it was given.
        shield: Shield,
    },
}

/// The set of shielded CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Shield {
    cpus: CpuSet,
}

from_text!(Shield);

impl Shield {
    /// Whether the set is empty.
    pub fn is_none(&self) -> bool {
        self.cpus.is_empty()
    }

    /// The shielded CPUs.
    pub fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// Checks whether these CPUs of this machine can be shielded now.
    ///
    /// # Errors
    /// There is no such CPU, it is offline, or no other CPU is online.
    pub fn check(&self, machine: &Machine) -> Result<(), ShieldError> {
        let (present, online) = (machine.present(), machine.online());
        for cpu in self.cpus.iter() {
            let shield = self.clone();
            if !present.contains(cpu) {
                return Err(ShieldError::NoSuchCpu { shield, cpu, present });
            }
            if !online.contains(cpu) {
                return Err(ShieldError::Offline { shield, cpu, online });
            }
        }
        if self.holds_all(machine) {
            return Err(ShieldError::All { shield: self.clone() });
        }
        Ok(())
    }

    /// Whether all online CPUs are shielded: then the shield has no effect.
    pub(crate) fn holds_all(&self, machine: &Machine) -> bool {
        machine.online().is_subset(&self.cpus)
    }

    /// A mask with a bit for each CPU.
    pub(crate) fn raw(&self) -> [u64; MAX_CPUS / 64] {
        let words = self.cpus.as_words();
        std::array::from_fn(|at| words.get(at).copied().unwrap_or(0))
    }
}

impl fmt::Display for Shield {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() { f.write_str("none") } else { self.cpus.fmt(f) }
    }
}

impl FromStr for Shield {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        if text == "none" {
            return Ok(Self::default());
        }
        let wrong = |why: String| OptionError::Shield { text: text.to_owned(), why };
        let cpus: CpuSet =
            text.parse().map_err(|why: evenkeel_machine::CpuListError| wrong(why.to_string()))?;
        match cpus.iter().last() {
            None => Err(wrong("no CPU is named".to_owned())),
            Some(last) if last as usize >= MAX_CPUS => {
                Err(wrong(format!("the keel was built for CPU numbers below {MAX_CPUS}")))
            }
            Some(_) => Ok(Self { cpus }),
        }
    }
}

/// Clears shielded CPUs of a task that runs there alone. The kernel lets such a task run on as long as
/// no other task is queued, so a thread of this process runs there for a moment, and the keel migrates
/// the task.
#[derive(Default)]
pub(crate) struct Relief {
    /// The threads by CPU. A thread may have to wait there for real-time tasks.
    threads: BTreeMap<u32, JoinHandle<()>>,
}

impl Relief {
    /// Clears these CPUs.
    pub fn relieve(&mut self, cpus: impl IntoIterator<Item = u32>) {
        self.threads.retain(|_, thread| !thread.is_finished());
        for cpu in cpus {
            if self.threads.contains_key(&cpu) {
                continue;
            }
            let thread = Builder::new().name(format!("relief/{cpu}"));
            match thread.spawn(move || stand_in(cpu)) {
                Ok(thread) => drop(self.threads.insert(cpu, thread)),
                Err(why) => tracing::debug!("shield: cannot start a thread for CPU {cpu}: {why}"),
            }
        }
    }
}

/// Pins the calling thread to this CPU, and returns when it has run there.
fn stand_in(cpu: u32) {
    let own = nix::unistd::gettid().as_raw();
    if let Err(why) = affinity::set(own, &CpuSet::from_iter([cpu])) {
        tracing::debug!("shield: CPU {cpu} is not cleared: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shield(text: &str) -> Shield {
        text.parse().unwrap()
    }

    #[test]
    fn cpus_or_none() {
        assert_eq!(shield("2-3,5").to_string(), "2-3,5");
        assert_eq!(shield("none"), Shield::default());
        assert_eq!(Shield::default().to_string(), "none");
        let raw = shield("1,64,1023").raw();
        assert_eq!((raw[0], raw[1], raw[15]), (2, 1, 1 << 63));
        for (text, expected) in [
            ("", "shield \"\": no CPU is named"),
            ("3-1", "runs backwards"),
            ("all", "not a CPU list"),
            ("1024", "CPU numbers below 1024"),
        ] {
            let why = text.parse::<Shield>().unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
            assert!(why.ends_with("expected CPUs like 2-3, or none"), "{why}");
        }
    }

    #[test]
    fn only_online_cpus_can_be_shielded_and_not_all_of_them() {
        let mut machine = Machine::preset("hybrid").unwrap();
        let cpus = machine.cpus.len() as u32;
        machine.cpus[1].online = false;
        assert_eq!(shield("none").check(&machine), Ok(()));
        assert_eq!(shield("2-3").check(&machine), Ok(()));
        let why = |text: String| shield(&text).check(&machine).unwrap_err().to_string();
        assert!(why("1".to_owned()).starts_with("shield 1: CPU 1 is offline; online are 0,2-"));
        assert!(
            why(format!("0,{cpus}")).contains(&format!("there is no CPU {cpus}; this machine"))
        );
        assert!(why(format!("0,2-{}", cpus - 1)).ends_with("leave at least one"));
        // CPUs that went offline meanwhile may leave none.
        machine.cpus.iter_mut().skip(2).for_each(|cpu| cpu.online = false);
        assert!(shield("0").holds_all(&machine) && !shield("2").holds_all(&machine));
    }

    #[test]
    fn a_relief_thread_runs_and_ends() {
        let mut relief = Relief::default();
        let tid = nix::unistd::gettid().as_raw();
        let own = affinity::get(tid).unwrap().iter().next().unwrap();
        relief.relieve([own]);
        let started: Vec<_> = std::mem::take(&mut relief.threads).into_iter().collect();
        assert_eq!(started.len(), 1);
        started.into_iter().for_each(|(_, thread)| thread.join().unwrap());
    }
}
