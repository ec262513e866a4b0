//! What tasks do: a small language that all workloads are translated into.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_keel::{Aggregation, Image, Shield, grouped};
use evenkeel_machine::Machine;

use crate::mask::Mask;

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
    /// Work for so many ns of a CPU of full capability with warm caches and near memory.
    Run(u64),
    /// The same for a time drawn anew each time, exponentially distributed around this mean.
    RunAbout(u64),
    /// Sleep for so many ns.
    Sleep(u64),
    /// The same for a time drawn as with [`Op::RunAbout`].
    SleepAbout(u64),
    /// Sleep until a period after the last time that this timer of the task went off.
    Timer {
        /// Which of the task's timers.
        timer: usize,
        /// In ns.
        period_ns: u64,
    },
    /// Wait until as many tasks have come here as take part.
    Barrier(usize),
    /// Get a mutex.
    Lock(usize),
    /// Give it back.
    Unlock(usize),
    /// Wait for a signal of this condition, without the mutex meanwhile, if one is named. (The
    /// translation lets [`Op::Lock`] follow.)
    Wait {
        /// The condition.
        condition: usize,
        /// The mutex that is given back.
        mutex: Option<usize>,
    },
    /// Wake one who waits for a condition, if there is any.
    Signal(usize),
    /// Wake all who wait for it.
    Broadcast(usize),
    /// Put something into a channel: wakes one who waits for it.
    Send(usize),
    /// Take something out of a channel; wait until there is something.
    Receive(usize),
    /// Let others run.
    Yield,
    /// From now on run on these CPUs only.
    Affinity(Arc<Mask>),
    /// From now on have this nice value.
    Nice(i32),
    /// Start a task; it gets the program of this number.
    Fork(usize),
    /// Go back to an op, so many times; then on, and the count begins anew.
    Repeat {
        /// The op.
        to: usize,
        /// How often.
        times: u64,
    },
    /// Go to an op, for ever.
    Goto(usize),
}

/// A task and what it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPlan {
    /// What reports call it.
    pub name: Arc<str>,
    /// What it does; it ends at the end.
    pub ops: Arc<[Op]>,
    /// When it comes; `None`: when another task forks it.
    pub arrives_ns: Option<u64>,
    /// Tasks of the same number share an address space; [`KERNEL`]: it has none.
    pub space: u32,
    /// Nice value, -20 to 19.
    pub nice: i32,
    /// Where it may run; `None`: everywhere.
    pub allowed: Option<Arc<Mask>>,
    /// How much of its speed depends on its memory, in percent.
    pub memory_pct: u8,
    /// The node that its memory is on; `None`: the one where it first runs.
    pub home: Option<u32>,
    /// Its cgroup, by number; 0: the root.
    pub group: usize,
    /// The memory that the threads of its address space write to, all to the same; none that counts.
    pub memory: Option<SharedMemory>,
}

/// Memory that all threads of an address space use, over and over from its beginning to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMemory {
    /// Its size.
    pub kib: u32,
    /// What a thread writes in a ms of work.
    pub kib_per_ms: u32,
}

/// The address space of kernel threads, which use the one that they find.
pub const KERNEL: u32 = u32::MAX;

impl TaskPlan {
    /// A task of the default kind that comes at the start.
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
            group: 0,
            memory: None,
        }
    }
}

/// A cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlan {
    /// What it is called.
    pub name: String,
    /// cpu.weight, 1 to 10000.
    pub weight: u32,
    /// The group that it is in, by number; 0: the root.
    pub parent: usize,
}

/// A real-time task that takes a CPU now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thief {
    /// The CPU.
    pub cpu: u32,
    /// Each time for so long.
    pub run_ns: u64,
    /// So often.
    pub period_ns: u64,
    /// The first time.
    pub from_ns: u64,
}

/// Interrupts on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupts {
    /// The CPU.
    pub cpu: u32,
    /// Each takes so long.
    pub run_ns: u64,
    /// One comes so often.
    pub period_ns: u64,
}

/// Something that somebody does to the machine or to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A CPU comes or goes.
    Hotplug {
        /// The CPU.
        cpu: u32,
        /// Whether it comes.
        online: bool,
    },
    /// A CPU is faster or slower from now on.
    Capability {
        /// The CPU.
        cpu: u32,
        /// 0..=1024; at least 1.
        capability: u32,
    },
    /// A scheduler that wants to know is told that so much is left of each CPU, 0..=1024, whatever it
    /// really does.
    Told(Vec<u32>),
    /// From now on these CPUs take only who may run nowhere else.
    Shield(Shield),
    /// A task may run on these CPUs only.
    Affinity {
        /// By its place in the workload.
        task: usize,
        /// The CPUs.
        allowed: Arc<Mask>,
    },
    /// A task has another nice value.
    Nice {
        /// By its place in the workload.
        task: usize,
        /// -20 to 19.
        nice: i32,
    },
    /// A task goes to another cgroup.
    Group {
        /// By its place in the workload.
        task: usize,
        /// By its number.
        group: usize,
    },
    /// A cgroup has another weight.
    Weight {
        /// By its number.
        group: usize,
        /// 1 to 10000.
        weight: u32,
    },
    /// A cgroup that has neither tasks nor groups in it is removed, and made anew.
    Renew {
        /// By its number.
        group: usize,
    },
}

impl Workload {
    /// The role of each CPU, as set_ias_alloc would have it. (That the groups are possible is checked with
    /// the workload; where CPUs have gone meanwhile, those that share a cache are a group.)
    pub(crate) fn roles(&self, machine: &Machine) -> BTreeMap<u32, u16> {
        let own = self.together.as_deref().and_then(|groups| grouped(machine, groups).ok());
        match own {
            Some(roles) => machine.online().iter().zip(roles).collect(),
            None => Image::default_roles(machine),
        }
    }

    /// Lets all programs aggregate so (its `pid` does not count), or none.
    pub fn aggregate(&mut self, how: Option<Aggregation>) {
        let spaces = self.tasks.iter().map(|task| task.space);
        let mut spaces: Vec<u32> = spaces.filter(|space| *space != KERNEL).collect();
        spaces.sort_unstable();
        spaces.dedup();
        let each = |space| how.map(|how| Aggregation { pid: space + 1, ..how });
        self.aggregations = spaces.into_iter().filter_map(each).collect();
    }
}

/// Everything that happens on a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    /// What reports call it.
    pub name: String,
    /// All tasks that there will be, those that others fork included.
    pub tasks: Vec<TaskPlan>,
    /// How many tasks take part in each barrier.
    pub barriers: Vec<u32>,
    /// How many mutexes there are.
    pub mutexes: usize,
    /// How many conditions there are.
    pub conditions: usize,
    /// How many channels there are.
    pub channels: usize,
    /// cgroups; the root, which has number 0, is not listed.
    pub groups: Vec<GroupPlan>,
    /// Address spaces whose threads aggregate under the order `ias`: process numbers are 1 + that of the
    /// space.
    pub aggregations: Vec<Aggregation>,
    /// CPUs that aggregate together, as `evenkeel ias alloc --groups` takes them; none: those that share
    /// a last-level cache.
    pub together: Option<String>,
    /// Real-time tasks.
    pub thieves: Vec<Thief>,
    /// Interrupts.
    pub interrupts: Vec<Interrupts>,
    /// What is changed when.
    pub changes: Vec<(u64, Change)>,
    /// When it is over at the latest; 0: when all tasks have ended.
    pub duration_ns: u64,
}
