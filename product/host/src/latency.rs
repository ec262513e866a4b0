//! Scheduling latency of the balancer itself. A soft move pins a task until the balancer gives its mask
//! back, and a child of a pinned thread sees one CPU until the balancer frees it. On a busy CPU the
//! balancer may lose the CPU in between, for a whole slice of another task (about 3 ms). Two means keep
//! that short, and neither needs a privilege:
//!
//! - Short slices for the balancer, so that its deadline is the earlier one (EEVDF, Linux 6.12; older
//!   kernels ignore it). Its share of the CPU stays the same.
//! - A task is moved from its own CPU ([`Visits`]). While the balancer runs there, the task waits and
//!   migrates at once. A *running* task has to wait for the kernel's migration thread, and the balancer
//!   sleeps until then and queues for a CPU again.

use evenkeel_journal::affinity::{self, Original};
use evenkeel_journal::mask_in_cpuset;
use evenkeel_machine::CpuSet;
use nix::errno::Errno;

/// The shortest slice that the kernel grants.
const SLICE_NS: u64 = 100_000;

/// The first version of the kernel's `struct sched_attr`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Asks for short slices for the calling thread, if it is of the fair class. Children inherit them, so
/// call it after the command was started.
pub(crate) fn ask_for_short_slices() -> Result<(), Errno> {
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>() as u32;
    // SAFETY: the kernel writes at most `size` bytes into the structure, which lives across the
    // call; 0 is the calling thread.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0)
    })?;
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.size = size;
    attributes.runtime_ns = SLICE_NS;
    // SAFETY: the kernel reads `size` bytes from the structure, which lives across the call.
    Errno::result(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })?;
    Ok(())
}

/// The calling thread goes from CPU to CPU. Dropped, it gives the thread its own mask back.
pub(crate) struct Visits {
    tid: i32,
    mask: CpuSet,
    own: Original,
}

impl Visits {
    /// Moves the calling thread to a first CPU. `None` where its mask forbids that: the move that
    /// follows then only takes longer.
    pub(crate) fn begin(cpu: u32) -> Option<Self> {
        let tid = nix::unistd::gettid().as_raw();
        let (mask, effective) = mask_in_cpuset(tid).ok()?;
        let visits = Self { tid, own: Original::of(&mask, &effective), mask };
        visits.go_on(cpu).then_some(visits)
    }

    /// Moves it to the next one. False where its mask forbids that: it stays where it is.
    pub(crate) fn go_on(&self, cpu: u32) -> bool {
        let only = std::iter::once(cpu).collect();
        self.mask.contains(cpu) && affinity::set(self.tid, &only).is_ok()
    }
}

impl Drop for Visits {
    fn drop(&mut self) {
        if let Err(error) = self.own.give_back(self.tid) {
            tracing::warn!("evenkeel itself stays pinned to one CPU: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_slices_are_granted_or_ignored() {
        // On a thread of its own, which keeps the attribute.
        std::thread::spawn(|| ask_for_short_slices().unwrap()).join().unwrap();
    }

    #[test]
    fn visits_whose_mask_became_impossible_end_in_the_cpuset() {
        let visitor = || {
            let tid = nix::unistd::gettid().as_raw();
            let (own, cpuset) = mask_in_cpuset(tid).unwrap();
            let mut visits = Visits::begin(own.iter().next().unwrap()).unwrap();
            // As if the cpuset had other CPUs when they began.
            visits.own = Original::Mask(std::iter::once(8000).collect());
            drop(visits);
            assert_eq!(affinity::get(tid).unwrap(), cpuset);
        };
        std::thread::spawn(visitor).join().unwrap();
    }

    #[test]
    fn visits_end_in_the_own_mask() {
        let visitor = || {
            let own = affinity::get(nix::unistd::gettid().as_raw()).unwrap();
            let visits = Visits::begin(own.iter().next().unwrap()).unwrap();
            for cpu in own.iter() {
                assert!(visits.go_on(cpu));
                let now = affinity::get(visits.tid).unwrap();
                assert_eq!(now, std::iter::once(cpu).collect());
            }
            assert!(!visits.go_on(8000));
            drop(visits);
            assert_eq!(affinity::get(nix::unistd::gettid().as_raw()).unwrap(), own);
            assert!(Visits::begin(8000).is_none());
        };
        std::thread::spawn(visitor).join().unwrap();
    }
}
