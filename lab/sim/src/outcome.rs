//! What came of a simulation: figures, broken rules, and why it ended.

use std::collections::BTreeMap;

use evenkeel_invariants::{Event, Findings, Violation};
use evenkeel_keel::Tuning;

use crate::topology::Level;

/// Steps that a task may take without working in between.
pub(crate) const MAX_STEPS: u32 = 10_000;

/// Events that are kept of a simulation at most, and entries of a tape: some hundred MiB.
pub const MAX_KEPT: usize = 4_000_000;

/// Why a simulation ended before its workload did.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The kernel would have thrown the scheduler out.
    #[error("the kernel would have ended the scheduler: {0}")]
    Scheduler(String),
    /// A task loops without working.
    #[error("task {task} took {MAX_STEPS} steps without working: let it run or sleep in its loop")]
    Busy {
        /// Its name.
        task: String,
    },
    /// More events than were allowed.
    #[error("{0} events have happened, and it is not over: allow more by --max-events")]
    Events(u64),
    /// More is to be kept than there is room for.
    #[error(
        "{MAX_KEPT} events are kept for a trace, a picture or a tape, and it is not over: simulate less at \
         a time, or without these"
    )]
    Kept,
    /// The program itself could not go on.
    #[error("{0}")]
    Host(String),
    /// Nothing will ever happen again, and not all tasks have ended.
    #[error("{waiting} tasks sleep, and nobody will ever wake them: {example} is one")]
    Deadlock {
        /// How many.
        waiting: usize,
        /// The name of one.
        example: String,
    },
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

/// Why a task runs on another CPU than before: what last decided where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It is new.
    Fork,
    /// It woke up.
    Wake,
    /// Its slice was over, and it was put into another CPU's queue.
    Requeue,
    /// Another CPU took it.
    Pull,
    /// A real-time task had taken its CPU.
    Thief,
    /// Somebody changed something about it, or about the CPUs.
    Change,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fork => "fork",
            Self::Wake => "wake",
            Self::Requeue => "requeue",
            Self::Pull => "pull",
            Self::Thief => "thief",
            Self::Change => "change",
        })
    }
}

/// What a task has been through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// When it came.
    pub arrived_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: Option<u64>,
    /// How long it had a CPU.
    pub ran_ns: u64,
    /// How long it waited for one.
    pub waited_ns: u64,
    /// What it worked, in ns of a CPU of full capability with near memory and warm caches.
    pub worked_ns: u64,
    /// Since when it runs or waits.
    pub(crate) since_ns: u64,
    pub(crate) waits: bool,
    /// When it last woke.
    pub(crate) woke_ns: u64,
}

/// A rule that was broken, and how it came to that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The rule.
    pub violation: Violation,
    /// The number of the event at which it was noticed.
    pub event: u64,
    /// The last events of the tasks involved, oldest first.
    pub history: Vec<Event>,
}

/// What CPUs did instead of work, by what for, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Looking through domains and queues, and taking locks to move tasks.
    pub balancing_ns: u64,
    /// Filling caches again after a task went to another CPU.
    pub refill_ns: u64,
    /// Switches, and the caches that another address space or too little room has emptied.
    pub switching_ns: u64,
}

impl Overhead {
    /// Adds what one switch took.
    pub(crate) fn add(&mut self, other: Self) {
        self.balancing_ns += other.balancing_ns;
        self.refill_ns += other.refill_ns;
        self.switching_ns += other.switching_ns;
    }

    /// All of it.
    pub fn total_ns(self) -> u64 {
        self.balancing_ns + self.refill_ns + self.switching_ns
    }
}

/// How long CPUs are closed to whoever is urgent: they look for tasks and move them with interrupts off.
/// Who is to wake up at any time finds a CPU within a stretch that takes L in L of all the time, and waits
/// then for half of it; so squares are summed up, in ns^2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Closed {
    /// Of whole stretches.
    pub all_ns2: u64,
    /// Of what they would be if taking locks to move tasks took no time.
    pub looking_ns2: u64,
}

impl Closed {
    /// A stretch of looking, and of holding locks to move tasks.
    pub fn add(&mut self, looking_ns: u64, moving_ns: u64) {
        let square = |ns: u64| ns.saturating_mul(ns);
        self.all_ns2 = self.all_ns2.saturating_add(square(looking_ns + moving_ns));
        self.looking_ns2 = self.looking_ns2.saturating_add(square(looking_ns));
    }
}
