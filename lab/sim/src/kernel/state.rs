//! What the model keeps of tasks, CPUs and cgroups: `task_struct`, `rq` and `cgroup`.

use std::collections::VecDeque;
use std::sync::Arc;

use rand_xoshiro::Xoshiro256PlusPlus;

use crate::abi::{RawGroup, RawNode, RawTask};
use crate::dsq::Place;
use crate::mask::Mask;
use crate::outcome::Reason;
use crate::program::{Op, Policy, SharedMemory};

use super::times::{CpuTimes, TaskTimes};

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Not forked yet.
    New,
    Asleep,
    /// Woken, but not in a runqueue yet.
    Waking,
    /// In a runqueue, and not running.
    Waits,
    Runs,
    Dead,
}

/// The queue that a task is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    None,
    /// The local DSQ of the task's CPU.
    Local,
    /// A DSQ of the scheduler, or the global one.
    Dsq(usize, Place),
}

/// A direct dispatch: requested in select_cpu or enqueue, done when that returns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Direct {
    pub(super) dsq: u64,
    pub(super) vtime: u64,
    pub(super) is_ordered: bool,
}

/// A task. All tasks are made at boot and never move in memory, because the scheduler gets the
/// addresses of `raw` and `allowed`. Fields are in the order of use: with many tasks, each cache line
/// that an event touches is a miss.
#[repr(C, align(64))]
pub(super) struct Task {
    pub(super) raw: RawTask,
    /// The remaining work of its stretch, in 2^-FRACTION ns.
    pub(super) work: u64,
    pub(super) queue: Queue,
    pub(super) life: Life,
    /// What last chose its CPU.
    pub(super) reason: Reason,
    /// How often it has slept: a wake-up that was planned for an earlier sleep is void.
    pub(super) sleeps: u32,
    /// When it last became runnable or stopped running, for the watchdog.
    pub(super) runnable_at: u64,
    pub(super) ops: Arc<[Op]>,
    pub(super) at: usize,
    /// Its own random numbers, so that what it does does not depend on other tasks.
    pub(super) rng: Xoshiro256PlusPlus,
    /// The CPU that it last ran on.
    pub(super) last_cpu: Option<u32>,
    pub(super) home: Option<u32>,
    pub(super) space: u32,
    pub(super) memory_pct: u32,
    pub(super) memory: Option<SharedMemory>,
    pub(super) times: TaskTimes,
    pub(super) direct: Option<Direct>,
    pub(super) nice: i32,
    pub(super) policy: Policy,
    pub(super) group: usize,
    /// It has begun to exit.
    pub(super) exits: bool,
    /// How often each Repeat has gone back, by its index.
    pub(super) repeats: Vec<(usize, u64)>,
    pub(super) timers: Vec<u64>,
    /// How often it has sent or received: the kernel would count these as write and read calls.
    pub(super) calls: u64,
    pub(super) allowed: Mask,
}

#[derive(Debug, Default)]
pub(super) struct Cpu {
    pub(super) online: bool,
    pub(super) curr: Option<u32>,
    pub(super) local: VecDeque<u32>,
    /// How many handlers hold its lock (only observable with interleaving).
    pub(super) locks: u32,
    /// How many callbacks run on it, with interrupts off.
    pub(super) callbacks: u32,
    pub(super) resched: bool,
    pub(super) in_balance: bool,
    /// The scheduler was told by cpu_release that a higher class has the CPU.
    pub(super) released: bool,
    /// Runnable tasks of higher classes, the highest first, and the one that runs.
    pub(super) thieves: Vec<u16>,
    pub(super) thief: Option<u16>,
    /// Since when that one runs.
    pub(super) thief_since: u64,
    pub(super) tick_planned: bool,
    /// When the running task completes its stretch, as planned last; earlier plans are void.
    pub(super) planned: Option<u64>,
    /// The time up to which run time is accounted.
    pub(super) since: u64,
    /// Overhead that the running task still has to pay before it makes progress.
    pub(super) overhead_ns: u64,
    /// The current stretch with interrupts off: time of searching for tasks, and of moving them.
    pub(super) looking_ns: u64,
    pub(super) moving_ns: u64,
    pub(super) interrupt_ns: u64,
    /// Progress in 2^-FRACTION ns per ns.
    pub(super) rate: u64,
    pub(super) capability: u32,
    /// The frequency that the scheduler last requested, 0..=FULL_FREQUENCY.
    pub(super) frequency: u32,
    /// The address space that ran here last.
    pub(super) space: Option<u32>,
    /// The CPU that the last search for an idle CPU found.
    pub(super) distributed: u32,
    pub(super) times: CpuTimes,
}

impl Cpu {
    /// Whether its lock is held or a callback runs on it: then other events must wait.
    pub(super) fn is_held(&self) -> bool {
        self.locks > 0 || self.callbacks > 0
    }
}

pub(super) struct Group {
    pub(super) raw: Box<RawGroup>,
    pub(super) node: Box<RawNode>,
    /// Its parent; none for the root.
    pub(super) parent: Option<usize>,
    pub(super) weight: u32,
}
