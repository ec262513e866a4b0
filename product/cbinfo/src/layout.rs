//! The layouts of `bpf/cbinfo/cbinfo.h`, and the accounts that the rest of evenkeel sees of them.

use bytemuck::{Pod, Zeroable};

/// `enum cpu_activity`: what a CPU's time is divided into.
const ACTIVITIES: usize = 6;
/// The most ranges of text in which the threads of one process wait.
pub const MAX_WAIT_RANGES: usize = 16;
const IDLE: usize = 0;
const FOREIGN: usize = 1;
const FOLLOWED: usize = 2;
const RT: usize = 3;
const SOFTIRQ: usize = 4;
const IRQ: usize = 5;

/// `struct cpu_account` of `bpf/cbinfo/cbinfo.h`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawCpu {
    pub sequence: u64,
    pub since_ns: u64,
    pub activity: u64,
    pub current_tid: u64,
    pub sum_ns: [u64; ACTIVITIES],
    pub fair_runnable_ns: u64,
    pub rt_runnable_ns: u64,
    pub fair_runnable: u64,
    pub rt_runnable: u64,
    pub switched_ns: u64,
    pub followed_at_switch_ns: u64,
    pub stolen_at_switch_ns: u64,
    pub steal_at_switch_ns: u64,
    pub steal_ns: u64,
    pub steal_base_ns: u64,
    pub in_softirq: u64,
    pub events: u64,
    pub lost_events: u64,
    pub speed: u64,
    pub task_activity: u64,
    pub looked_ns: u64,
    pub pad: [u64; 6],
}

/// `struct task_reading` of `bpf/cbinfo/cbinfo.h`, its `struct task_account` flattened.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawTask {
    tid: u64,
    pub tgid: u64,
    start_boottime_ns: u64,
    cpu: u64,
    running: u64,
    runnable: u64,
    vruntime: u64,
    now_ns: u64,
    pub whole: u64,
    program: u64,
    run_ns: u64,
    stolen_ns: u64,
    received_ns: u64,
    wait_ns: u64,
    waiting_since_ns: u64,
    awake_since_ns: u64,
    sleeps: u64,
    samples: u64,
    spun: u64,
    changes: u64,
    spins: u64,
}

/// `struct wake_word` of `bpf/cbinfo/cbinfo.h`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawWakeWord {
    pub address: u64,
    pub tgid: u32,
    pub program: u32,
}

/// `struct sampled_place` of `bpf/cbinfo/cbinfo.h`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawPlace {
    pub address: u64,
    pub tid: u32,
    pub cpu: u32,
}

/// `struct wait_ranges` of `bpf/cbinfo/cbinfo.h`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawWaitRanges {
    pub count: u64,
    pub ranges: [[u64; 2]; MAX_WAIT_RANGES],
}

/// `struct barrier_process` of `bpf/cbinfo/cbinfo.h`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawBarrierProcess {
    pub program: u64,
    pub words: u64,
}

/// `struct task_event` of `bpf/cbinfo/cbinfo.h`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawEvent {
    kind: u64,
    tid: u64,
    tgid: u64,
    parent_tid: u64,
}

/// `struct cbinfo_settings` of `bpf/cbinfo/cbinfo.h`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawSettings {
    pub follow_tgid: u32,
    pub follow_program: u32,
    pub urgent_events: u32,
    pub interrupt_cost_ns: u32,
}

/// CPU time that something took from the tasks, by cause, in nanoseconds since the start of
/// accounting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Noise {
    /// Hardware interrupt handlers.
    pub irq_ns: u64,
    /// Softirqs, in whatever context they ran (ksoftirqd's included).
    pub softirq_ns: u64,
    /// Real-time, deadline and stop-class tasks.
    pub rt_ns: u64,
    /// What the hypervisor gave to others: the kernel's own figure, never exact.
    pub steal_ns: u64,
}

impl Noise {
    /// All causes together.
    pub fn total_ns(&self) -> u64 {
        self.irq_ns + self.softirq_ns + self.rt_ns + self.steal_ns
    }
}

/// Where one CPU's time went since the start of accounting, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuAccount {
    /// Logical CPU number.
    pub cpu: u32,
    /// Time taken from the tasks.
    pub noise: Noise,
    /// Time without a task to run.
    pub idle_ns: u64,
    /// Fair-class tasks of followed programs (steal included).
    pub followed_ns: u64,
    /// Other fair-class tasks (steal included).
    pub foreign_ns: u64,
    /// Runnable fair-class tasks, the running one included, integrated over time: task-nanoseconds.
    pub fair_runnable_ns: u64,
    /// The same for real-time and deadline tasks.
    pub rt_runnable_ns: u64,
    /// Events accounted on this CPU.
    pub events: u64,
    /// Task events that were lost because the ring buffer was full.
    pub lost_events: u64,
}

impl CpuAccount {
    /// The account up to `now_ns` (CLOCK_MONOTONIC): the stretch that is still open is included.
    pub(crate) fn from_raw(cpu: u32, raw: &RawCpu, now_ns: u64) -> Self {
        let mut sum = raw.sum_ns;
        if let Some(open) = sum.get_mut(raw.activity as usize) {
            *open += now_ns.saturating_sub(raw.since_ns);
        }
        let since_switch_ns =
            if raw.switched_ns == 0 { 0 } else { now_ns.saturating_sub(raw.switched_ns) };
        Self {
            cpu,
            noise: Noise {
                irq_ns: sum[IRQ],
                softirq_ns: sum[SOFTIRQ],
                rt_ns: sum[RT],
                steal_ns: raw.steal_ns,
            },
            idle_ns: sum[IDLE],
            followed_ns: sum[FOLLOWED],
            foreign_ns: sum[FOREIGN],
            fair_runnable_ns: raw.fair_runnable_ns + raw.fair_runnable * since_switch_ns,
            rt_runnable_ns: raw.rt_runnable_ns + raw.rt_runnable * since_switch_ns,
            events: raw.events,
            lost_events: raw.lost_events,
        }
    }
}

