//! What the model keeps of tasks, CPUs and cgroups: `task_struct`, `rq` and `cgroup`.

use std::collections::VecDeque;
use std::sync::Arc;

use rand_xoshiro::Xoshiro256PlusPlus;

use crate::abi::{RawGroup, RawNode, RawTask};
use crate::dsq::Place;
use crate::mask::Mask;
use crate::outcome::Reason;
use crate::program::{Op, SharedMemory};

use super::times::{CpuTimes, TaskTimes};

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Not born yet.
    New,
    Asleep,
    /// Woken, not in a runqueue yet.
    Waking,
    /// In a runqueue, and does not run.
    Waits,
    Runs,
    Dead,
}

/// In which queue a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    None,
    /// A CPU's local queue: the task's own CPU.
    Local,
    /// A queue of the scheduler's, or the global one.
    Dsq(usize, Place),
}

/// A dispatch that was asked for in select_cpu or enqueue, done at the end of that.
#[derive(Debug, Clone, Copy)]
pub(super) struct Direct {
    pub(super) dsq: u64,
    pub(super) vtime: u64,
    pub(super) is_ordered: bool,
}

/// All of them are made at the start and stay where they are, because the scheduler is given the
/// addresses of `raw` and `allowed`. In the order of use: with many tasks, each line of the cache that
/// an event touches is fetched from far away.
#[repr(C, align(64))]
pub(super) struct Task {
    pub(super) raw: RawTask,
    /// What is left of its stretch of work, in 2^-FRACTION ns.
    pub(super) work: u64,
    pub(super) queue: Queue,
    pub(super) life: Life,
    /// Why it is where it is.
    pub(super) reason: Reason,
    /// How often it has slept: a wake-up that was planned for another sleep is void.
    pub(super) sleeps: u32,
    /// When it was last put into a runqueue or stopped: what the watchdog goes by.
    pub(super) runnable_at: u64,
    pub(super) ops: Arc<[Op]>,
    pub(super) at: usize,
    /// Its own random numbers, so that what it does does not depend on who else is there.
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
    pub(super) group: usize,
    /// How often each Repeat has gone back, by its place.
    pub(super) repeats: Vec<(usize, u64)>,
    pub(super) timers: Vec<u64>,
    /// How often it has sent or received: what a kernel counts as writing and reading.
    pub(super) calls: u64,
    pub(super) allowed: Mask,
}

#[derive(Debug, Default)]
pub(super) struct Cpu {
    pub(super) online: bool,
    pub(super) curr: Option<u32>,
    pub(super) local: VecDeque<u32>,
    /// Somebody's callbacks hold its lock (only seen where others may come in between).
    pub(super) locks: u32,
    /// Callbacks run on it, with interrupts off.
    pub(super) callbacks: u32,
    pub(super) resched: bool,
    pub(super) in_balance: bool,
    /// The scheduler was told that a higher class has the CPU.
    pub(super) released: bool,
    /// Real-time tasks that want it, and the one that has it.
    pub(super) thieves: Vec<u16>,
    pub(super) thief: Option<u16>,
    /// Since when the one that has it does.
    pub(super) thief_since: u64,
    pub(super) tick_planned: bool,
    /// When who runs there is done at the earliest, as planned; earlier plans are void.
    pub(super) planned: Option<u64>,
    /// Up to when time has been accounted.
    pub(super) since: u64,
    /// To be spent on what is no work.
    pub(super) overhead_ns: u64,
    /// Of the stretch in which it cannot be interrupted: looking for tasks, and moving them.
    pub(super) looking_ns: u64,
    pub(super) moving_ns: u64,
    pub(super) interrupt_ns: u64,
    /// Progress in 2^-FRACTION ns for each ns.
    pub(super) rate: u64,
    pub(super) capability: u32,
    /// What the scheduler asked for last, of FULL_FREQUENCY.
    pub(super) frequency: u32,
    /// The address space that ran here last.
    pub(super) space: Option<u32>,
    /// Where the search for an idle CPU went on to last.
    pub(super) distributed: u32,
    pub(super) times: CpuTimes,
}

impl Cpu {
    /// Whether nothing can happen on it now.
    pub(super) fn is_held(&self) -> bool {
        self.locks > 0 || self.callbacks > 0
    }
}

pub(super) struct Group {
    pub(super) raw: Box<RawGroup>,
    pub(super) node: Box<RawNode>,
    /// The one that it is in; none for the root.
    pub(super) parent: Option<usize>,
    pub(super) weight: u32,
}
