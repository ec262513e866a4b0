//! Runs one simulation, from its input to its outcome, and records a tape of it.

use std::sync::Arc;

use evenkeel_invariants::Limits;
use evenkeel_keel::{Balance, Gate, IdleWait, InitialData};
use evenkeel_tape::{MOST_CPUS, Tape};

use crate::host_error::HostError;
use crate::kernel::{Gauge, Kernel};
use crate::observe::{Observer, Watching};
use crate::outcome::Outcome;
use crate::paper_rules::PaperRule;
use crate::program::Change;
use crate::scheduler::Scheduler;
use crate::simulation::{FaultPlan, Simulation};

/// Why a simulation cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A tape holds masks of a limited number of CPUs.
    #[error(
        "{0} has {1} CPU numbers, and a tape holds masks of {MOST_CPUS}: take a smaller machine"
    )]
    TooManyCpus(String, u32),
    /// A tape holds no interleaved callbacks, no restart of the scheduler and no settings that change.
    #[error("a tape is recorded without faults, CPUs that come or go, and a shield that changes")]
    Faults,
    /// Only the keel can be recorded.
    #[error("scheduler {0} cannot be recorded: only the keel can")]
    Scheduler(String),
    /// The scheduler cannot be loaded.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl Simulation {
    /// Runs it.
    ///
    /// # Errors
    /// [`HostError`]: the scheduler cannot be loaded. Failures within the simulation are in its outcome.
    pub fn run(&self) -> Result<Outcome, HostError> {
        let mut kernel = self.begin(false)?;
        kernel.run(self.max_events);
        Ok(kernel.finish().0)
    }

    /// The same; meanwhile the gauge shows another thread how much is done.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_shown(&self, gauge: &Arc<Gauge>) -> Result<Outcome, HostError> {
        let mut kernel = self.begin(false)?;
        kernel.show_on(gauge.clone());
        kernel.run(self.max_events);
        Ok(kernel.finish().0)
    }

    /// Runs it, and records all callbacks and calls of the scheduler on a tape. The gauge shows another
    /// thread how much is done.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn record(&self, gauge: &Arc<Gauge>) -> Result<(Outcome, Tape), RecordError> {
        let (Scheduler::Keel(options) | Scheduler::Built(options, _)) = &self.scheduler else {
            return Err(RecordError::Scheduler(self.scheduler.to_string()));
        };
        let untold = |(_, change): &(u64, Change)| {
            matches!(change, Change::Hotplug { .. } | Change::Told(_) | Change::Shield(_))
        };
        if self.faults != FaultPlan::default() || self.workload.changes.iter().any(untold) {
            return Err(RecordError::Faults);
        }
        let data = InitialData::new(&self.machine, options).map_err(HostError::from)?;
        if data.cpus > MOST_CPUS {
            return Err(RecordError::TooManyCpus(self.machine.name.clone(), data.cpus));
        }
        let mut kernel = self.begin(true)?;
        kernel.show_on(gauge.clone());
        kernel.run(self.max_events);
        let (outcome, entries) = kernel.finish();
        Ok((outcome, Tape { scheduler: self.scheduler.to_string(), data, entries }))
    }

    fn begin(&self, records: bool) -> Result<Box<Kernel>, HostError> {
        // With IRQ accounting a task is charged less than its time on the CPU.
        let uncharged =
            self.machine.costs.irq_accounting == 1 && !self.workload.interrupts.is_empty();
        // With hotplug, work conservation is not judged: an offline CPU is not idle.
        let hotplug = |(_, change): &(u64, Change)| matches!(change, Change::Hotplug { .. });
        let goes = self.workload.changes.iter().any(hotplug);
        // The gate may keep a CPU idle for `max_idle_wait`. Overdue tasks are found at a tick, 64 on
        // each CPU, so that in a very large crowd some wait for twice as long.
        let zone = self.scheduler.options().filter(|options| options.gate == Gate::Zone);
        let gated_ns = zone.map_or(0, |options| options.max_idle_wait.ns());
        // The balance policy may, too, where no wait is too long for it: paper 002, 4.1.3.
        let abstains = self.scheduler.options().is_some_and(|options| {
            let may = options.balance == Balance::Capability
                || PaperRule::of(options.parts).next().is_some();
            may && options.max_idle_wait == IdleWait::NEVER
        });
        let is_free = goes || abstains || gated_ns == IdleWait::NEVER.ns();
        let limits = self.limits.map(|limits| Limits {
            idle_grace_ns: match limits.idle_grace_ns {
                grace_ns if is_free || grace_ns == 0 => 0,
                grace_ns => grace_ns + 2 * gated_ns,
            },
            charge_tolerance_pct: if uncharged { 100 } else { limits.charge_tolerance_pct },
            ..limits
        });
        let watching = Watching { limits, records: self.records };
        let observer = Observer::new(self.workload.tasks.len(), watching);
        Kernel::new(self, observer, records)
    }
}
