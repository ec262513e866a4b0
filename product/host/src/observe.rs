//! Which accounting is used, and which CPUs a program may use: the "observe" end of the balancer.

use std::collections::BTreeMap;
use std::rc::Rc;

use evenkeel_capability::{Snapshot, TaskId};
use evenkeel_cbinfo::{Cbinfo, TaskEvent};
use evenkeel_journal::effective_cpuset;
use evenkeel_machine::{Cpu, CpuSet, Machine};
use serde::{Deserialize, Serialize};

use crate::approximate::Approximate;
use crate::exact::Exact;
use crate::reading::{CpuFacts, Freedom, Reading, TaskReading};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccountingChoice {
    /// cbinfo where possible, else procfs.
    #[default]
    Auto,
    /// BPF, or an error.
    Cbinfo,
    /// /proc only.
    Procfs,
}

/// What is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accounting {
    /// Exact, by BPF.
    Cbinfo,
    /// Approximate, from /proc.
    Procfs,
}

/// Why a program cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// Exact accounting was demanded and is not to be had.
    #[error(transparent)]
    Exact(#[from] evenkeel_cbinfo::Error),
    /// Not even /proc.
    #[error("cannot read /proc: {0}; mount it (mount -t proc proc /proc)")]
    Procfs(#[from] procfs::ProcError),
}

enum Source {
    Exact(Box<Exact>),
    Approximate(Approximate),
}

/// Observes programs: processes and everything that descends from them.
pub struct Observer {
    source: Source,
    why_not_exact: Option<String>,
    /// By CPU number.
    facts: BTreeMap<u32, CpuFacts>,
    last: Rc<Reading>,
}

impl Observer {
    /// Starts to observe the machine; no program yet.
    ///
    /// # Errors
    /// When `choice` demands what is not to be had, or /proc cannot be read.
    pub fn new(machine: &Machine, choice: AccountingChoice) -> Result<Self, ObserveError> {
        let speeds = speeds_of(machine);
        let exact = match choice {
            AccountingChoice::Procfs => Err("--accounting procfs was asked for".to_owned()),
            AccountingChoice::Cbinfo => Ok(Exact::open(&speeds)?),
            AccountingChoice::Auto => Exact::open(&speeds).map_err(|why| why.to_string()),
        };
        let (source, why_not_exact) = match exact {
            Ok(exact) => (Source::Exact(Box::new(exact)), None),
            Err(why) => (Source::Approximate(Approximate::new(speeds)), Some(why)),
        };
        let facts = facts_of(machine);
        let mut observer = Self { source, why_not_exact, facts, last: Rc::default() };
        observer.read()?;
        Ok(observer)
    }

    /// CPUs have come online: what they are is known only now.
    pub fn set_machine(&mut self, machine: &Machine) {
        self.facts = facts_of(machine);
        let speeds = speeds_of(machine);
        match &mut self.source {
            Source::Exact(exact) => exact.cbinfo().set_speeds(&speeds),
            Source::Approximate(approximate) => approximate.set_speeds(speeds),
        }
    }

    /// From the next reading on, this process and its descendants belong to `program`, any number
    /// of the caller's choice.
    ///
    /// # Errors
    /// When the kernel cannot list its tasks.
    pub fn follow(&mut self, process: u32, program: u32) -> Result<(), ObserveError> {
        match &mut self.source {
            Source::Exact(exact) => drop(exact.cbinfo().follow(process, program)?),
            Source::Approximate(approximate) => approximate.follow(process, program),
        }
        Ok(())
    }

    /// From the next reading on, there is no such program.
    ///
    /// # Errors
    /// When the kernel cannot list its tasks.
    pub fn forget(&mut self, program: u32) -> Result<(), ObserveError> {
        match &mut self.source {
            Source::Exact(exact) => exact.cbinfo().forget(program)?,
            Source::Approximate(approximate) => approximate.forget(program),
        }
        Ok(())
    }

    /// Which accounting is used.
    pub fn accounting(&self) -> Accounting {
        match self.source {
            Source::Exact(_) => Accounting::Cbinfo,
            Source::Approximate(_) => Accounting::Procfs,
        }
    }

    /// Why it is not the exact one.
    pub fn why_not_exact(&self) -> Option<&str> {
        self.why_not_exact.as_deref()
    }

    /// The exact accounting, if that is used.
    pub fn cbinfo(&mut self) -> Option<&mut Cbinfo> {
        match &mut self.source {
            Source::Exact(exact) => Some(exact.cbinfo()),
            Source::Approximate(_) => None,
        }
    }

    /// What the program's tasks did since the last call, where the kernel tells.
    ///
    /// # Errors
    /// When the events cannot be read.
    pub fn events(&mut self) -> Result<Vec<TaskEvent>, ObserveError> {
        match &mut self.source {
            Source::Exact(exact) => Ok(exact.events()?),
            Source::Approximate(_) => Ok(Vec::new()),
        }
    }

    /// The latest reading.
    pub fn last(&self) -> &Rc<Reading> {
        &self.last
    }

    /// CPUs that the program's cpuset allows at this moment; `None` if it has no process.
    pub fn usable(&self, program: u32) -> Option<CpuSet> {
        let first = self.last.programs.get(&program)?.tasks.values().next()?;
        Some(effective_cpuset(first.process as i32))
    }

    /// What `program` met between `earlier` and the latest reading; `None` when no time has passed.
    pub fn snapshot(
        &self,
        earlier: &Reading,
        program: u32,
        usable: &CpuSet,
        freedom: impl FnMut(TaskId, &TaskReading) -> Freedom,
    ) -> Option<Snapshot> {
        // A CPU that sysfs did not show.
        let unknown = |core| CpuFacts { speed: 1024, core, node: 0 };
        let facts = |cpu: u32| self.facts.get(&cpu).copied().unwrap_or_else(|| unknown(cpu));
        self.last.since(earlier, program, usable, facts, freedom)
    }

    /// Takes a reading.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn read(&mut self) -> Result<&Rc<Reading>, ObserveError> {
        let at_ns = monotonic_ns();
        let mut now = match &mut self.source {
            Source::Exact(exact) => exact.read(at_ns)?,
            Source::Approximate(approximate) => approximate.read(at_ns)?,
        };
        now.go_on_from(&self.last);
        self.last = Rc::new(now);
        Ok(&self.last)
    }
}

/// By CPU number, without gaps.
fn speeds_of(machine: &Machine) -> Vec<u32> {
    let mut speeds = vec![1024; machine.cpus.last().map_or(0, |cpu| cpu.id as usize + 1)];
    for cpu in &machine.cpus {
        speeds[cpu.id as usize] = cpu.capability;
    }
    speeds
}

fn facts_of(machine: &Machine) -> BTreeMap<u32, CpuFacts> {
    let facts = |cpu: &Cpu| {
        let Cpu { id, capability, core, node, .. } = cpu;
        (*id, CpuFacts { speed: *capability, core: *core, node: *node })
    };
    machine.cpus.iter().map(facts).collect()
}

/// The clock that intervals are measured with.
pub(crate) fn monotonic_ns() -> u64 {
    let since_boot = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map(std::time::Duration::from)
        .unwrap_or_default();
    since_boot.as_nanos() as u64
}
