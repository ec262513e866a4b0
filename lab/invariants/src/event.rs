//! The events of a stream: what happens to tasks and CPUs, one event at a time.

use evenkeel_machine::CpuSet;

/// A thread's number.
pub type Tid = u32;

/// The number of every CPU's idle task.
pub const IDLE: Tid = 0;

/// Something that happened to a task or a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// On a clock that all CPUs share.
    pub time_ns: u64,
    /// The CPU that it happened on.
    pub cpu: u32,
    /// What it was.
    pub what: What,
}

/// How a task was when it left its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Still runnable: it was preempted or its slice ended.
    Runnable,
    /// Asleep: it waits for something other than a CPU.
    Asleep,
    /// It will never run again.
    Dead,
}

/// How a task competes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// By its weight (1024: nice 0).
    Fair {
        /// Its share is in proportion to its weight, ...
        weight: u32,
        /// ... among the tasks of its cgroup. 0: the root. How other groups share among each other is
        /// known only of those that a [`What::Group`] names.
        group: u64,
    },
    /// Real-time, deadline or idle priority: not by a fair scheduler's rules.
    Other,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A task that slept becomes runnable. (A wake-up of a task that does not sleep means nothing.)
    Wakeup {
        /// The wakee.
        task: Tid,
    },
    /// A context switch from one task to another.
    Switch {
        /// The task that ran.
        prev: Tid,
        /// How it left.
        left: Left,
        /// All CPU time that the kernel has charged it with so far.
        charged_ns: u64,
        /// The task that runs from now on.
        next: Tid,
    },
    /// A task that does not run was migrated to another CPU's runqueue.
    Migrate {
        /// The task.
        task: Tid,
        /// The destination CPU.
        to: u32,
    },
    /// From now on a task may run on these CPUs only.
    Affinity {
        /// The task.
        task: Tid,
        /// All CPUs that it may run on.
        allowed: CpuSet,
    },
    /// When its mask was set, a task was about to wake, and the CPU where it does was already chosen.
    Waking {
        /// The task.
        task: Tid,
        /// The CPU.
        on: u32,
    },
    /// From now on a task competes like this.
    Class {
        /// The task.
        task: Tid,
        /// How it competes.
        class: Class,
    },
    /// From now on a cgroup competes in its parent like one task of this weight.
    Group {
        /// Its number; never 0.
        group: u64,
        /// Its parent's.
        parent: u64,
        /// In a task's units (1024: cpu.weight 100).
        weight: u32,
    },
    /// From now on these CPUs run only tasks that may run nowhere else.
    Shield {
        /// All shielded CPUs.
        cpus: CpuSet,
    },
    /// A new task.
    Fork {
        /// Its number.
        child: Tid,
    },
    /// A task has begun to end; it still runs for a while.
    Exit {
        /// The task.
        task: Tid,
    },
}

/// Weights of nice -20 to 19 (kernel: sched_prio_to_weight): each step is worth a quarter.
const WEIGHTS: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
    3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87,
    70, 56, 45, 36, 29, 23, 18, 15,
];

/// The weight of a nice value; one that does not exist counts as the nearest.
pub fn weight_of_nice(nice: i32) -> u32 {
    WEIGHTS[(nice.clamp(-20, 19) + 20) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_nice_step_changes_the_weight_by_a_quarter() {
        assert_eq!(weight_of_nice(0), 1024);
        for nice in -20..19 {
            let (more, less) = (weight_of_nice(nice), weight_of_nice(nice + 1));
            let ratio = f64::from(more) / f64::from(less);
            assert!((1.18..1.32).contains(&ratio), "nice {nice}: {ratio}");
        }
        assert_eq!(weight_of_nice(100), weight_of_nice(19));
    }
}
