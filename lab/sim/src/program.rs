//! What tasks do: a small language into which all workloads are translated.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_keel::{Aggregation, Mode, Shield, default_roles, grouped};
use evenkeel_machine::Machine;

use crate::mask::Mask;
use crate::tid::STOPPER;

/// The longest time in a workload: an hour.
pub const MAX_NS: u64 = 3_600_000_000_000;

/// A time in ns, from text like `250ns`, `5us`, `10ms` or `2s`; at most [`MAX_NS`].
pub fn parse_time(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let unit_ns = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let ns = number.parse::<u64>().ok()?.checked_mul(unit_ns)?;
    (ns <= MAX_NS).then_some(ns)
}

/// One step of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Work that takes this many ns on a CPU of full capability with warm caches and near memory.
    Run(u64),
    /// Work for a time that is drawn anew each time, exponentially distributed with this mean in ns.
    RunAbout(u64),
    /// Sleep for this many ns.
    Sleep(u64),
    /// Sleep for a time that is drawn as in [`Op::RunAbout`].
    SleepAbout(u64),
    /// Sleep until one period after this timer of the task last expired.
    Timer {
        /// Which of the task's timers.
        timer: usize,
        /// Its period.
        period_ns: u64,
    },
    /// Wait until all members have reached this barrier.
    Barrier(usize),
    /// Lock a mutex.
    Lock(usize),
    /// Unlock a mutex.
    Unlock(usize),
    /// Wait for a signal of a condition, and release the mutex meanwhile, if one is named. (The
    /// translation adds an [`Op::Lock`] behind it.)
    Wait {
        /// The condition.
        condition: usize,
        /// The mutex that is released.
        mutex: Option<usize>,
    },
    /// Wake one task that waits for a condition, if there is one.
    Signal(usize),
    /// Wake all tasks that wait for a condition.
    Broadcast(usize),
    /// Put an item into a channel: wakes one task that waits for it.
    Send(usize),
    /// Take an item out of a channel; wait until there is one.
    Receive(usize),
    /// Yield the CPU.
    Yield,
    /// Set its own mask.
    Affinity(Arc<Mask>),
    /// Set its own nice value.
    Nice(i32),
    /// Set its own scheduling policy.
    Policy(Policy),
    /// Become another program: from now on it has this address space. Its process keeps its number.
    Exec(u32),
    /// Fork the task of this number in the workload.
    Fork(usize),
    /// Begin to exit: from now on the task's cgroup counts as empty and can be removed. The ops that
    /// follow are its last work.
    BeginExit,
    /// Go back to an op this many times; then go on, and reset the count.
    Repeat {
        /// The op.
        to: usize,
        /// How many times.
        times: u64,
    },
    /// Go to an op, always.
    Goto(usize),
}

/// The scheduling policies that every user may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// `SCHED_OTHER`.
    Other,
    /// `SCHED_BATCH`: sched_ext treats it like `SCHED_OTHER`.
    Batch,
    /// `SCHED_IDLE`: the least weight, whatever the nice value.
    Idle,
}

/// A task and what it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPlan {
    /// Its name in reports.
    pub name: Arc<str>,
    /// Its ops. After the last one it exits.
    pub ops: Arc<[Op]>,
    /// When it is forked; `None`: another task forks it.
    pub arrives_ns: Option<u64>,
    /// Its address space: tasks of the same number share one; [`KERNEL`]: it has none.
    pub space: u32,
    /// Nice value, -20 to 19.
    pub nice: i32,
    /// Its mask; `None`: all CPUs.
    pub allowed: Option<Arc<Mask>>,
    /// How much of its speed depends on its memory, in percent.
    pub memory_pct: u8,
    /// The node of its memory; `None`: the node where it first runs.
    pub home: Option<u32>,
    /// What the kernel says of that node.
    pub told: Told,
    /// Its cgroup, by number; 0: the root.
    pub group: usize,
    /// The memory that all threads of its address space write to; none: too little to matter.
    pub memory: Option<SharedMemory>,
}

/// When the kernel names the node of a task's memory (`numa_preferred_nid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// At its fork, if the node is known then.
    AtFork,
    /// When it has lived for a while, as its page faults are counted: perhaps a wrong one.
    Later {
        /// How long after it first ran.
        after_ns: u64,
        /// The node that is named.
        node: u32,
    },
}

/// Memory that all threads of an address space write, repeatedly from its beginning to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMemory {
    /// Its size.
    pub kib: u32,
    /// How much a thread writes in 1 ms of work.
    pub kib_per_ms: u32,
}

/// The address space of kernel threads: they have none of their own and use the one that ran before
/// them.
pub const KERNEL: u32 = u32::MAX;

impl TaskPlan {
    /// A task with defaults that is forked at the start.
    pub fn new(name: impl Into<Arc<str>>, ops: Vec<Op>) -> Self {
        Self {
            name: name.into(),
            ops: ops.into(),
            arrives_ns: Some(0),
            space: 0,
            nice: 0,
            allowed: None,
            memory_pct: 100,
            home: None,
            told: Told::AtFork,
            group: 0,
            memory: None,
        }
    }
}

