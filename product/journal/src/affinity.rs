//! The CPU affinity of a thread: the only two system calls of the project that read or set one. Masks
//! have any size, and each errno that a caller must tell apart has a variant of its own. [`Original`]
//! is what a thread had before it was placed.

use std::time::Duration;

use evenkeel_machine::{CpuSet, MAX_CPU};
use serde::{Deserialize, Serialize};

use crate::failpoint;

/// 64-bit words for every CPU number that Linux can have.
const MAX_WORDS: usize = (MAX_CPU as usize + 1) / 64;

/// Tries before a transient error is returned.
const TRIES: u32 = 5;

/// Pause between two such tries.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// Why the kernel did not read or set an affinity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AffinityError {
    /// ESRCH: the thread has ended. Nothing to do.
    #[error("thread {tid} has ended")]
    Gone {
        /// The thread.
        tid: i32,
    },
    /// EPERM: the thread belongs to another user.
    #[error(
        "not allowed to change the CPU affinity of thread {tid}: it belongs to another user; run as \
         that user or as root (CAP_SYS_NICE)"
    )]
    Forbidden {
        /// The thread.
        tid: i32,
    },
    /// EINVAL: no CPU of the mask is online and in the thread's cpuset.
    #[error(
        "thread {tid} cannot be put on CPUs {mask}: none of them is online and in its cpuset; choose \
         among the CPUs of its cgroup (cpuset.cpus)"
    )]
    Impossible {
        /// The thread.
        tid: i32,
        /// The mask that was asked for.
        mask: CpuSet,
    },
    /// EINTR, EAGAIN or ENOMEM, still after a few tries.
    #[error(
        "the kernel could not handle the CPU affinity of thread {tid} now ({}): try again later",
        errno_text(*.errno)
    )]
    Transient {
        /// The thread.
        tid: i32,
        /// The error number.
        errno: i32,
    },
    /// Anything else, for example EBUSY for a SCHED_DEADLINE thread.
    #[error("the kernel refused the CPU affinity of thread {tid}: {}", errno_text(*.errno))]
    Refused {
        /// The thread.
        tid: i32,
        /// The error number.
        errno: i32,
    },
}

fn errno_text(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn is_transient(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::EAGAIN | libc::ENOMEM)
}

fn classify(tid: i32, errno: i32, mask: &CpuSet) -> AffinityError {
    match errno {
        libc::ESRCH => AffinityError::Gone { tid },
        libc::EPERM => AffinityError::Forbidden { tid },
        libc::EINVAL => AffinityError::Impossible { tid, mask: mask.clone() },
        errno if is_transient(errno) => AffinityError::Transient { tid, errno },
        errno => AffinityError::Refused { tid, errno },
    }
}

