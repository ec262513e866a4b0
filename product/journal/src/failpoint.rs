//! Dying on purpose, for fault tests: the process kills itself with SIGKILL right after its n-th
//! journal write (also: rename, removal) or affinity call.
//!
//! A process arms itself by [`arm`], and nothing else does: no environment variable is read, so
//! nothing that a user inherits can set it off. Tests of this crate call `arm` in their child
//! process; the real binary offers a hidden flag for its end-to-end tests
//! (`evenkeel run --abort-at N`) that calls it before the session is opened. A test counts n up
//! from 1 until a run ends without having been killed: then it has died at every point once.
//!
//! Unarmed, a point costs one relaxed load.

use std::sync::atomic::{AtomicU64, Ordering};

/// Hits left until the process dies; 0 = unarmed.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Makes this process kill itself (SIGKILL) at the `n`-th failpoint that it reaches from now on;
/// 0 disarms. For tests only.
pub fn arm(n: u64) {
    LEFT.store(n, Ordering::SeqCst);
}

/// One point. `name` says in a debugger or trace which one it was.
pub(crate) fn hit(name: &str) {
    if LEFT.load(Ordering::Relaxed) == 0 {
        return;
    }
    if LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        tracing::debug!(failpoint = name, "killing this process, as armed");
        // SAFETY: kill takes two integers and touches no memory of ours.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        // SIGKILL cannot be blocked, but it may be delivered to the process a moment later.
        std::process::abort();
    }
}
