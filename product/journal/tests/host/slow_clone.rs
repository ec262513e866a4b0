//! A slow fork: clone(2) stops in the middle, after the child has its parent's mask and before it has a
//! start time. (On a busy machine the parent may be migrated at that moment, and wait for its new CPU.)
//! It stops at a page fault that userfaultfd(2) holds back: the kernel is to write to that page.

use std::io::{Error, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// From the kernel's include/uapi/linux/userfaultfd.h; libc does not have them.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const REGISTER_MODE_MISSING: u64 = 1;

/// A page that stops every thread that touches it.
struct Trap {
    /// Its address.
    page: usize,
    bytes: usize,
    fd: OwnedFd,
}

impl Trap {
    fn new() -> Result<Self, Error> {
        // SAFETY: sysconf and userfaultfd take numbers only.
        let (bytes, fd) = unsafe {
            (
                libc::sysconf(libc::_SC_PAGESIZE) as usize,
                libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC),
            )
        };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: just opened, with no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        let trap = Self { page: page as usize, bytes, fd };
        trap.control(UFFDIO_API, &mut [UFFD_API, 0, 0])?;
        let (start, len) = (trap.page as u64, bytes as u64);
        trap.control(UFFDIO_REGISTER, &mut [start, len, REGISTER_MODE_MISSING, 0])?;
        Ok(trap)
    }

    fn control(&self, order: libc::c_ulong, arguments: &mut [u64]) -> Result<(), Error> {
        // SAFETY: the order's structure consists of as many 64-bit words, which live across the call.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), order, arguments.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Waits until a thread is stopped.
    fn wait(&self) {
        let mut event = [0u8; 32];
        let mut file = std::fs::File::from(self.fd.try_clone().unwrap());
        assert_eq!(file.read(&mut event).unwrap(), event.len());
    }

    /// Lets the stopped threads continue.
    fn open(&self) {
        let (start, len) = (self.page as u64, self.bytes as u64);
        self.control(UFFDIO_ZEROPAGE, &mut [start, len, 0, 0]).unwrap();
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no longer used.
        unsafe { libc::munmap(self.page as *mut libc::c_void, self.bytes) };
    }
}

/// Forks a child that sleeps, and returns its pid. Calls `stopped` in the middle of the fork, which may
/// take any time.
///
/// # Errors
/// userfaultfd(2) is not allowed: it needs privilege.
pub fn child(stopped: impl FnOnce() + Send) -> Result<i32, Error> {
    let trap = Trap::new()?;
    let page = trap.page;
    Ok(std::thread::scope(|scope| {
        scope.spawn(|| {
            trap.wait();
            stopped();
            trap.open();
        });
        let flags = libc::CLONE_PIDFD | libc::SIGCHLD;
        // SAFETY: as fork(2); the kernel writes one integer to the page. The child calls nothing
        // but pause(2).
        match unsafe { libc::syscall(libc::SYS_clone, flags, 0, page, 0, 0) } {
            0 => loop {
                // SAFETY: takes nothing.
                unsafe { libc::pause() };
            },
            pid => pid as i32,
        }
    }))
}
