//! Processes as a request names them: a descriptor that stands for one, and its user.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use procfs::process::Process;

use super::error::IasError;

/// The user that runs a process.
pub(super) fn user_of(pid: u32) -> Result<u32, IasError> {
    let status = Process::new(pid as i32).and_then(|process| process.status());
    status.map(|status| status.ruid).map_err(|_| IasError::NoProcess(pid))
}

/// A descriptor that stands for the process for good, whatever process has its number later.
pub(super) fn open_process(pid: u32) -> Result<OwnedFd, IasError> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = Errno::result(fd).map_err(|why| IasError::of_pidfd(pid, why))?;
    // SAFETY: the descriptor was opened just now, and is ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether the process of a descriptor has ended: then the descriptor can be read.
pub(super) fn is_gone(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_thread_nor_a_number_that_is_free_is_a_process() {
        assert!(open_process(std::process::id()).is_ok());
        let is_none = |pid: u32| matches!(open_process(pid), Err(IasError::NoProcess(_)));
        // The kernel gives only smaller numbers.
        assert!(is_none(4_194_304));
        let thread = std::thread::spawn(move || is_none(nix::unistd::gettid().as_raw() as u32));
        assert!(thread.join().unwrap());
    }
}
