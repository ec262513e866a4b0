//! The signals that tell a service to end, as a descriptor: it waits for them and for its clients in one
//! place.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// What tells a service to end.
pub const END_SIGNALS: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

/// Blocks these signals in this thread, and in the threads that it starts from now on, and gives a
/// descriptor that reads them. Reading never waits; poll(2) does.
///
/// # Errors
/// There is no descriptor left.
pub fn watch_signals(signals: &[Signal]) -> Result<SignalFd, Errno> {
    let watched: SigSet = signals.iter().copied().collect();
    watched.thread_block()?;
    SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use nix::sys::signal::raise;

    #[test]
    fn a_signal_is_read_once_and_ends_nothing() {
        let signals = watch_signals(&[Signal::SIGUSR1]).unwrap();
        assert!(signals.read_signal().unwrap().is_none());
        // To this thread: raise(3) is pthread_kill(3) of the caller.
        raise(Signal::SIGUSR1).unwrap();
        let read = signals.read_signal().unwrap().unwrap();
        assert_eq!(read.ssi_signo, Signal::SIGUSR1 as u32);
        assert!(signals.read_signal().unwrap().is_none());
    }
}
