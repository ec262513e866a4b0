//! What is simulated: the whole input.

use std::sync::Arc;

use evenkeel_capability::Policy;
use evenkeel_invariants::Limits;
use evenkeel_machine::Machine;

use crate::program::Workload;
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

/// What is to go wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct FaultPlan {
    /// Of so many calls that may be refused, about one is; 0: none.
    pub fail_one_in: u32,
    /// At one of so many points where others could come in between, they do; 0: never.
    pub pause_one_in: u32,
    /// Kicks, wake-ups and ticks are up to so much late, and overtake each other.
    pub late_ns: u64,
    /// Something about a task or a CPU is changed about this often, and what all CPUs are said to be
    /// able to do; 0: never.
    pub change_ns: u64,
}

impl FaultPlan {
    /// All of it, as hard as a scheduler must be able to bear.
    pub const ALL: Self =
        Self { fail_one_in: 61, pause_one_in: 23, late_ns: 300_000, change_ns: 700_000 };
}
