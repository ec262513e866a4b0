//! The observer: takes readings from one of the two sources, and makes the snapshot of a program.

use std::collections::BTreeMap;
use std::rc::Rc;

use evenkeel_capability::{Snapshot, TaskId};
use evenkeel_cbinfo::{Cbinfo, TaskEvent};
use evenkeel_journal::effective_cpuset;
use evenkeel_machine::{Cpu, CpuSet, Machine};
use serde::{Deserialize, Serialize};

use crate::approximate::Approximate;
use crate::clock::monotonic_ns;
use crate::exact::Exact;
use crate::reading::{CpuFacts, Freedom, Reading, TaskReading};

/// The source of figures that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccountingChoice {
    /// cbinfo where possible, else /proc.
    #[default]
    Auto,
    /// cbinfo, or an error.
    Cbinfo,
    /// /proc only.
    Procfs,
}

/// The source of figures in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Accounting {
    /// Exact, by BPF (cbinfo).
    Cbinfo,
    /// Approximate, from /proc.
    Procfs,
}

/// Programs cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// Exact accounting was asked for and is not possible.
    #[error(transparent)]
    Exact(#[from] evenkeel_cbinfo::Error),
    /// /proc cannot be read.
    #[error("cannot read /proc: {0}; mount it (mount -t proc proc /proc)")]
    Procfs(#[from] procfs::ProcError),
}

enum Source {
    Exact(Box<Exact>),
    Approximate(Approximate),
}

/// Observes programs: processes and all their descendants.
pub struct Observer {
    source: Source,
    why_not_exact: Option<String>,
    /// By CPU number.
    facts: BTreeMap<u32, CpuFacts>,
    last: Rc<Reading>,
}

impl Observer {
    /// Starts to observe the machine, without a program.
    ///
    /// # Errors
    /// `choice` asks for exact accounting and that is not possible, or /proc cannot be read.
    pub fn new(machine: &Machine, choice: AccountingChoice) -> Result<Self, ObserveError> {
        let speeds = speeds_of(machine);
        let exact = match choice {
            AccountingChoice::Procfs => Err("--accounting procfs was asked for".to_owned()),
            AccountingChoice::Cbinfo => Ok(Exact::open(&speeds)?),
            AccountingChoice::Auto => Exact::open(&speeds).map_err(|why| {
                // That it is not supported here is told where the figures are; that it should have
                // worked and did not is a fault.
                if !matches!(why, evenkeel_cbinfo::Error::Unsupported(_)) {
                    tracing::warn!("no exact accounting, figures are from /proc: {why}");
                }
                why.to_string()
            }),
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

    /// Takes the properties of CPUs that have come online.
    pub fn set_machine(&mut self, machine: &Machine) {
        self.facts = facts_of(machine);
        let speeds = speeds_of(machine);
        match &mut self.source {
            Source::Exact(exact) => {
                exact.cbinfo().set_speeds(&speeds);
                exact.watch().restart();
            }
            Source::Approximate(approximate) => approximate.set_speeds(speeds),
        }
    }

    /// Counts this process and its descendants for `program` (a number of the caller's choice) from the
    /// next reading on.
    ///
    /// # Errors
    /// The kernel cannot list its tasks.
    pub fn follow(&mut self, process: u32, program: u32) -> Result<(), ObserveError> {
        match &mut self.source {
            Source::Exact(exact) => drop(exact.cbinfo().follow(process, program)?),
            Source::Approximate(approximate) => approximate.follow(process, program),
        }
        Ok(())
    }

    /// Stops observing `program` from the next reading on.
    ///
    /// # Errors
    /// The kernel cannot list its tasks.
    pub fn forget(&mut self, program: u32) -> Result<(), ObserveError> {
        match &mut self.source {
            Source::Exact(exact) => exact.forget(program)?,
            Source::Approximate(approximate) => approximate.forget(program),
        }
        Ok(())
    }

    /// The source in use.
    pub fn accounting(&self) -> Accounting {
        match self.source {
            Source::Exact(_) => Accounting::Cbinfo,
            Source::Approximate(_) => Accounting::Procfs,
        }
    }

    /// Why accounting is not exact.
    pub fn why_not_exact(&self) -> Option<&str> {
        self.why_not_exact.as_deref()
    }

    /// The exact accounting, if it is in use.
    pub fn cbinfo(&mut self) -> Option<&mut Cbinfo> {
        match &mut self.source {
            Source::Exact(exact) => Some(exact.cbinfo()),
            Source::Approximate(_) => None,
        }
    }

    /// Forks and execs of observed tasks since the last call; none with /proc.
    ///
    /// # Errors
    /// The events cannot be read.
    pub fn events(&mut self) -> Result<Vec<TaskEvent>, ObserveError> {
        match &mut self.source {
            Source::Exact(exact) => Ok(exact.events()?),
            Source::Approximate(_) => Ok(Vec::new()),
        }
    }

    /// Counts waiting in these files and functions as well, besides the runtimes that are known.
    pub fn set_runtimes(&mut self, extra: &[String]) {
        if let Source::Exact(exact) = &mut self.source {
            exact.watch().set_runtimes(extra);
        }
    }

    /// Looks for the waiting of a program while its intervals, such as this one, give a reason for it.
    pub fn attend(&mut self, program: u32, snapshot: &Snapshot) {
        let now_ns = self.last.at_ns;
        if let Source::Exact(exact) = &mut self.source {
            exact.watch().attend(program, snapshot, now_ns);
        }
    }

    /// When [`Observer::close_due_window`] is to be called, on the monotonic clock.
    pub fn window_due_ns(&self) -> Option<u64> {
        match &self.source {
            Source::Exact(exact) => exact.window_due_ns(),
            Source::Approximate(_) => None,
        }
    }

    /// Ends the window in which barriers are counted, if it is time.
    pub fn close_due_window(&mut self) {
        if let Source::Exact(exact) = &mut self.source {
            exact.close_due_window(monotonic_ns());
        }
    }

    /// The latest reading.
    pub fn last(&self) -> &Rc<Reading> {
        &self.last
    }

    /// CPUs that the program's cpuset allows now; `None` if it has no process.
    pub fn usable(&self, program: u32) -> Option<CpuSet> {
        let first = self.last.programs.get(&program)?.tasks.values().next()?;
        Some(effective_cpuset(first.process as i32))
    }

    /// The snapshot of `program` from `earlier` to the latest reading; `None` when no time has passed.
    pub fn snapshot(
        &self,
        earlier: &Reading,
        program: u32,
        usable: &CpuSet,
        freedom: impl FnMut(TaskId, &TaskReading) -> Freedom,
    ) -> Option<Snapshot> {
        // For a CPU that sysfs does not show.
        let unknown = |core| CpuFacts { speed: 1024, core, node: 0 };
        let facts = |cpu: u32| self.facts.get(&cpu).copied().unwrap_or_else(|| unknown(cpu));
        self.last.since(earlier, program, usable, facts, freedom)
    }

    /// Takes a reading.
    ///
    /// # Errors
    /// The source cannot be read.
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
