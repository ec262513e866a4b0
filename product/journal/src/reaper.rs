//! Which process adopts orphans of this process: the nearest subreaper above it (prctl(2),
//! PR_SET_CHILD_SUBREAPER), or the namespace's first process. The kernel calls it the reaper.
//!
//! /proc does not name the reaper, so it is tried out: a grandchild reads the number of its
//! new parent after its own has ended. `inheritance` needs it to recognise orphans.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::task::TaskRef;

/// The reaper of this process; `None` if it cannot be found: no process may be forked, or the
/// reaper is outside this PID namespace.
pub(crate) fn find_reaper() -> Option<TaskRef> {
    let mut ends = [0; 2];
    // SAFETY: the kernel fills the two integers that the pointer names.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return None;
    }
    // SAFETY: both were opened just now and have no other owner.
    let (read, write) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: the child calls only what signal-safety(7) allows, and does not return.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return None;
    }
    if child == 0 {
        leave_orphan(write.as_raw_fd());
    }
    drop(write);
    // SAFETY: our own child; no status is asked for.
    while unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } < 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
    {}
    let mut pid = [0; 4];
    File::from(read).read_exact(&mut pid).ok()?;
    TaskRef::of(i32::from_ne_bytes(pid)).ok()
}

/// Body of the child: forks a grandchild and exits. The grandchild writes the number of its new
/// parent to `fd`.
fn leave_orphan(fd: libc::c_int) -> ! {
    // SAFETY: system calls that signal-safety(7) allows, with integers and one buffer of our own.
    unsafe {
        let parent = libc::getpid();
        if libc::fork() == 0 {
            let mut now = libc::getppid();
            while now == parent {
                let nap = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
                libc::nanosleep(&nap, std::ptr::null_mut());
                now = libc::getppid();
            }
            let pid = now.to_ne_bytes();
            libc::write(fd, pid.as_ptr().cast(), pid.len());
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::own_pid;

    #[test]
    fn the_reaper_is_an_ancestor_or_this_process_if_it_is_a_subreaper() {
        let found = find_reaper().unwrap();
        assert!(found.is_alive() && found.tid != own_pid());
        // In a process of its own, so that it does not adopt the other tests' orphans.
        // SAFETY: the child ends by _exit, and takes no lock but the allocator's, which fork leaves
        // usable.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: integers only.
            let is_set = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } == 0;
            let is_own = find_reaper().is_some_and(|reaper| reaper.tid == own_pid());
            // SAFETY: ends this process only.
            unsafe { libc::_exit(if is_set && is_own { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: our own child, and an integer that the kernel fills.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
