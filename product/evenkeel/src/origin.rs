//! The state that the process was started with. The Rust runtime ignores SIGPIPE and opens closed
//! standard streams before `main`, but the command of `evenkeel run` must inherit them unchanged. So
//! they are noted before the runtime starts.

use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_host::Origin;

static SIGPIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = {
    extern "C" fn note() {
        // SAFETY: an all-zero sigaction is a valid place for the answer; no disposition changes.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action);
            action
        };
        SIGPIPE_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
        for (fd, closed) in (0..).zip(&CLOSED) {
            // SAFETY: asks about a descriptor by number, and fails if there is none.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            closed.store(flags < 0, Ordering::Relaxed);
        }
    }
    note
};

/// The state that this process was started with.
pub fn origin() -> Origin {
    Origin {
        sigpipe_ignored: SIGPIPE_IGNORED.load(Ordering::Relaxed),
        closed: CLOSED.each_ref().map(|closed| closed.load(Ordering::Relaxed)),
    }
}
