//! What came of a simulation: figures, broken rules, and why it ended.

use std::collections::BTreeMap;

use evenkeel_invariants::{Event, Findings, Violation};
use evenkeel_keel::Tuning;

use crate::topology::Level;

/// How many ops a task may take without working in between.
pub(crate) const MAX_STEPS: u32 = 10_000;

/// The most events, or entries of a tape, that are kept of a simulation: some hundred MiB.
pub const MAX_KEPT: usize = 4_000_000;

/// Why a simulation ended before its workload did.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The kernel would have ended the scheduler.
    #[error("the kernel would have ended the scheduler: {0}")]
    Scheduler(String),
    /// A task loops without working.
    #[error("task {task} took {MAX_STEPS} steps without working: let it run or sleep in its loop")]
    Busy {
        /// Its name.
        task: String,
    },
    /// The limit of events was reached.
    #[error("{0} events have happened, and it is not over: allow more by --max-events")]
    Events(u64),
    /// The record or the tape is full.
    #[error(
        "{MAX_KEPT} events are kept for a trace, a timeline or a tape, and it is not over: simulate \
         less at a time, or without these"
    )]
    Kept,
    /// The simulator itself could not go on.
    #[error("{0}")]
    Host(String),
    /// Tasks sleep, and no planned event will wake one.
    #[error("{waiting} tasks sleep, and nothing will ever wake them: {example} is one")]
    Deadlock {
        /// How many tasks sleep.
        waiting: usize,
        /// The name of one of them.
        example: String,
    },
}

/// A simulation's outcome.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The simulated time.
    pub time_ns: u64,
    /// Events of the engine.
    pub events: u64,
    /// A hash of all events: two simulations share it only if the same happened in both.
    pub hash: u64,
    /// Why it ended before its workload did.
    pub end: Option<End>,
    /// What the checkers found.
    pub findings: Option<Findings>,
    /// The broken rules, each with its history.
    pub broken: Vec<Broken>,
    /// The times of each task, in the workload's order.
    pub accounts: Vec<Account>,
    /// How often a task ran on another CPU than before, by reason and distance.
    pub migrations: BTreeMap<(Reason, Level), u64>,
    /// Switches to a task of the same address space as the task before.
    pub switches_same: u64,
    /// Switches to another address space.
    pub switches_other: u64,
    /// Idle time of CPUs while as many tasks waited, whether these may run there or not.
    pub idle_while_waiting_ns: u64,
    /// Idle time of all CPUs.
    pub idle_ns: u64,
    /// The cost of switches, searches and cold caches.
    pub overhead: Overhead,
    /// How long CPUs balanced with interrupts off.
    pub closed: Closed,
    /// Time that slaves of a group (`Workload::together`) were busy while their master was.
    pub together_ns: u64,
    /// Of that, the time in which they ran the master's address space.
    pub same_space_ns: u64,
    /// Times from a wake-up to the next sleep, by how often each occurred (exact to a 32nd).
    pub responses: BTreeMap<u64, u64>,
    /// Times of waiting for a CPU, by how often each occurred (exact to a 32nd).
    pub waits: BTreeMap<u64, u64>,
    /// Tasks that the scheduler refused in init_task.
    pub unborn: u64,
    /// The frequency that the scheduler last requested for each CPU, 0..=1024. It has no effect here.
    pub frequencies: Vec<u32>,
    /// How often the scheduler was loaded again.
    pub restarts: u64,
    /// Moves of the user-level balancer.
    pub moves: u64,
    /// Runnable tasks at the end, ...
    pub runnable: u64,
    /// ... and how many the scheduler counts, if it does.
    pub believed_runnable: Option<u64>,
    /// Tasks in the keel's sibling index at the end, if the index was used.
    pub listed: Option<u64>,
    /// How often a task waited in another queue, or at another vruntime, than the keel took it to.
    /// Counted at each dispatch, if callbacks interleave.
    pub misplaced: u64,
    /// The scheduler's own counters.
    pub counters: BTreeMap<String, u64>,
    /// Calls of the kernel's functions by the scheduler.
    pub calls: u64,
    /// Entries of DSQs that it looked at.
    pub scanned: u64,
    /// All events, if they were kept.
    pub record: Vec<Event>,
    /// The dump of a scheduler that the kernel would have ended.
    pub dump: String,
    /// The changes of the helper thread of `--ias-auto`, and when it made each.
    pub changes: Vec<(u64, Tuning)>,
}

/// Why a task runs on another CPU than before: the last thing that chose its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It is new.
    Fork,
    /// It woke up.
    Wake,
    /// Its slice ended, and it was enqueued in another CPU's DSQ.
    Requeue,
    /// Another CPU pulled it.
    Pull,
    /// A real-time task had taken its CPU.
    Thief,
    /// The task or a CPU was changed from outside.
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

/// The times of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    /// When it was forked.
    pub arrived_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: Option<u64>,
    /// How long it had a CPU.
    pub ran_ns: u64,
    /// How long it waited for a CPU.
    pub waited_ns: u64,
    /// The work that it did, in ns of a CPU of full capability with near memory and warm caches.
    pub worked_ns: u64,
    /// Since when it runs or waits.
    pub(crate) since_ns: u64,
    pub(crate) waits: bool,
    /// When it last woke.
    pub(crate) woke_ns: u64,
}

/// A broken rule and its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The violation.
    pub violation: Violation,
    /// The number of the event at which it was noticed.
    pub event: u64,
    /// The last events of the tasks involved, oldest first.
    pub history: Vec<Event>,
}

/// The time that CPUs spent on scheduling instead of work, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Searching domains and DSQs, and taking locks to move tasks.
    pub balancing_ns: u64,
    /// Refilling caches after a migration.
    pub refill_ns: u64,
    /// Context switches, and refilling caches that another address space or too little room emptied.
    pub switching_ns: u64,
}

impl Overhead {
    /// Adds what one switch took.
    pub(crate) fn add(&mut self, other: Self) {
        self.balancing_ns += other.balancing_ns;
        self.refill_ns += other.refill_ns;
        self.switching_ns += other.switching_ns;
    }

    /// The sum.
    pub fn total_ns(self) -> u64 {
        self.balancing_ns + self.refill_ns + self.switching_ns
    }
}

/// How long CPUs search for tasks and move them with interrupts off, which delays urgent wake-ups. A
/// wake-up at a random time falls into a closed stretch of length L with a probability in proportion to
/// L, and then waits L/2 on average. So the squares of the stretches are summed, in ns^2.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Closed {
    /// The squares of the stretches.
    pub all_ns2: u64,
    /// The same if taking locks to move tasks took no time.
    pub looking_ns2: u64,
}

impl Closed {
    /// Adds a stretch of searching and of holding locks to move tasks.
    pub fn add(&mut self, looking_ns: u64, moving_ns: u64) {
        let square = |ns: u64| ns.saturating_mul(ns);
        self.all_ns2 = self.all_ns2.saturating_add(square(looking_ns + moving_ns));
        self.looking_ns2 = self.looking_ns2.saturating_add(square(looking_ns));
    }
}
