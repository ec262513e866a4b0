//! Admission: turns a process number, a name or a cgroup into processes that may be balanced for the
//! requesting user, or into a refusal with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use evenkeel_control::{Lock, Peer, Program, command_lines, read_in_time};
use evenkeel_journal::TaskRef;
use nix::errno::Errno;
use procfs::process::{Process, StatFlags};
use serde::{Deserialize, Serialize};

/// The mount point of cgroups. A cgroup is named as /proc/PID/cgroup shows it, or by its full path.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// How a program joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// By process number.
    Process,
    /// By the name of its command.
    Name(String),
    /// As an MPI job: its ranks on this machine are one program.
    Job(String),
    /// By cgroup (its directory): all processes in it, now and later.
    Cgroup(PathBuf),
}

/// A process that may join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    /// Its first thread.
    pub task: TaskRef,
    /// Its user.
    pub uid: u32,
    /// The name that the kernel has for its command.
    pub comm: String,
}

/// A process that is to join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessToJoin {
    /// Its number.
    pub pid: i32,
    /// When it was started, in clock ticks since the boot (/proc/PID/stat): a process with another start
    /// is another one, which has got the number since.
    pub start: Option<u64>,
    /// Its moves are decided and counted, but not made, for as long as it has joined.
    pub watch: bool,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    /// The error number that the client gets.
    pub errno: Errno,
    /// What is refused, why, and what to do.
    pub why: String,
}

pub(crate) fn refuse<T>(errno: Errno, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { errno, why: why.into() })
}

/// The user of the daemon itself: standing rules apply in its name.
pub(super) fn daemon_user() -> Peer {
    Peer { uid: nix::unistd::geteuid().as_raw(), pid: std::process::id() as i32 }
}

/// Whether a user's rules win over those of others: root and the user of the daemon.
pub(super) fn is_in_charge(uid: u32) -> bool {
    uid == 0 || uid == daemon_user().uid
}

/// The process of this number, if `peer` may have it balanced.
pub(crate) fn process(pid: i32, peer: &Peer) -> Result<Candidate, Refusal> {
    let gone = || Refusal { errno: Errno::ESRCH, why: format!("there is no process {pid}") };
    if pid < 1 {
        return refuse(Errno::EINVAL, format!("{pid} is not a process number: they begin at 1"));
    }
    if pid == 1 {
        return refuse(
            Errno::EPERM,
            "process 1 is the ancestor of all processes, and all would join with it: name the program's \
             own process",
        );
    }
    // All is read through one descriptor, so it is of one process.
    let process = Process::new(pid).map_err(|_| gone())?;
    let status = process.status().map_err(|_| gone())?;
    let stat = read_in_time(Lock::Exec, pid, move || process.stat())
        .map_err(|why| Refusal { errno: Errno::EAGAIN, why: format!("process {pid}: {why}") })?
        .map_err(|_| gone())?;
    if status.tgid != pid {
        return refuse(
            Errno::EINVAL,
            format!("{pid} is a thread of process {}: give that number", status.tgid),
        );
    }
    let flags = StatFlags::from_bits_truncate(stat.flags);
    if flags.contains(StatFlags::PF_KTHREAD) {
        return refuse(
            Errno::EPERM,
            format!("process {pid} ({}) is a kernel thread and cannot join", stat.comm),
        );
    }
    if is_own_ancestor(pid) {
        return refuse(
            Errno::EPERM,
            format!(
                "process {pid} ({}) is the balancer or an ancestor of it and cannot join",
                stat.comm
            ),
        );
    }
    // A set-user-id process belongs to both users.
    if !(peer.may_steer(status.ruid) && peer.may_steer(status.euid)) {
        return refuse(
            Errno::EPERM,
            format!("process {pid} ({}) belongs to user {}, not to you", stat.comm, status.ruid),
        );
    }
    Ok(Candidate {
        task: TaskRef { tid: pid, tgid: pid, start_time_ticks: stat.starttime },
        uid: status.ruid,
        comm: stat.comm,
    })
}

