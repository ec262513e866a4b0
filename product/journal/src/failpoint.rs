//! Failpoints, for tests: the process kills itself with SIGKILL right after its n-th write, rename or
//! removal of a journal, affinity call, or change of a setting.
//!
//! Only [`arm`] arms them: no environment variable is read, so nothing that a user inherits can. The
//! tests of this crate call it in a child process; the executable has a hidden flag for its
//! end-to-end tests (`evenkeel run --abort-at N`), which calls it before the session is opened. A test
//! increases n from 1 until a run is not killed: then each failpoint has killed the process once.
//!
//! While it is not armed, a failpoint costs one relaxed load.

use std::sync::atomic::{AtomicU64, Ordering};

/// Hits left until the process kills itself; 0: not armed.
static HITS_LEFT: AtomicU64 = AtomicU64::new(0);

/// Makes this process kill itself at the `n`-th failpoint that it reaches from now on; 0 disarms.
pub fn arm(n: u64) {
    HITS_LEFT.store(n, Ordering::SeqCst);
}

/// A failpoint. `name` says in the log which one it was.
pub(crate) fn hit(name: &str) {
    if HITS_LEFT.load(Ordering::Relaxed) == 0 {
        return;
    }
    if HITS_LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        tracing::debug!(failpoint = name, "killing this process, as armed");
        // SAFETY: kill takes two integers and touches no memory of ours.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        // SIGKILL cannot be blocked, but it may be delivered to the process a moment later.
        std::process::abort();
    }
}
