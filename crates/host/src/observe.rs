//! Which accounting is used, and which CPUs a program may use: the "observe" end of the balancer.

use evenkeel_capability::{Snapshot, TaskId};
use evenkeel_cbinfo::{Cbinfo, TaskEvent};
use evenkeel_journal::effective_cpuset;
use evenkeel_machine::{CpuSet, Machine};
use serde::{Deserialize, Serialize};

use crate::approximate::Approximate;
use crate::exact::Exact;
use crate::reading::{Freedom, Reading, TaskReading};

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

/// Observes one program: its root process and everything that descends from it.
pub struct Observer {
    source: Source,
    why_not_exact: Option<String>,
    root: u32,
    speeds: Vec<u32>,
    last: Reading,
}

impl Observer {
    /// Starts to observe the program whose first process is `root`.
    ///
    /// # Errors
    /// When `choice` demands what is not to be had, or /proc cannot be read.
    pub fn new(
        machine: &Machine,
        root: u32,
        choice: AccountingChoice,
    ) -> Result<Self, ObserveError> {
        let mut speeds = vec![1024; machine.cpus.last().map_or(0, |cpu| cpu.id as usize + 1)];
        for cpu in &machine.cpus {
            speeds[cpu.id as usize] = cpu.capability;
        }
        let exact = match choice {
            AccountingChoice::Procfs => Err("--accounting procfs was asked for".to_owned()),
            AccountingChoice::Cbinfo => Ok(Exact::open(root, &speeds)?),
            AccountingChoice::Auto => Exact::open(root, &speeds).map_err(|why| why.to_string()),
        };
        let (source, why_not_exact) = match exact {
            Ok(exact) => (Source::Exact(Box::new(exact)), None),
            Err(why) => (Source::Approximate(Approximate::new(root, &speeds)), Some(why)),
        };
        let mut observer = Self { source, why_not_exact, root, speeds, last: Reading::default() };
        observer.last = observer.read()?;
        Ok(observer)
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

    /// The latest cumulative figures.
    pub fn last(&self) -> &Reading {
        &self.last
    }

    /// CPUs that the program's cpuset allows at this moment.
    pub fn usable(&self) -> Option<CpuSet> {
        let mut members = std::iter::once(self.root)
            .chain(self.last.tasks.values().map(|task| task.process))
            .map(|pid| pid as i32);
        members.next().map(effective_cpuset)
    }

    /// The interval since the last call; `None` when no time has passed.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn snapshot(
        &mut self,
        usable: &CpuSet,
        freedom: impl FnMut(TaskId, &TaskReading) -> Freedom,
    ) -> Result<Option<Snapshot>, ObserveError> {
        let now = self.read()?;
        let speed = |cpu: u32| self.speeds.get(cpu as usize).copied().unwrap_or(1024);
        let snapshot = now.since(&self.last, usable, speed, freedom);
        self.last = now;
        Ok(snapshot)
    }

    fn read(&mut self) -> Result<Reading, ObserveError> {
        let at_ns = monotonic_ns();
        match &mut self.source {
            Source::Exact(exact) => Ok(exact.read(at_ns)?),
            Source::Approximate(approximate) => Ok(approximate.read(at_ns)?),
        }
    }
}

/// The clock that intervals are measured with.
pub(crate) fn monotonic_ns() -> u64 {
    let since_boot = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map(std::time::Duration::from)
        .unwrap_or_default();
    since_boot.as_nanos() as u64
}