/// The command lines that processes have now: a process may have called exec since it joined, as the
/// first process of a container does. A process that has ended, that has no command line, or with one
/// that cannot be read in time, is left out.
pub(crate) fn commands_of<'a>(
    tasks: impl IntoIterator<Item = &'a TaskRef>,
) -> BTreeMap<TaskRef, Vec<String>> {
    let tasks: Vec<&TaskRef> = tasks.into_iter().collect();
    let pids: Vec<i32> = tasks.iter().map(|task| task.tgid).collect();
    let mut commands = command_lines(&pids);
    // What was read is of this process if that still runs.
    let alive = tasks.into_iter().filter(|task| task.is_surely_alive());
    alive.filter_map(|task| Some((*task, commands.remove(&task.tgid)?))).collect()
}

/// The process that is to join, if it is the one that is meant, and `peer` may have it balanced.
pub(crate) fn asked_process(asked: &ProcessToJoin, peer: &Peer) -> Result<Candidate, Refusal> {
    let candidate = process(asked.pid, peer)?;
    if asked.start.is_some_and(|start| start != candidate.task.start_time_ticks) {
        return refuse(
            Errno::ESRCH,
            format!(
                "process {} is not the one that is meant: that has ended, or has this number in another \
                 PID namespace than the daemon's",
                asked.pid
            ),
        );
    }
    Ok(candidate)
}

/// All processes with this command name that `peer` may have balanced. Descendants of such a process are
/// left out, since they join with it.
pub(crate) fn named(name: &str, peer: &Peer) -> Result<Vec<Candidate>, Refusal> {
    let program = name.parse::<Program>().ok().filter(|_| !name.contains('/'));
    let Some(program) = program else {
        return refuse(
            Errno::EINVAL,
            format!("\"{name}\" is not a command name: give it without its directory"),
        );
    };
    let running: BTreeSet<i32> =
        program.instances().into_iter().map(|instance| instance.pid as i32).collect();
    let is_topmost =
        |pid: &&i32| !with_ancestors(**pid).skip(1).any(|ancestor| running.contains(&ancestor));
    let (mut found, mut refusal) = (Vec::new(), None);
    for pid in running.iter().filter(is_topmost) {
        match process(*pid, peer) {
            Ok(candidate) => found.push(candidate),
            Err(why) => refusal = Some(why),
        }
    }
    match (found.is_empty(), refusal) {
        (false, _) => Ok(found),
        (true, Some(why)) => Err(why),
        (true, None) => refuse(Errno::ESRCH, format!("no program named {name} runs")),
    }
}

/// Checks that a text can name a cgroup that may join. The cgroup need not exist yet.
///
/// # Errors
/// It is no absolute path, or names the root cgroup.
pub fn check_cgroup_name(name: &str) -> Result<(), Refusal> {
    let given = Path::new(name);
    if !given.is_absolute() || given.components().any(|part| part.as_os_str() == "..") {
        return refuse(
            Errno::EINVAL,
            format!("\"{name}\" is not a cgroup: give its path, like /system.slice/app.service"),
        );
    }
    if given == Path::new("/") || given == Path::new(CGROUP_ROOT) {
        return refuse(
            Errno::EPERM,
            "the root cgroup holds all processes: name the cgroup of the program",
        );
    }
    Ok(())
}

/// The directory of a cgroup that is named by its full path or as /proc/PID/cgroup shows it.
pub(crate) fn cgroup_dir(name: &str) -> Result<PathBuf, Refusal> {
    check_cgroup_name(name)?;
    let (given, root) = (Path::new(name), Path::new(CGROUP_ROOT));
    let below = root.join(given.strip_prefix("/").unwrap_or(given));
    let found = [given.to_owned(), below]
        .into_iter()
        .find(|dir| dir.starts_with(root) && dir.join("cgroup.procs").is_file());
    found.map_or_else(
        || {
            let why = "see /proc/PID/cgroup of its processes";
            refuse(Errno::ENOENT, format!("there is no cgroup {name}: {why}"))
        },
        Ok,
    )
}

fn is_own_ancestor(pid: i32) -> bool {
    with_ancestors(std::process::id() as i32).any(|ancestor| ancestor == pid)
}

