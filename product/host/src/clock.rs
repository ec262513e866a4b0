//! The clocks that the balancer reads.

use std::time::Duration;

use evenkeel_capability::TaskId;
use evenkeel_journal::TaskRef;
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};

/// The clock that intervals and deadlines are measured with.
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// The clock of start times: it goes on while the machine is suspended.
pub(crate) fn boottime_ns() -> u64 {
    clock_ns(ClockId::CLOCK_BOOTTIME)
}

fn clock_ns(clock: ClockId) -> u64 {
    clock_gettime(clock).map(Duration::from).unwrap_or_default().as_nanos() as u64
}

/// When a task was started, on [`boottime_ns`]'s clock.
pub(crate) fn start_ns(id: TaskId) -> u64 {
    id.start.saturating_mul(ns_per_tick())
}

/// The same of a process in the journal.
pub(crate) fn started_ns(task: &TaskRef) -> u64 {
    task.start_time_ticks.saturating_mul(ns_per_tick())
}

/// Length of a clock tick, the unit of times in /proc.
pub(crate) fn ns_per_tick() -> u64 {
    1_000_000_000 / procfs::ticks_per_second().max(1)
}

/// CPU time of this process so far.
pub(crate) fn own_cpu_ns() -> u64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0 };
    let ns = |time: nix::sys::time::TimeVal| {
        (time.tv_sec() as u64) * 1_000_000_000 + (time.tv_usec() as u64) * 1000
    };
    ns(usage.user_time()) + ns(usage.system_time())
}

/// CPU time of the calling thread so far.
pub(crate) fn own_thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
