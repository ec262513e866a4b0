//! What a policy sees of the machine and the program: one value, taken at the end of an interval.

use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a parallel region ends and the next one begins, a task sleeps twice within a moment: sleeps
/// with less than this in between are one, in nanoseconds. (`bpf/cbinfo/cbinfo.h` has the same.)
pub const ONE_SLEEP_NS: u64 = 5_000_000;

/// Share of the interval that a task must want a CPU to count as a compute task: 1/10.
const ACTIVE_SHARE: u64 = 10;

/// A task. The start time tells it from a later task with the same thread id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// Thread id.
    pub tid: u32,
    /// When it was started, in clock ticks or nanoseconds since boot (one unit per source).
    pub start: u64,
}

/// One CPU that the program may use, over the interval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuView {
    /// Logical CPU number.
    pub cpu: u32,
    /// Number of its physical core: CPUs with the same number are SMT siblings.
    pub core: u32,
    /// NUMA node that it belongs to; 0 on a machine with one node.
    pub node: u32,
    /// Relative speed, 1..=1024: the fastest CPU of the machine has 1024 (paper: BogoMIPS).
    pub speed: u32,
    /// Its place among the CPUs of the machine by the energy that its work needs: 0 needs the least.
    /// None where that is not known, or all are alike.
    #[serde(default)]
    pub energy_rank: Option<u32>,
    /// Time that irq, softirq and steal took in the interval (paper: Noise_Time).
    pub noise_ns: u64,
    /// Time that real-time and deadline tasks took.
    pub rt_ns: u64,
    /// Time without a task to run.
    pub idle_ns: u64,
    /// Runnable fair-class tasks of *other* programs, averaged over the interval, in thousandths.
    pub foreign_milli: u32,
    /// Runnable real-time tasks, averaged over the interval, in thousandths.
    pub rt_milli: u32,
}

/// One task of the program, over the interval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    /// The task.
    pub id: TaskId,
    /// Process that it belongs to.
    pub process: u32,
    /// CPU that it is on.
    pub cpu: u32,
    /// Its place in that CPU's runqueue: the smallest runs first (vruntime).
    pub queue: u64,
    /// Time on a CPU in the interval, less the time that irq, softirq and steal took meanwhile.
    pub run_ns: u64,
    /// Part of `run_ns` in which it waited for other tasks by spinning: an estimate by samples; 0 where
    /// that is not seen.
    #[serde(default)]
    pub spun_ns: u64,
    /// Samples of its run time that `spun_ns` rests on; 0 where it rests on none.
    #[serde(default)]
    pub samples: u32,
    /// How many of these samples found otherwise than the one before: it worked, and now spins, or it
    /// goes on.
    #[serde(default)]
    pub changes: u32,
    /// `run_ns` weighted by the speed (n/1024) of the CPUs that it ran on.
    pub received_ns: u64,
    /// Time that irq, softirq and steal took while it was on a CPU.
    pub stolen_ns: u64,
    /// Time runnable, but not running.
    pub wait_ns: u64,
    /// How often it went to sleep; sleeps with less than [`ONE_SLEEP_NS`] in between are one, where
    /// that can be told.
    pub sleeps: u32,
    /// Wants a CPU at this moment.
    pub runnable: bool,
    /// CPUs that its mask and its cpuset allow.
    pub allowed: CpuSet,
    /// It must not be moved: its user pinned it, or its mask cannot be set. It still counts as load.
    pub fixed: bool,
    /// Memory that it referenced in the interval, where known (`cache` selection).
    pub working_set_bytes: Option<u64>,
}

/// What could be seen of the program's waiting in the interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Spinning can be told from work in this interval.
    pub spinning: bool,
    /// It cannot yet, but the tasks are sampled: once they have been on unlike CPUs, it may be told.
    #[serde(default)]
    pub may_be_told: bool,
    /// Tasks were found to wait in other places than before: what was taken for their work until now may
    /// have been waiting.
    #[serde(default)]
    pub redefined: bool,
    /// All tasks that compute are threads that the user asked for, more of them than there are CPUs.
    /// Those that wait sleep, and a split of them is held.
    #[serde(default)]
    pub asked: bool,
    /// Barriers that the program passed while they were counted; none where they were not.
    pub barriers: Option<Barriers>,
}

/// Barriers that a program passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Barriers {
    /// How many.
    pub count: u32,
    /// The time in which they were counted: a part of the interval.
    pub observed_ns: u64,
}

/// The interval that just ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its measured length, > 0.
    pub interval_ns: u64,
    /// CPUs that the program may use.
    pub cpus: Vec<CpuView>,
    /// Its tasks.
    pub tasks: Vec<TaskView>,
    /// What could be seen of its waiting.
    #[serde(default)]
    pub seen: Seen,
}

/// A snapshot that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// No time has passed.
    #[error("the interval is empty: a snapshot covers at least one nanosecond")]
    EmptyInterval,
    /// The same CPU twice.
    #[error("CPU {0} is listed twice: list each CPU once")]
    DuplicateCpu(u32),
    /// The same task twice.
    #[error("task {0} is listed twice: list each task once")]
    DuplicateTask(u32),
    /// Out of range.
    #[error("CPU {cpu} has speed {speed}: speeds are 1..=1024")]
    Speed {
        /// The CPU.
        cpu: u32,
        /// The value found.
        speed: u32,
    },
}

impl TaskView {
    /// Time in the interval in which it was runnable.
    pub fn demand_ns(&self) -> u64 {
        self.run_ns.saturating_add(self.stolen_ns).saturating_add(self.wait_ns)
    }

    /// Whether it wanted a CPU often enough in an interval to count as a compute task.
    pub fn computes(&self, interval_ns: u64) -> bool {
        self.demand_ns().saturating_mul(ACTIVE_SHARE) >= interval_ns
    }

    /// Whether it may be moved to `cpu`.
    pub fn may_go_to(&self, cpu: u32) -> bool {
        !self.fixed && self.cpu != cpu && self.allowed.contains(cpu)
    }
}

impl Snapshot {
    /// Checks the properties that every policy relies on.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.interval_ns == 0 {
            return Err(Invalid::EmptyInterval);
        }
        // By sorting: a hash set is seeded at random, so the reported duplicate would vary.
        let mut cpus: Vec<(u32, u32)> = self.cpus.iter().map(|cpu| (cpu.cpu, cpu.speed)).collect();
        cpus.sort_unstable();
        for (index, &(cpu, speed)) in cpus.iter().enumerate() {
            if index > 0 && cpus[index - 1].0 == cpu {
                return Err(Invalid::DuplicateCpu(cpu));
            }
            if !(1..=1024).contains(&speed) {
                return Err(Invalid::Speed { cpu, speed });
            }
        }
        let mut tasks: Vec<TaskId> = self.tasks.iter().map(|task| task.id).collect();
        tasks.sort_unstable();
        match tasks.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Invalid::DuplicateTask(pair[0].tid)),
            None => Ok(()),
        }
    }
}
