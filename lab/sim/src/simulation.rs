//! The input of a simulation: a world (machine, workload, faults, seed), a scheduler, and what is
//! observed.

use std::sync::Arc;

use evenkeel_capability::Policy;
use evenkeel_invariants::Limits;
use evenkeel_machine::Machine;

use crate::program::Workload;
use crate::scheduler::Scheduler;

/// How many events a simulation may take by default.
pub const MAX_EVENTS: u64 = 1_000_000_000;

/// A simulation's input.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// The machine.
    pub machine: Machine,
    /// The scheduler.
    pub scheduler: Scheduler,
    /// The user-level balancer on top, if any. All tasks are its program.
    pub balancer: Option<Policy>,
    /// The workload.
    pub workload: Arc<Workload>,
    /// The injected faults.
    pub faults: FaultPlan,
    /// The seed of everything random.
    pub seed: u64,
    /// How strictly the checkers judge; `None`: no checkers (for measuring the engine alone).
    pub limits: Option<Limits>,
    /// Whether all events are kept in the outcome.
    pub records: bool,
    /// The simulation ends after this many events.
    pub max_events: u64,
}

/// The faults that are injected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct FaultPlan {
    /// Of the calls that can fail, about one in this many fails; 0: none.
    pub fail_one_in: u32,
    /// Of the points where other CPUs can run in between, they do at about one in this many; 0: at none.
    pub pause_one_in: u32,
    /// Kicks, wake-ups and ticks are late by at most this, and overtake each other.
    pub late_ns: u64,
    /// Mean time between random changes of a task, a cgroup or a CPU, and of the capabilities that user
    /// space reports; 0: no changes.
    pub change_ns: u64,
}

impl FaultPlan {
    /// All faults, as often as a scheduler must survive them.
    pub const ALL: Self =
        Self { fail_one_in: 61, pause_one_in: 23, late_ns: 300_000, change_ns: 700_000 };
}
