//! The signals that tell a service to end or to log its state, as a descriptor: it waits for them and
//! for its clients in one place.

use std::os::fd::{AsFd, BorrowedFd};

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

/// What a signal tells a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// To end: SIGTERM or SIGINT.
    End,
    /// To log its state: SIGUSR1, which would end a process that does not expect it.
    State,
}

/// The signals of a service.
#[derive(Debug)]
pub struct ServiceSignals(SignalFd);

impl ServiceSignals {
    /// Has them read here from now on, as [`watch_signals`] does.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn watch() -> Result<Self, Errno> {
        let [terminate, interrupt] = END_SIGNALS;
        watch_signals(&[terminate, interrupt, Signal::SIGUSR1]).map(Self)
    }

    /// What the next signal tells, if one came. Never waits.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn read(&self) -> Result<Option<Told>, Errno> {
        let told = |number: u32| {
            if number == Signal::SIGUSR1 as u32 { Told::State } else { Told::End }
        };
        Ok(self.0.read_signal()?.map(|signal| told(signal.ssi_signo)))
    }
}

impl AsFd for ServiceSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
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

    #[test]
    fn a_service_is_told_to_say_its_state_and_to_end() {
        let signals = ServiceSignals::watch().unwrap();
        assert_eq!(signals.read(), Ok(None));
        for (signal, told) in [
            (Signal::SIGUSR1, Told::State),
            (Signal::SIGTERM, Told::End),
            (Signal::SIGINT, Told::End),
        ] {
            raise(signal).unwrap();
            assert_eq!(signals.read(), Ok(Some(told)), "{signal}");
        }
        assert_eq!(signals.read(), Ok(None));
    }
}
