//! Ctrl-C and its kind: noted, so that what runs can be ended and cleaned up in order.
//!
//! Handlers, not blocked signals: a blocked signal would stay blocked in every program that is
//! started meanwhile, a handler becomes the default there.

use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Result, bail};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

const WATCHED: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

static ASKED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    ASKED.store(signal, Ordering::Relaxed);
}

/// Signals are noted as long as this lives.
#[derive(Debug)]
pub struct Watch {
    previous: Vec<(Signal, SigAction)>,
}

/// Notes signals from now on, instead of dying of them. A signal that was ignored at the start (`nohup`)
/// stays ignored.
pub fn watch() -> Watch {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    let mut previous = Vec::new();
    for signal in WATCHED {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        let Ok(old) = (unsafe { sigaction(signal, &action) }) else { continue };
        if matches!(old.handler(), SigHandler::SigIgn) {
            // SAFETY: puts back the disposition that was there a moment ago.
            let _ = unsafe { sigaction(signal, &old) };
        } else {
            previous.push((signal, old));
        }
    }
    Watch { previous }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (signal, action) in &self.previous {
            // SAFETY: puts back the disposition that was there before.
            let _ = unsafe { sigaction(*signal, action) };
        }
    }
}

/// The signal that asked for the end, if one did.
pub fn asked() -> Option<i32> {
    match ASKED.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}

/// An error once a signal has asked for the end.
///
/// # Errors
/// Names the signal.
pub fn check() -> Result<()> {
    match asked().map(Signal::try_from) {
        Some(Ok(signal)) => bail!("ended by {signal}"),
        Some(Err(_)) => bail!("ended by a signal"),
        None => Ok(()),
    }
}

/// What a shell would exit with: 128 + n after signal n, else 0.
pub fn exit_code() -> i32 {
    asked().map_or(0, |signal| 128 + signal)
}
