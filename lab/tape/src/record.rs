//! Runs the keel on this machine with a recorder attached, from its first callback to its end. Nothing
//! else tells the keel anything meanwhile: there is no control socket, nothing aggregates, and
//! capabilities stay as they are. So the tape holds every input of the keel's decisions.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use evenkeel_control::{END_SIGNALS, watch_signals};
use evenkeel_keel::{Exit, LoadError, Options, Scheduler, ShieldError};
use evenkeel_machine::Machine;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::recorder::{Recorder, RecorderError};

/// How often the recorder's buffer is emptied.
const INTERVAL: Duration = Duration::from_millis(100);

/// Why the keel cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The keel cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// These CPUs cannot be shielded.
    #[error(transparent)]
    Shield(#[from] ShieldError),
    /// The recorder failed, or the tape cannot be written.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    /// The keel was to be told something while it runs, by this option: that would not be on the tape.
    #[error("--ias-auto: what it tells the keel is not on a tape; record without it")]
    IasAuto,
    /// Signals cannot be waited for.
    #[error("cannot wait for signals: {0}")]
    System(#[from] Errno),
}

/// Runs the keel until SIGTERM or SIGINT, and then writes the tape. Returns the kernel's reason where
/// the kernel ended the keel earlier: then there is no tape.
///
/// # Errors
/// All of [`RecordError`].
pub fn record(
    machine: &Machine,
    options: &Options,
    path: &Path,
) -> Result<Option<Exit>, RecordError> {
    if options.ias.auto {
        return Err(RecordError::IasAuto);
    }
    options.shield.check(machine)?;
    let signals = watch_signals(&END_SIGNALS)?;
    let mut scheduler = Scheduler::load(machine, options)?;
    let recorder = Recorder::attach(&scheduler, machine, options)?;
    scheduler.attach()?;
    loop {
        let mut readable = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let patience = PollTimeout::try_from(INTERVAL).unwrap_or(PollTimeout::ZERO);
        match poll(&mut readable, patience) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(why) => return Err(why.into()),
        }
        recorder.empty_buffer()?;
        if signals.read_signal()?.is_some() {
            break;
        }
        if let Some(exit) = scheduler.exit() {
            return Ok(Some(exit));
        }
    }
    scheduler.detach();
    recorder.write_tape(path)?;
    Ok(None)
}
