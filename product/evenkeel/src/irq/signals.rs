//! Waits that end with SIGTERM and SIGINT: a command takes back what it moved first. SIGUSR1 has it say
//! its state.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_control::{ServiceSignals, Told};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Waits this long; true: a signal came that ends the command. `state` is logged at each SIGUSR1.
pub fn is_told_to_end(
    signals: &ServiceSignals,
    interval: Duration,
    state: impl Fn() -> String,
) -> Result<bool> {
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
        match signals.read()? {
            Some(Told::End) => return Ok(true),
            // Whatever the level of the log is: it was asked for.
            Some(Told::State) => tracing::warn!("SIGUSR1: {}", state()),
            None => {}
        }
    }
}