/// What a task of a followed program got since it is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskAccount {
    /// Thread id.
    pub tid: u32,
    /// Process (thread group) id.
    pub tgid: u32,
    /// The program that it belongs to, as given to [`crate::Cbinfo::follow`].
    pub program: u32,
    /// When the thread was started, in nanoseconds since boot: tells a reused thread id apart.
    pub start_boottime_ns: u64,
    /// The CPU that it is on, or was on last.
    pub cpu: u32,
    /// Whether it is on a CPU now.
    pub running: bool,
    /// Whether it runs or waits for a CPU.
    pub runnable: bool,
    /// Its vruntime in the fair class, in ns: the smaller runs first.
    pub vruntime: u64,
    /// Time on a CPU in ns, without what irq, softirq and steal took meanwhile.
    pub run_ns: u64,
    /// What irq, softirq and steal took while it was on a CPU, in ns.
    pub stolen_ns: u64,
    /// `run_ns`, each part weighted with the relative speed (n/1024) of its CPU.
    pub received_ns: u64,
    /// Time runnable but not running, in ns.
    pub wait_ns: u64,
    /// How often it went to sleep; sleeps with less than 5 ms in between are one.
    pub sleeps: u64,
    /// How often it was found on a CPU while [`crate::Waiting::start_sampling`] was in force.
    pub samples: u64,
    /// How many of these found it waiting for other tasks: it spun, or yielded.
    pub spun: u64,
    /// How many of them found otherwise than the one before: it worked, and now it waits, or it goes on.
    pub changes: u64,
    /// The time of this account: ns of `CLOCK_MONOTONIC`.
    pub now_ns: u64,
}

impl From<&RawTask> for TaskAccount {
    fn from(raw: &RawTask) -> Self {
        Self {
            tid: raw.tid as u32,
            tgid: raw.tgid as u32,
            program: raw.program as u32,
            start_boottime_ns: raw.start_boottime_ns,
            cpu: raw.cpu as u32,
            running: raw.running != 0,
            runnable: raw.runnable != 0,
            vruntime: raw.vruntime,
            run_ns: raw.run_ns,
            stolen_ns: raw.stolen_ns,
            received_ns: raw.received_ns,
            wait_ns: raw.wait_ns,
            sleeps: raw.sleeps,
            samples: raw.samples,
            spun: raw.spun,
            changes: raw.changes,
            now_ns: raw.now_ns,
        }
    }
}

/// Something that a task of a followed program did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskEvent {
    /// A thread or process was forked; it has the affinity of the thread that forked it.
    Fork {
        /// The new thread id.
        tid: u32,
        /// Its process; equal to `tid` for a new process.
        tgid: u32,
        /// The thread that forked it.
        parent_tid: u32,
    },
    /// A process called exec(2).
    Exec {
        /// Its process.
        tgid: u32,
    },
    /// A thread ended.
    Exit {
        /// Its thread id.
        tid: u32,
    },
}

impl TaskEvent {
    /// `None` for a kind that no version of `cbinfo.bpf.c` writes.
    pub(crate) fn from_raw(raw: &RawEvent) -> Option<Self> {
        let (tid, tgid) = (raw.tid as u32, raw.tgid as u32);
        match raw.kind {
            0 => Some(Self::Fork { tid, tgid, parent_tid: raw.parent_tid as u32 }),
            1 => Some(Self::Exec { tgid }),
            2 => Some(Self::Exit { tid }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> RawCpu {
        let mut raw = RawCpu::zeroed();
        raw.sum_ns = [10, 20, 30, 40, 50, 60];
        raw.since_ns = 1_000;
        raw.switched_ns = 900;
        raw.fair_runnable = 2;
        raw.fair_runnable_ns = 7;
        raw
    }

    #[test]
    fn layouts_match_the_header() {
        assert_eq!(size_of::<RawCpu>(), 256);
        assert_eq!(size_of::<RawTask>(), 21 * 8);
        assert_eq!(size_of::<RawEvent>(), 4 * 8);
        assert_eq!(size_of::<RawWakeWord>(), 2 * 8);
        assert_eq!(size_of::<RawWaitRanges>(), 33 * 8);
        assert_eq!(size_of::<RawBarrierProcess>(), 2 * 8);
    }

    #[test]
    fn the_open_stretch_belongs_to_its_activity() {
        let mut raw = raw();
        raw.activity = SOFTIRQ as u64;
        let account = CpuAccount::from_raw(3, &raw, 1_100);
        assert_eq!(account.noise, Noise { irq_ns: 60, softirq_ns: 150, rt_ns: 40, steal_ns: 0 });
        assert_eq!((account.idle_ns, account.foreign_ns, account.followed_ns), (10, 20, 30));
        assert_eq!(account.fair_runnable_ns, 7 + 2 * 200);
    }

    #[test]
    fn an_event_newer_than_the_clock_reading_adds_nothing() {
        let account = CpuAccount::from_raw(0, &raw(), 950);
        assert_eq!(account.idle_ns, 10);
    }
}
