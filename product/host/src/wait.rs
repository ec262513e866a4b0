//! The sleep between two intervals.

use std::thread::sleep;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};

/// How long a wait lasts that the kernel refuses.
const REFUSED: Duration = Duration::from_millis(100);

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

/// The same beside a command that runs: where the kernel refuses the wait, for want of memory or by a
/// limit, the caller looks again soon. It must not end before the command does.
pub(crate) fn wait_beside_command(fds: &mut [PollFd<'_>], limit: Option<Duration>) {
    if let Err(why) = wait_readable(fds, limit) {
        tracing::debug!("poll: {why}");
        sleep(limit.map_or(REFUSED, |limit| limit.min(REFUSED)));
    }
}