/// A process and its ancestors, as /proc shows them now.
pub(crate) fn with_ancestors(pid: i32) -> impl Iterator<Item = i32> {
    let parent = |pid: &i32| {
        // Not from `stat`, which a process can hold up.
        let status = Process::new(*pid).and_then(|process| process.status()).ok()?;
        Some(status.ppid).filter(|parent| *parent > 0)
    };
    // More than in any real tree: it is not read at one moment and may contain a cycle.
    std::iter::successors(Some(pid), parent).take(256)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn me() -> Peer {
        Peer { uid: nix::unistd::geteuid().as_raw(), pid: 0 }
    }

    fn errno(pid: i32, peer: &Peer) -> Errno {
        process(pid, peer).unwrap_err().errno
    }

    #[test]
    fn processes_that_may_not_join_are_refused() {
        let root = Peer { uid: 0, pid: 0 };
        assert_eq!(errno(1, &root), Errno::EPERM);
        assert_eq!(errno(0, &root), Errno::EINVAL);
        assert_eq!(errno(i32::MAX, &root), Errno::ESRCH);
        // kthreadd, where it can be seen.
        if Path::new("/proc/2/stat").exists()
            && std::fs::read_to_string("/proc/2/comm").unwrap().trim() == "kthreadd"
        {
            assert!(process(2, &root).unwrap_err().why.contains("kernel thread"));
        }
        let own = std::process::id() as i32;
        assert_eq!(errno(own, &root), Errno::EPERM);
        assert_eq!(errno(nix::unistd::getppid().as_raw(), &root), Errno::EPERM);
        let sleeper = Sleeper(Command::new("sleep").arg("60").spawn().unwrap());
        let pid = sleeper.0.id() as i32;
        // exec lets the parent go on before the process has its words, and on a busy machine there may
        // be a pause in the reading.
        let found = || process(pid, &me()).unwrap();
        let is_sleep = |found: &Candidate| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let commands = commands_of([&found.task]);
            let has_words =
                commands.get(&found.task).is_some_and(|command| *command == ["sleep", "60"]);
            found.comm == "sleep" && has_words
        };
        let mut looks = std::iter::repeat_with(found).take(10_000);
        let found = looks.find(is_sleep).unwrap();
        assert_eq!((found.task.tid, found.uid), (pid, me().uid));
        let other = Peer { uid: 12345, pid: 0 };
        assert!(process(pid, &other).unwrap_err().why.contains("not to you"));
        let meant = |start| asked_process(&ProcessToJoin { pid, start, watch: false }, &me());
        let start = found.task.start_time_ticks;
        assert_eq!(meant(None).as_ref(), Ok(&found));
        assert_eq!(meant(Some(start)).as_ref(), Ok(&found));
        // It has this number since another one has ended.
        let refusal = meant(Some(start - 1)).unwrap_err();
        assert!(refusal.errno == Errno::ESRCH && refusal.why.contains("not the one"), "{refusal}");
    }

    #[test]
    fn of_a_tree_of_one_name_the_topmost_process_joins() {
        let dir = tempfile::tempdir().unwrap();
        let name = "evenkeel-napper";
        let file = dir.path().join(name);
        std::fs::copy("/bin/sleep", &file).unwrap();
        assert_eq!(named(name, &me()).unwrap_err().errno, Errno::ESRCH);
        let nappers = [(); 2].map(|()| Sleeper(Command::new(&file).arg("60").spawn().unwrap()));
        let mut pids = nappers.each_ref().map(|napper| napper.0.id() as i32);
        pids.sort_unstable();
        let is_there = |found: &[Candidate]| {
            found.iter().map(|candidate| candidate.task.tid).collect::<Vec<_>>() == pids
        };
        // Until exec it still has our name.
        let found = || named(name, &me()).is_ok_and(|found| is_there(&found));
        assert!((0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            found()
        }));
        assert_eq!(named("", &me()).unwrap_err().errno, Errno::EINVAL);
        assert_eq!(named("/bin/sh", &me()).unwrap_err().errno, Errno::EINVAL);
        let other = Peer { uid: 12345, pid: 0 };
        assert_eq!(named(name, &other).unwrap_err().errno, Errno::EPERM);
    }

    #[test]
    fn names_that_are_no_cgroup_are_refused() {
        for name in ["", "app.service", "/../etc", "/no/such/cgroup"] {
            let refusal = cgroup_dir(name).unwrap_err();
            assert!(refusal.why.contains(name), "{refusal}");
        }
    }
}
