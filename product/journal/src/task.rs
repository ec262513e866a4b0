//! A thread's identity: its number together with its start time, so that a number that the kernel has
//! reused is never taken for the thread that had it before.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use evenkeel_control::{Late, Lock, read_in_time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::affinity::AffinityError;

/// A thread of this boot, proof against PID reuse.
///
/// The start time has the resolution of a clock tick (1/100 s). For a number to be reused within one,
/// all other numbers would have to be used up in that time.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct TaskRef {
    /// Thread id.
    pub tid: i32,
    /// Process id (thread group id).
    pub tgid: i32,
    /// Start time in clock ticks (`sysconf(_SC_CLK_TCK)`) since boot, field 22 of
    /// `/proc/TGID/task/TID/stat`.
    #[serde(rename = "start")]
    pub start_time_ticks: u64,
}

/// Why a thread cannot be identified.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// It has ended.
    #[error("thread {tid} has ended")]
    Gone {
        /// The thread.
        tid: i32,
    },
    /// Nothing is known of it now: it may run, or have ended. It must not be taken for gone, or its
    /// affinity would never be restored.
    #[error("thread {tid}: {why}")]
    Late {
        /// The thread.
        tid: i32,
        /// Why not.
        why: Late,
    },
    /// /proc does not show it.
    #[error("cannot read {}: {source}; is /proc mounted, and without hidepid?", .path.display())]
    Unreadable {
        /// What was read.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// /proc has another format than proc(5) describes.
    #[error("{} does not have the form that proc(5) describes", .path.display())]
    Malformed {
        /// What was read.
        path: PathBuf,
    },
}

impl TaskError {
    /// What it means for the affinity of thread `tid`.
    pub(crate) fn for_affinity_of(&self, tid: i32) -> AffinityError {
        match self {
            Self::Late { .. } => AffinityError::Transient { tid, errno: libc::EAGAIN },
            _ => AffinityError::Gone { tid },
        }
    }
}

impl TaskRef {
    /// The thread that has this number now.
    ///
    /// # Errors
    /// All of [`TaskError`].
    pub fn of(tid: i32) -> Result<Self, TaskError> {
        let path = PathBuf::from(format!("/proc/{tid}/status"));
        let text = read(tid, &path)?;
        let tgid = text
            .lines()
            .find_map(|line| line.strip_prefix("Tgid:"))
            .and_then(|value| value.trim().parse().ok())
            .ok_or(TaskError::Malformed { path })?;
        Self::in_process(tgid, tid)
    }

    /// The thread `tid` of process `tgid`: one read less than [`TaskRef::of`].
    ///
    /// # Errors
    /// All of [`TaskError`].
    pub fn in_process(tgid: i32, tid: i32) -> Result<Self, TaskError> {
        let stat = Stat::read(tgid, tid)?;
        Ok(Self { tid, tgid, start_time_ticks: stat.start_ticks })
    }

    /// The calling process.
    ///
    /// # Errors
    /// All of [`TaskError`].
    pub fn own_process() -> Result<Self, TaskError> {
        let pid = own_pid();
        Self::in_process(pid, pid)
    }

    /// The leader of this thread's process.
    ///
    /// # Errors
    /// All of [`TaskError`].
    pub fn process(&self) -> Result<Self, TaskError> {
        if self.tid == self.tgid { Ok(*self) } else { Self::in_process(self.tgid, self.tgid) }
    }

    /// Whether this thread may still exist, and is not known to have ended: what was done to it is not
    /// to be forgotten. A zombie has ended. One that cannot be read in time may exist.
    pub fn is_alive(&self) -> bool {
        matches!(self.stat(), Ok(_) | Err(TaskError::Late { .. }))
    }

    /// Whether it is known that this thread exists and has not ended: what was just read or done by its
    /// number is of it.
    pub fn is_surely_alive(&self) -> bool {
        self.stat().is_ok()
    }

    /// Its stat in /proc. The error is `Gone` if another thread has its number, and if it is a zombie.
    pub(crate) fn stat(&self) -> Result<Stat, TaskError> {
        Stat::read(self.tgid, self.tid).and_then(|stat| {
            let is_it = stat.start_ticks == self.start_time_ticks && !stat.has_ended();
            if is_it { Ok(stat) } else { Err(TaskError::Gone { tid: self.tid }) }
        })
    }

    /// Call after something was read or done by the thread's number, to know that it was this thread.
    ///
    /// # Errors
    /// `Gone`, or `Transient` if that is not known now.
    pub(crate) fn check(&self) -> Result<(), AffinityError> {
        self.stat().map(drop).map_err(|why| why.for_affinity_of(self.tid))
    }
}

impl fmt::Display for TaskRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tid == self.tgid {
            write!(f, "process {}", self.tid)
        } else {
            write!(f, "thread {} of process {}", self.tid, self.tgid)
        }
    }
}

