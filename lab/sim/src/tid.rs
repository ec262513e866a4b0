//! The numbers of tasks in events: those of the workload, real-time tasks, and stopper threads.

/// A task's number for whoever watches.
pub(crate) fn tid(task: u32) -> u32 {
    task + 1
}

/// Real-time tasks have numbers of their own, ...
pub(crate) const THIEF_TIDS: u32 = 1 << 30;
/// ... and so has the kernel's own thread on each CPU that moves tasks which run there: it is above
/// all classes.
pub(crate) const STOPPER: u16 = u16::MAX;
const STOPPER_TIDS: u32 = THIEF_TIDS + (1 << 16);

/// Who a higher class has on this CPU.
pub(crate) fn thief_tid(thief: u16, cpu: u32) -> u32 {
    if thief == STOPPER { STOPPER_TIDS + cpu } else { THIEF_TIDS + u32::from(thief) }
}
