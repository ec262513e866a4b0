//! One simulation, from its input to its outcome.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_capability::Policy;
use evenkeel_invariants::{Event, Findings, Limits};
use evenkeel_keel::tape::{MOST_CPUS, Tape};
use evenkeel_keel::{Gate, IdleWait, Image, Tuning};
use evenkeel_machine::Machine;

use crate::kernel::{End, FaultPlan, Kernel};
use crate::native::HostError;
use crate::observe::{Account, Broken, Closed, Level, Observer, Overhead, Reason, Watching};
use crate::program::{Change, Workload};
use crate::scheduler::Scheduler;

/// Events that a simulation may take unless it is allowed more.
pub const MAX_EVENTS: u64 = 1_000_000_000;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// On which machine.
    pub machine: Machine,
    /// Under which scheduler.
    pub scheduler: Scheduler,
    /// The user-level balancer on top, if any; all tasks are its program.
    pub balancer: Option<Policy>,
    /// What happens there.
    pub workload: Arc<Workload>,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// All that is random depends on it.
    pub seed: u64,
    /// The rules that the scheduler is held to; `None`: none (for measuring the engine alone).
    pub limits: Option<Limits>,
    /// Whether all events are to be kept.
    pub records: bool,
    /// More events end it.
    pub max_events: u64,
}

/// Why a simulation cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// What is recorded of a task's mask ends there.
    #[error(
        "{0} has {1} CPU numbers, and a tape holds masks of {MOST_CPUS}: take a smaller machine"
    )]
    TooManyCpus(String, u32),
    /// What comes in between of a callback, a scheduler that is loaded anew or told something else is
    /// not on a tape.
    #[error("a tape is recorded without faults, CPUs that come or go, and a shield that changes")]
    Faults,
    /// Only the keel is.
    #[error("scheduler {0} cannot be recorded: only the keel can")]
    Scheduler(String),
    /// The scheduler cannot be loaded.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The time that it took, in the simulation.
    pub time_ns: u64,
    /// Events of the engine.
    pub events: u64,
    /// A number that two simulations share only if everything happened in the same way.
    pub hash: u64,
    /// Why it ended before its workload did.
    pub end: Option<End>,
    /// What the checkers say.
    pub findings: Option<Findings>,
    /// The rules that were broken, and how it came to that.
    pub broken: Vec<Broken>,
    /// What each task has been through, in the workload's order.
    pub accounts: Vec<Account>,
    /// Who ran on another CPU than before: why, and how far away.
    pub migrations: BTreeMap<(Reason, Level), u64>,
    /// Switches to a task of the same address space as who ran there before.
    pub switches_same: u64,
    /// Switches to another address space.
    pub switches_other: u64,
    /// Time of idle CPUs while as many tasks waited, whether these may run there or not.
    pub idle_while_waiting_ns: u64,
    /// Time of idle CPUs.
    pub idle_ns: u64,
    /// Time that switches, searches and cold caches took.
    pub overhead: Overhead,
    /// How long CPUs were closed to whoever is urgent, because they balanced.
    pub closed: Closed,
    /// Time that slaves of a group (`Workload::together`) ran somebody while their master did.
    pub together_ns: u64,
    /// Of that, the time with the master's address space.
    pub same_space_ns: u64,
    /// How often tasks took how long from waking up to sleeping again (exact to a 32nd).
    pub responses: BTreeMap<u64, u64>,
    /// How often they waited how long for a CPU, each time (exact to a 32nd).
    pub waits: BTreeMap<u64, u64>,
    /// Tasks that the scheduler refused.
    pub unborn: u64,
    /// The frequency that the scheduler asked for last, CPU by CPU, of 1,024. It changes nothing here.
    pub frequencies: Vec<u32>,
    /// Times that the scheduler was loaded again.
    pub restarts: u64,
    /// Tasks that the user-level balancer moved.
    pub moves: u64,
    /// Tasks that run or wait at the end, ...
    pub runnable: u64,
    /// ... and how many the scheduler takes them for, if it counts them.
    pub believed_runnable: Option<u64>,
    /// Tasks that stand in the scheduler's index of siblings at the end, if it has one and used it.
    pub listed: Option<u64>,
    /// The scheduler's own counters.
    pub counters: BTreeMap<String, u64>,
    /// Calls of the kernel's functions by the scheduler.
    pub calls: u64,
    /// Entries of queues that it looked at.
    pub scanned: u64,
    /// All events, if they were to be kept.
    pub record: Vec<Event>,
    /// What the scheduler has to say to its end.
    pub dump: String,
    /// What the helper thread (`--ias-auto`) has changed, and when.
    pub changes: Vec<(u64, Tuning)>,
}

impl Simulation {
    /// Simulates it.
    ///
    /// # Errors
    /// [`HostError`]: the scheduler cannot be loaded. What goes wrong in the simulation is in its
    /// outcome.
    pub fn run(&self) -> Result<Outcome, HostError> {
        let mut kernel = self.begin(false)?;
        kernel.run(self.max_events);
        Ok(kernel.finish().0)
    }

    /// The same, with all that the scheduler is told and does written down.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn record(&self) -> Result<(Outcome, Tape), RecordError> {
        let (Scheduler::Keel(options) | Scheduler::Built(options, _)) = &self.scheduler else {
            return Err(RecordError::Scheduler(self.scheduler.to_string()));
        };
        let untold = |(_, change): &(u64, Change)| {
            matches!(change, Change::Hotplug { .. } | Change::Told(_) | Change::Shield(_))
        };
        if self.faults != FaultPlan::default() || self.workload.changes.iter().any(untold) {
            return Err(RecordError::Faults);
        }
        let image = Image::new(&self.machine, options).map_err(HostError::from)?;
        if image.cpus > MOST_CPUS {
            return Err(RecordError::TooManyCpus(self.machine.name.clone(), image.cpus));
        }
        let mut kernel = self.begin(true)?;
        kernel.run(self.max_events);
        let (outcome, entries) = kernel.finish();
        Ok((outcome, Tape { scheduler: self.scheduler.to_string(), image, entries }))
    }

    fn begin(&self, records: bool) -> Result<Box<Kernel>, HostError> {
        // Whom interrupts are not charged to is charged less than the time on the CPU.
        let uncharged =
            self.machine.costs.irq_accounting == 1 && !self.workload.interrupts.is_empty();
        // A CPU that is not there is not idle.
        let hotplug = |(_, change): &(u64, Change)| matches!(change, Change::Hotplug { .. });
        let goes = self.workload.changes.iter().any(hotplug);
        // Nor is one that the gate keeps idle as long as it may: who is overdue is found at a tick, 64
        // of them on a CPU, so that of a very large crowd some wait for twice as long.
        let zone = self.scheduler.options().filter(|options| options.gate == Gate::Zone);
        let gated_ns = zone.map_or(0, |options| options.max_idle_wait.ns());
        let is_free = goes || gated_ns == IdleWait::NEVER.ns();
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