/// A cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlan {
    /// Its name.
    pub name: String,
    /// cpu.weight, 1 to 10000.
    pub weight: u32,
    /// Its parent by number; 0: the root.
    pub parent: usize,
}

/// A task of a higher class that takes a CPU periodically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thief {
    /// The CPU.
    pub cpu: u32,
    /// For how long each time.
    pub run_ns: u64,
    /// Its period.
    pub period_ns: u64,
    /// When it first takes the CPU.
    pub from_ns: u64,
}

/// Periodic interrupts on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupts {
    /// The CPU.
    pub cpu: u32,
    /// How long each takes.
    pub run_ns: u64,
    /// Their period.
    pub period_ns: u64,
}

/// A change of a task, a cgroup or a CPU from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A CPU goes online or offline.
    Hotplug {
        /// The CPU.
        cpu: u32,
        /// Whether it goes online.
        online: bool,
    },
    /// A CPU has another capability from now on.
    Capability {
        /// The CPU.
        cpu: u32,
        /// 0..=1024; at least 1.
        capability: u32,
    },
    /// User space tells the keel that this much is left of each CPU, 0..=1024, true or not. (Ignored
    /// unless the keel uses measured capabilities.)
    Told(Vec<u32>),
    /// From now on these CPUs run only tasks that may run nowhere else.
    Shield(Shield),
    /// A task gets another mask.
    Affinity {
        /// By its place in the workload.
        task: usize,
        /// The CPUs.
        allowed: Arc<Mask>,
    },
    /// A task gets another nice value.
    Nice {
        /// By its place in the workload.
        task: usize,
        /// -20 to 19.
        nice: i32,
    },
    /// A task moves to another cgroup.
    Group {
        /// By its place in the workload.
        task: usize,
        /// By its number.
        group: usize,
    },
    /// A cgroup gets another weight.
    Weight {
        /// By its number.
        group: usize,
        /// 1 to 10000.
        weight: u32,
    },
    /// An empty cgroup is removed, and created again under the same name.
    Renew {
        /// By its number.
        group: usize,
    },
}

impl Workload {
    /// The tasks of higher classes, in the order of their numbers in events: real-time tasks, then
    /// deadline tasks.
    pub(crate) fn higher(&self) -> impl Iterator<Item = &Thief> {
        self.thieves.iter().chain(&self.deadlines)
    }

    /// Whether this is the number of a deadline task.
    pub(crate) fn is_deadline(&self, index: u16) -> bool {
        usize::from(index) >= self.thieves.len() && index != STOPPER
    }

    /// The role of each CPU, as set_ias_alloc would assign it. (Workload::check() has checked the
    /// groups. If CPUs have gone offline since, the default groups of this mode hold.)
    pub(crate) fn roles(&self, machine: &Machine, mode: Mode) -> BTreeMap<u32, u16> {
        let own = self.together.as_deref().and_then(|groups| grouped(machine, groups).ok());
        match own {
            Some(roles) => machine.online().iter().zip(roles).collect(),
            None => default_roles(machine, mode),
        }
    }

    /// Lets all programs aggregate like this (its `pid` is ignored), or none.
    pub fn aggregate(&mut self, how: Option<Aggregation>) {
        let spaces = self.tasks.iter().map(|task| task.space);
        let mut spaces: Vec<u32> = spaces.filter(|space| *space != KERNEL).collect();
        spaces.sort_unstable();
        spaces.dedup();
        let each = |space| how.map(|how| Aggregation { pid: space + 1, ..how });
        self.aggregations = spaces.into_iter().filter_map(each).collect();
    }
}

/// Everything that happens on a simulated machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    /// Its name in reports.
    pub name: String,
    /// All tasks, including those that other tasks fork.
    pub tasks: Vec<TaskPlan>,
    /// The number of members of each barrier.
    pub barriers: Vec<u32>,
    /// The number of mutexes.
    pub mutexes: usize,
    /// The number of conditions.
    pub conditions: usize,
    /// The number of channels.
    pub channels: usize,
    /// The cgroups from number 1 on. The root has number 0 and is not listed.
    pub groups: Vec<GroupPlan>,
    /// The address spaces that aggregate under the order `ias`. The pid of a space is its number plus 1.
    pub aggregations: Vec<Aggregation>,
    /// Of these, by pid, the ones that an ordinary user has set; root has set the others.
    pub ordinary: Vec<u32>,
    /// The groups of CPUs that aggregate together, as in `evenkeel ias alloc --groups`; none: CPUs that
    /// share a last-level cache.
    pub together: Option<String>,
    /// Real-time tasks.
    pub thieves: Vec<Thief>,
    /// Deadline tasks: they take a CPU as real-time tasks do, and from these, too.
    pub deadlines: Vec<Thief>,
    /// Interrupts.
    pub interrupts: Vec<Interrupts>,
    /// Changes from outside, and when they are made.
    pub changes: Vec<(u64, Change)>,
    /// When the simulation ends at the latest; 0: when all tasks have ended.
    pub duration_ns: u64,
}