/// The CPUs that thread `tid` may run on now: its mask without offline CPUs.
///
/// # Errors
/// All of [`AffinityError`] but `Impossible`. A `tid` of 0 or less is `Gone`.
pub fn get(tid: i32) -> Result<CpuSet, AffinityError> {
    if tid <= 0 {
        // To the kernel, 0 means the calling thread; a task here is never named so.
        return Err(AffinityError::Gone { tid });
    }
    let mut words = [0u64; MAX_WORDS];
    let mut tries = 0;
    loop {
        // SAFETY: the kernel writes at most the given number of bytes into `words`, which is
        // aligned for unsigned long and lives across the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                tid,
                size_of_val(&words),
                words.as_mut_ptr().cast::<libc::c_ulong>(),
            )
        };
        // The result is the size of this kernel's masks in bytes.
        if let Ok(bytes) = usize::try_from(result) {
            return Ok(CpuSet::from_words(&words[..bytes.div_ceil(8).min(MAX_WORDS)]));
        }
        let errno = errno();
        tries += 1;
        if !is_transient(errno) || tries >= TRIES {
            return Err(match errno {
                // Not the size of the buffer, which holds every CPU that Linux can have.
                libc::EINVAL => AffinityError::Refused { tid, errno },
                errno => classify(tid, errno, &CpuSet::new()),
            });
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

/// Sets the mask of thread `tid`. A thread that runs or waits on a CPU outside the mask has been
/// migrated when this returns; a sleeping thread is placed on an allowed CPU when it wakes up.
///
/// This writes no journal: use [`crate::Session`] for threads of other programs.
///
/// # Errors
/// All of [`AffinityError`]; transient ones only after 5 tries.
pub fn set(tid: i32, mask: &CpuSet) -> Result<(), AffinityError> {
    if tid <= 0 {
        return Err(AffinityError::Gone { tid });
    }
    let words = mask.as_words();
    let mut tries = 0;
    loop {
        // SAFETY: the kernel reads the given number of bytes from `words`, which lives across the
        // call; a length of zero reads nothing.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sched_setaffinity,
                tid,
                size_of_val(words),
                words.as_ptr().cast::<libc::c_ulong>(),
            )
        };
        // Read before the failpoint: its own calls could change it.
        let errno = errno();
        failpoint::hit("sched_setaffinity");
        if result == 0 {
            return Ok(());
        }
        tries += 1;
        if !is_transient(errno) || tries >= TRIES {
            return Err(classify(tid, errno, mask));
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

/// The mask that a thread had before it was placed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Original {
    /// Its whole cpuset. Given back as "all possible CPUs": since Linux 6.2 a list of the present ones
    /// would keep the mask from growing with its cpuset.
    All,
    /// A part of its cpuset: the user chose these CPUs.
    Mask(CpuSet),
}

impl Original {
    /// The original of a thread with this mask and the cpuset `effective`.
    pub fn of(mask: &CpuSet, effective: &CpuSet) -> Self {
        if effective.is_subset(mask) { Self::All } else { Self::Mask(mask.clone()) }
    }

    /// Whether the user allows the thread this CPU.
    pub fn allows(&self, cpu: u32) -> bool {
        match self {
            Self::All => true,
            Self::Mask(mask) => mask.contains(cpu),
        }
    }

    /// The mask to set in order to restore it.
    pub fn to_set(&self) -> CpuSet {
        match self {
            Self::All => CpuSet::first(MAX_CPU + 1),
            Self::Mask(mask) => mask.clone(),
        }
    }

    /// The mask that the kernel shows after it is restored, while the thread's cpuset is `effective`.
    pub fn shown_in(&self, effective: &CpuSet) -> CpuSet {
        match self {
            Self::All => effective.clone(),
            Self::Mask(mask) => {
                let both = mask.intersection(effective);
                // The kernel falls back to the cpuset when no CPU of the mask is left.
                if both.is_empty() { effective.clone() } else { both }
            }
        }
    }

    /// Restores it for thread `tid`. A mask of which no CPU is left in the cpuset becomes "all", as the
    /// kernel itself would make it.
    ///
    /// # Errors
    /// As [`set`].
    pub fn give_back(&self, tid: i32) -> Result<(), AffinityError> {
        match set(tid, &self.to_set()) {
            Err(AffinityError::Impossible { .. }) if *self != Self::All => {
                set(tid, &Self::All.to_set())
            }
            result => result,
        }
    }
}

/// The set that has only this CPU.
pub(crate) fn single_cpu(cpu: u32) -> CpuSet {
    [cpu].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart() {
        let mask = single_cpu(3);
        for (errno, expected) in [
            (libc::ESRCH, AffinityError::Gone { tid: 7 }),
            (libc::EPERM, AffinityError::Forbidden { tid: 7 }),
            (libc::EINVAL, AffinityError::Impossible { tid: 7, mask: mask.clone() }),
            (libc::EINTR, AffinityError::Transient { tid: 7, errno: libc::EINTR }),
            (libc::EBUSY, AffinityError::Refused { tid: 7, errno: libc::EBUSY }),
        ] {
            assert_eq!(classify(7, errno, &mask), expected);
        }
    }

    #[test]
    fn a_mask_that_was_set_is_read_back() {
        // SAFETY: gettid takes nothing and cannot fail.
        let tid = unsafe { libc::gettid() };
        let before = get(tid).unwrap();
        assert!(!before.is_empty());
        let one = single_cpu(before.iter().next().unwrap());
        set(tid, &one).unwrap();
        assert_eq!(get(tid).unwrap(), one);
        set(tid, &Original::All.to_set()).unwrap();
        assert_eq!(get(tid).unwrap(), before);
        assert!(set(tid, &single_cpu(MAX_CPU)).unwrap_err().to_string().contains("cpuset"));
        assert!(matches!(set(tid, &CpuSet::new()), Err(AffinityError::Impossible { .. })));
        assert_eq!(get(0), Err(AffinityError::Gone { tid: 0 }));
        assert_eq!(set(-1, &before), Err(AffinityError::Gone { tid: -1 }));
        // Larger than any pid.
        assert_eq!(get(i32::MAX), Err(AffinityError::Gone { tid: i32::MAX }));
        assert_eq!(set(i32::MAX, &before), Err(AffinityError::Gone { tid: i32::MAX }));
    }

    #[test]
    fn an_original_is_all_only_if_it_covers_its_cpuset() {
        let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
        assert_eq!(Original::of(&cpus("0-3"), &cpus("0-3")), Original::All);
        assert_eq!(Original::of(&cpus("0-7"), &cpus("0-3")), Original::All);
        let two = Original::of(&cpus("0-1"), &cpus("0-3"));
        assert_eq!(two, Original::Mask(cpus("0-1")));
        assert_eq!(two.shown_in(&cpus("1-3")), cpus("1"));
        assert_eq!(two.shown_in(&cpus("2-3")), cpus("2-3"));
        assert!(two.allows(1) && !two.allows(2) && Original::All.allows(900));
    }
}
