//! Waits that end with SIGTERM and SIGINT: a command takes back what it moved first.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signalfd::SignalFd;

/// Waits this long; true: a signal came.
pub fn is_told_to_end(signals: &SignalFd, interval: Duration) -> Result<bool> {
    let end = Instant::now() + interval;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut readable = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        // Rounded up: a last part of a millisecond is not spent spinning.
        let patience = left + Duration::from_millis(1);
        match poll(&mut readable, PollTimeout::try_from(patience).unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(why) => return Err(why.into()),
        }
        if signals.read_signal()?.is_some() {
            return Ok(true);
        }
    }
}