/// The calling process's id.
pub(crate) fn own_pid() -> i32 {
    // SAFETY: getpid takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

/// The few fields of `/proc/.../stat` that identity and ancestry need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    /// State letter; Z and X mean ended.
    pub state: char,
    /// Parent process id, 0 for none.
    pub ppid: i32,
    /// Session id.
    pub session: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
}

impl Stat {
    fn read(tgid: i32, tid: i32) -> Result<Self, TaskError> {
        let path = PathBuf::from(format!("/proc/{tgid}/task/{tid}/stat"));
        let text = read(tid, &path)?;
        Self::parse(&text).ok_or(TaskError::Malformed { path })
    }

    /// The command name in parentheses may hold spaces and parentheses: fields count from the
    /// last one.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let ppid = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        // Session is field 6, start time field 22.
        let start_ticks = fields.nth(15)?.parse().ok()?;
        Some(Self { state, ppid, session, start_ticks })
    }

    /// Whether it is a zombie or dead.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

fn read(tid: i32, path: &Path) -> Result<String, TaskError> {
    let to_read = path.to_owned();
    let bytes = read_in_time(Lock::Exec, tid, move || std::fs::read(&to_read));
    // A command name may hold any bytes.
    match bytes.map_err(|why| TaskError::Late { tid, why })? {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
            Err(TaskError::Gone { tid })
        }
        Err(source) => Err(TaskError::Unreadable { path: path.to_owned(), source }),
    }
}

/// The numbers that a directory of /proc lists; none if it is gone or cannot be read.
fn list_numbers(path: &str) -> Vec<i32> {
    std::fs::read_dir(path)
        .map(|entries| {
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
        })
        .unwrap_or_default()
}

/// All threads that /proc shows, as (process id, thread id).
pub(crate) fn all_threads() -> impl Iterator<Item = (i32, i32)> {
    list_numbers("/proc").into_iter().flat_map(|tgid| {
        list_numbers(&format!("/proc/{tgid}/task")).into_iter().map(move |tid| (tgid, tid))
    })
}

/// Processes as they were when first read: one consistent tree for one sweep.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    seen: HashMap<i32, Option<Stat>>,
    /// One that was asked for could not be read in time, so what follows from its absence may be wrong.
    pub is_any_late: bool,
}

impl Processes {
    /// The stat of a process; `None` if it does not exist, or cannot be read in time.
    pub fn get(&mut self, pid: i32) -> Option<Stat> {
        if let Some(known) = self.seen.get(&pid) {
            return *known;
        }
        let stat = match Stat::read(pid, pid) {
            Err(TaskError::Late { .. }) => {
                self.is_any_late = true;
                return None;
            }
            stat => stat.ok(),
        };
        self.seen.insert(pid, stat);
        stat
    }
}

/// Clock ticks per second of the start times in /proc.
pub(crate) fn ticks_per_second() -> u64 {
    // SAFETY: sysconf takes an integer and touches no memory of ours.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|ticks| *ticks > 0).unwrap_or(100)
}

/// Length of such a tick in ns.
pub(crate) fn tick_ns() -> u64 {
    1_000_000_000 / ticks_per_second()
}

/// Nanoseconds of CLOCK_BOOTTIME, the clock of the start times in /proc.
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the one timespec that the pointer names; CLOCK_BOOTTIME always
    // exists, and on an impossible failure the value stays zero.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_name_may_be_anything() {
        let tail = "S 12 13 14 0 -1 4194304 101 0 0 0 0 0 0 0 20 0 1 0 118481 3133440";
        for name in ["(cat)", "(a b)", "(a) R 1 (2)", "())", "(\u{fffd})"] {
            let stat = Stat::parse(&format!("99 {name} {tail}")).unwrap();
            assert_eq!(stat, Stat { state: 'S', ppid: 12, session: 14, start_ticks: 118_481 });
        }
        assert_eq!(Stat::parse("99 (cat) S 12 13"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_thread_is_told_apart_from_any_other() {
        // SAFETY: gettid takes nothing and cannot fail.
        let task = TaskRef::of(unsafe { libc::gettid() }).unwrap();
        assert_eq!(task.tgid, own_pid());
        assert!(task.is_alive());
        assert!(!TaskRef { start_time_ticks: task.start_time_ticks + 1, ..task }.is_alive());
        assert!(!TaskRef { tgid: 1, ..task }.is_alive());
        assert_eq!(task.process().unwrap().tid, own_pid());
        assert!(matches!(TaskRef::of(i32::MAX), Err(TaskError::Gone { .. })));
        assert!(all_threads().any(|thread| thread == (task.tgid, task.tid)));
    }

    #[test]
    fn a_zombie_has_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let task = TaskRef::of(pid);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while task.as_ref().is_ok_and(TaskRef::is_alive) {
            assert!(std::time::Instant::now() < deadline, "the child did not end");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        child.wait().unwrap();
    }

    #[test]
    fn start_times_are_on_our_clock() {
        let start = TaskRef::own_process().unwrap().start_time_ticks;
        assert!(start <= now_ns() / tick_ns());
    }
}
