//! The sleep between two intervals.

use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};

/// Waits until one of `fds` is readable or `limit` has passed; a signal ends the wait early.
pub(crate) fn wait_readable(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> Result<(), Errno> {
    // Round up: a wait that ends too early only repeats.
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        let ms = limit.as_nanos().div_ceil(1_000_000);
        PollTimeout::try_from(i32::try_from(ms).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::MAX)
    });
    match poll(fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}
