//! The numbers of tasks in events: those of the workload, real-time and deadline tasks, and stopper
//! threads.

/// The number of a task of the workload in events. 0 is the idle task.
pub(crate) fn tid(task: u32) -> u32 {
    task + 1
}

/// Real-time tasks have the numbers from here on, then deadline tasks, ...
pub(crate) const THIEF_TIDS: u32 = 1 << 30;
/// ... and so has each CPU's stopper thread, which takes running tasks off that CPU. It is in the
/// highest class. As a task of a higher class it has this index.
pub(crate) const STOPPER: u16 = u16::MAX;
const STOPPER_TIDS: u32 = THIEF_TIDS + (1 << 16);

/// The number of the task of a higher class of this index, or of this CPU's stopper thread.
pub(crate) fn thief_tid(thief: u16, cpu: u32) -> u32 {
    if thief == STOPPER { STOPPER_TIDS + cpu } else { THIEF_TIDS + u32::from(thief) }
}
