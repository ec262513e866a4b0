//! What an interrupt costs a CPU outside its tracepoints.
//!
//! Between the moment when the CPU leaves a task for an interrupt and the tracepoint that says so
//! lie the entry code, in a virtual machine the exits to the hypervisor and back, and after the
//! last tracepoint the way to the task again: 1 µs on bare metal, several µs in a virtual machine.
//! At 10,000 interrupts a second that is a large part of a CPU. No tracepoint encloses it, so it is
//! measured apart: a timer interrupts this thread, which does nothing but read the clock, and of
//! each gap that it sees the part that was accounted is taken off.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::accounting::monotonic_ns;

/// From the start of the timer to its interrupt.
const PERIOD_NS: i64 = 50_000;
/// Nothing was seen for so long, in ns: the interrupt came while we did not look.
const MISSED_NS: u64 = 4 * PERIOD_NS as u64;
/// So many gaps are enough.
const GAPS: usize = 24;
/// What no measurement takes longer than, in ns; one that nobody disturbs takes 2 ms.
const LONGEST_NS: u64 = 50_000_000;
/// Two readings of the clock lie less apart than this, in ns, and no interrupt is as short.
const SHORTEST_GAP_NS: u64 = 500;
/// Fewer gaps say nothing.
const MIN_GAPS: usize = 12;
/// A larger cost, in ns, is a mistake of the measurement.
const MAX_COST_NS: u64 = 50_000;

/// The cost of an interrupt in ns: the lower quartile of two dozen, since what disturbs them mostly
/// adds. `None` where no timer can be had or too few interrupts were seen. `stolen_ns` gives what was
/// accounted so far as interrupts and softirqs of a CPU.
pub(crate) fn measure(stolen_ns: impl Fn(u32) -> u64) -> Option<u64> {
    let timer = create_timer()?;
    let mut costs = Vec::new();
    let mut cpu = current_cpu()?;
    let mut accounted = stolen_ns(cpu);
    start(&timer)?;
    let mut last = monotonic_ns();
    let (mut started, end) = (last, last + LONGEST_NS);
    while last < end && costs.len() < GAPS {
        let now = monotonic_ns();
        let gap = now - last;
        last = now;
        if gap < SHORTEST_GAP_NS && now - started < MISSED_NS {
            continue;
        }
        let (cpu_before, accounted_before) = (cpu, accounted);
        cpu = current_cpu()?;
        accounted = stolen_ns(cpu);
        let seen = accounted.saturating_sub(accounted_before);
        let is_here = cpu == cpu_before;
        if is_here && seen > 0 && gap >= SHORTEST_GAP_NS {
            costs.push(gap.saturating_sub(seen));
        }
        if is_here && seen == 0 && now - started < MISSED_NS {
            // A slow clock, or something else than an interrupt: the timer still runs.
            last = monotonic_ns();
            continue;
        }
        start(&timer)?;
        // What that took is no gap.
        last = monotonic_ns();
        started = last;
    }
    costs.sort_unstable();
    let quartile = costs.get(costs.len() / 4).copied();
    quartile.filter(|cost| costs.len() >= MIN_GAPS && *cost <= MAX_COST_NS)
}

fn current_cpu() -> Option<u32> {
    // SAFETY: takes nothing.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// A timer that wakes nobody.
fn create_timer() -> Option<OwnedFd> {
    // SAFETY: a plain system call; a non-negative result is a descriptor that we own.
    unsafe {
        let fd =
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Lets the timer interrupt this CPU, once, a period from now: a periodic one comes at its own times,
/// also while we do not look, and then waits to be read.
fn start(timer: &OwnedFd) -> Option<()> {
    let once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let period = libc::timespec { tv_sec: 0, tv_nsec: PERIOD_NS };
    let when = libc::itimerspec { it_interval: once, it_value: period };
    // SAFETY: the kernel reads the one itimerspec that the pointer names.
    let failed =
        unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &when, std::ptr::null_mut()) };
    (failed == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_accounted_is_taken_off() {
        // Nothing was accounted, so no gap is known to be an interrupt.
        assert_eq!(measure(|_| 0), None);
        // More was accounted than any gap is long.
        let accounted = std::cell::Cell::new(0);
        let cost = measure(|_| {
            accounted.set(accounted.get() + 1_000_000_000);
            accounted.get()
        });
        assert!(matches!(cost, None | Some(0)), "{cost:?}");
        // Almost nothing was: then the cost is a whole interrupt.
        let cost = measure(|_| {
            accounted.set(accounted.get() + 1);
            accounted.get()
        });
        assert!(cost.is_none_or(|cost| cost >= SHORTEST_GAP_NS - 1), "{cost:?}");
    }

    /// A periodic timer that fired while nobody looked was silent from then on: on a slow host every
    /// third measurement failed.
    #[test]
    fn an_interrupt_that_was_missed_does_not_end_the_measurement() {
        const TIMES: usize = 50;
        let measured = || {
            let accounted = std::cell::Cell::new(0);
            measure(|_| {
                accounted.set(accounted.get() + 1);
                accounted.get()
            })
        };
        let known = (0..TIMES).filter(|_| measured().is_some()).count();
        // Some meet a machine that is busy with others, or whose host is.
        assert!(known >= TIMES * 5 / 6, "{known} of {TIMES}");
    }
}
