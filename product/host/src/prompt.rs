//! Being run promptly. A soft move is a pin for as long as it takes us to give the mask back, and
//! a child of a pinned thread sees one CPU until we free it. On busy CPUs that is not the few
//! microseconds of the calls but a whole time slice of whoever runs there (about 3 ms). Two means
//! against it, neither of which needs privilege:
//!
//! - we ask for short slices of our own, so that our deadline is the earlier one (EEVDF, Linux
//!   6.12; older kernels ignore it). Our share of the CPU stays the same;
//! - a thread is moved from its own CPU ([`Visit`]): while we run there it only waits, and is moved
//!   at once. A running one is moved by the kernel's migration thread, while we sleep and then
//!   queue for a CPU.

use evenkeel_journal::affinity::{self, Original};
use evenkeel_journal::mask_in_cpuset;
use nix::errno::Errno;

/// The shortest that the kernel grants.
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

/// Asks for short time slices for the calling thread, if it is an ordinary one. Its children
/// inherit them: to be called after the command was started.
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

/// The calling thread's stay on a CPU; it may use all of its own CPUs again when this is dropped.
pub(crate) struct Visit {
    tid: i32,
    own: Original,
}

impl Visit {
    /// Goes there. `None` if it may not be: then the move takes longer, and that is all.
    pub(crate) fn to(cpu: u32) -> Option<Self> {
        let tid = nix::unistd::gettid().as_raw();
        let (mask, effective) = mask_in_cpuset(tid).ok()?;
        if !mask.contains(cpu) {
            return None;
        }
        affinity::set(tid, &std::iter::once(cpu).collect()).ok()?;
        Some(Self { tid, own: Original::of(&mask, &effective) })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Err(error) = self.own.give_back(self.tid) {
            tracing::warn!("evenkeel stays on one CPU: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_granted_or_ignored() {
        // On a thread of its own: the attribute stays with it.
        std::thread::spawn(|| ask_for_short_slices().unwrap()).join().unwrap();
    }

    #[test]
    fn where_nobody_may_be_any_more_nobody_stays() {
        let visitor = || {
            let tid = nix::unistd::gettid().as_raw();
            let (own, cpuset) = mask_in_cpuset(tid).unwrap();
            let mut visit = Visit::to(own.iter().next().unwrap()).unwrap();
            // As if its cpuset had had other CPUs before.
            visit.own = Original::Mask(std::iter::once(8000).collect());
            drop(visit);
            assert_eq!(affinity::get(tid).unwrap(), cpuset);
        };
        std::thread::spawn(visitor).join().unwrap();
    }

    #[test]
    fn a_visit_ends() {
        let visitor = || {
            let own = affinity::get(nix::unistd::gettid().as_raw()).unwrap();
            for cpu in own.iter() {
                let visit = Visit::to(cpu).unwrap();
                let now = affinity::get(visit.tid).unwrap();
                assert_eq!(now, std::iter::once(cpu).collect());
                drop(visit);
                assert_eq!(affinity::get(nix::unistd::gettid().as_raw()).unwrap(), own);
            }
            assert!(Visit::to(8000).is_none());
        };
        std::thread::spawn(visitor).join().unwrap();
    }
}
