//! The per-CPU accounts, mapped from the BPF map into this process: a reading costs no system call.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use libbpf_rs::MapHandle;

use crate::clock::monotonic_ns;
use crate::layout::{CpuAccount, RawCpu};

/// How often an account is read that its CPU writes at the same time.
const MAX_READS: u32 = 10_000;

/// The accounts of all possible CPUs.
pub(crate) struct Counters {
    pub base: NonNull<RawCpu>,
    bytes: usize,
    pub cpus: u32,
}

impl Counters {
    /// Maps the accounts of `cpus` CPUs.
    pub fn map(map: &MapHandle, cpus: usize) -> std::io::Result<Self> {
        let bytes = (cpus * size_of::<RawCpu>()).next_multiple_of(page_size());
        // SAFETY: maps a BPF map of at least this size; no address is forced.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast::<RawCpu>())
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        Ok(Self { base, bytes, cpus: cpus as u32 })
    }

    /// Begins the first stretch of every CPU, as idle. Call it before the programs are attached.
    pub fn start(&self) {
        let now_ns = monotonic_ns();
        for cpu in 0..self.cpus {
            // SAFETY: inside the mapping, and no program writes to it yet.
            unsafe { (*self.base.as_ptr().add(cpu as usize)).since_ns = now_ns };
        }
    }

    /// Sets the relative speeds of the CPUs, 1..=1024; a CPU without one has 1024.
    pub fn set_speeds(&self, speeds: &[u32]) {
        for cpu in 0..self.cpus {
            let speed = u64::from(speeds.get(cpu as usize).copied().unwrap_or(1024));
            // SAFETY: inside the mapping; the programs only read this aligned word, in one piece.
            unsafe {
                let raw = self.base.as_ptr().add(cpu as usize);
                (&raw mut (*raw).speed).write_volatile(speed);
            }
        }
    }

    /// Reads one account, up to now.
    pub fn read(&self, cpu: u32) -> CpuAccount {
        // SAFETY: inside the mapping; the kernel writes there, so the reads are volatile and
        // checked by the sequence number, which is aligned for an atomic.
        let (raw, now_ns) = unsafe {
            let raw = self.base.as_ptr().add(cpu as usize);
            let sequence = AtomicU64::from_ptr(&raw mut (*raw).sequence);
            let mut reads = 0;
            loop {
                let before = sequence.load(Ordering::Acquire);
                let copy = raw.read_volatile();
                let now_ns = monotonic_ns();
                fence(Ordering::Acquire);
                let is_whole =
                    before.is_multiple_of(2) && before == sequence.load(Ordering::Relaxed);
                reads += 1;
                // A virtual CPU may have been stopped in mid-write. A slightly torn reading, which the
                // next one corrects, is better than waiting for the hypervisor.
                if is_whole || reads == MAX_READS {
                    break (copy, now_ns);
                }
                std::hint::spin_loop();
            }
        };
        CpuAccount::from_raw(cpu, &raw, now_ns)
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `map` mapped; no reference into it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
