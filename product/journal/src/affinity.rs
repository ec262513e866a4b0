//! The CPU affinity of a thread: the only two system calls of the project that read or set one,
//! with masks of any size and errors told apart, and what the user had before us.

use std::time::Duration;

use evenkeel_machine::{CpuSet, MAX_CPU};
use serde::{Deserialize, Serialize};

use crate::failpoint;

/// Words that hold every CPU number that Linux can have.
const MAX_WORDS: usize = (MAX_CPU as usize + 1) / 64;

/// Tries before a transient error is given to the caller.
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
    /// EPERM: another user's thread.
    #[error(
        "not allowed to change the CPU affinity of thread {tid}: it belongs to another user; run as that user or as root (CAP_SYS_NICE)"
    )]
    Forbidden {
        /// The thread.
        tid: i32,
    },
    /// EINVAL: no CPU of the mask is online and in the thread's cpuset.
    #[error(
        "thread {tid} cannot be put on CPUs {mask}: none of them is online and in its cpuset; choose among the CPUs of its cgroup (cpuset.cpus)"
    )]
    Impossible {
        /// The thread.
        tid: i32,
        /// What was asked for.
        mask: CpuSet,
    },
    /// EINTR, EAGAIN or ENOMEM, still after a few tries.
    #[error("the kernel could not handle the CPU affinity of thread {tid} now ({}): try again later", errno_text(*.errno))]
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

/// The CPUs that thread `tid` may run on now (its mask, without offline CPUs).
///
/// # Errors
/// [`AffinityError::Gone`] and the others but `Impossible`; `tid` must be positive.
pub fn get(tid: i32) -> Result<CpuSet, AffinityError> {
    if tid <= 0 {
        // 0 would mean the calling thread: never what the name of a task means here.
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
        // The number of bytes that this kernel's masks have.
        if let Ok(bytes) = usize::try_from(result) {
            return Ok(CpuSet::from_words(&words[..bytes.div_ceil(8).min(MAX_WORDS)]));
        }
        let errno = errno();
        tries += 1;
        if !is_transient(errno) || tries >= TRIES {
            return Err(match errno {
                // The buffer holds every CPU that Linux can have, so this is not its size.
                libc::EINVAL => AffinityError::Refused { tid, errno },
                errno => classify(tid, errno, &CpuSet::new()),
            });
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

/// Sets the mask of thread `tid`. A thread that runs or waits on a CPU outside the mask has been
/// moved when this returns; one that sleeps goes to an allowed CPU when it wakes up.
///
/// No journal is written here: outside this crate use [`crate::Session`].
///
/// # Errors
/// All of [`AffinityError`]; transient ones only after a few tries.
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
        // Taken before the failpoint, whose own calls could change it.
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

/// What a thread was allowed before we touched it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Original {
    /// Its whole cpuset. Given back as "all CPUs there can be", because since Linux 6.2 a list
    /// would keep the mask from growing with its cpuset again.
    All,
    /// Less than its cpuset: the user chose these CPUs.
    Mask(CpuSet),
}

impl Original {
    /// What a thread with this mask in this cpuset has.
    pub fn of(mask: &CpuSet, effective: &CpuSet) -> Self {
        if effective.is_subset(mask) { Self::All } else { Self::Mask(mask.clone()) }
    }

    /// Whether the user lets the thread run on this CPU.
    pub fn allows(&self, cpu: u32) -> bool {
        match self {
            Self::All => true,
            Self::Mask(mask) => mask.contains(cpu),
        }
    }

    /// The mask to set in order to give it back.
    pub fn to_set(&self) -> CpuSet {
        match self {
            Self::All => CpuSet::first(MAX_CPU + 1),
            Self::Mask(mask) => mask.clone(),
        }
    }

    /// The mask that the kernel shows for it while the thread's cpuset is `effective`.
    pub fn shown_in(&self, effective: &CpuSet) -> CpuSet {
        match self {
            Self::All => effective.clone(),
            Self::Mask(mask) => {
                let both = mask.intersection(effective);
                // The kernel falls back to the cpuset when nothing of the mask is left.
                if both.is_empty() { effective.clone() } else { both }
            }
        }
    }

    /// Gives it back to thread `tid`.
    ///
    /// # Errors
    /// As [`set`]. A mask of which no CPU is left in the cpuset becomes "all", which is what the
    /// kernel itself makes of it.
    pub fn give_back(&self, tid: i32) -> Result<(), AffinityError> {
        match set(tid, &self.to_set()) {
            Err(AffinityError::Impossible { .. }) if *self != Self::All => {
                set(tid, &Self::All.to_set())
            }
            result => result,
        }
    }
}

/// The set of this one CPU.
pub(crate) fn just(cpu: u32) -> CpuSet {
    [cpu].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart() {
        let mask = just(3);
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
    fn the_kernel_agrees() {
        // SAFETY: gettid takes nothing and cannot fail.
        let tid = unsafe { libc::gettid() };
        let before = get(tid).unwrap();
        assert!(!before.is_empty());
        let one = just(before.iter().next().unwrap());
        set(tid, &one).unwrap();
        assert_eq!(get(tid).unwrap(), one);
        set(tid, &Original::All.to_set()).unwrap();
        assert_eq!(get(tid).unwrap(), before);
        assert!(set(tid, &just(MAX_CPU)).unwrap_err().to_string().contains("cpuset"));
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
