//! Facts that the kernel tells this process: what it may do, and whether that works when it is tried.

use std::path::{Path, PathBuf};

use evenkeel_cbinfo::{RunTimeExcludes, Unsupported};
use evenkeel_journal::{
    Session, SessionOptions, affinity, effective_cpuset, runtime_dir, writer_of,
};
use evenkeel_machine::CpuSet;

/// CAP_SYS_NICE (kernel: `include/uapi/linux/capability.h`).
const CAP_SYS_NICE: u32 = 23;

/// The kernel's answers to this process.
#[derive(Debug, Clone)]
pub struct Process {
    /// Whether this process may start exact accounting.
    pub bpf: Result<(), Unsupported>,
    /// What the kernel leaves out of run times, where that is known.
    pub excludes: Option<RunTimeExcludes>,
    /// Functions of sched_ext that the kernel's BTF describes wrongly: no scheduler can be loaded.
    pub malformed_functions: Vec<String>,
    /// Whether it keeps time back for tasks of sched_ext beside endless real-time tasks; `None`: not
    /// known.
    pub keeps_time_for_sched_ext: Option<bool>,
    /// The online CPUs of the cpuset.
    pub cpuset: CpuSet,
    /// The mask of this process, which its children inherit.
    pub affinity: CpuSet,
    /// Whether it may place tasks of other users.
    pub may_place_others: bool,
    /// Whether a mask could be set.
    pub placing: Result<(), String>,
    /// The directory of journals, if one could be opened there.
    pub journal: Result<PathBuf, String>,
    /// The journals that were there before.
    pub journals: Journals,
}

/// Journals of live and of dead balancers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Journals {
    /// Number of journals with a live writer.
    pub live: usize,
    /// Journals of writers that ended without undoing all.
    pub left: Vec<PathBuf>,
}

impl Process {
    /// Asks the kernel and tries. Leaves no change behind.
    pub fn ask() -> Self {
        let tid = nix::unistd::gettid().as_raw();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let dir = runtime_dir().map_err(|why| why.to_string());
        // Before this process opens a journal of its own.
        let journals = dir.as_deref().map(Journals::read).unwrap_or_default();
        Self {
            bpf: evenkeel_cbinfo::support(),
            excludes: evenkeel_cbinfo::run_time_excludes(),
            malformed_functions: evenkeel_cbinfo::malformed_functions(),
            keeps_time_for_sched_ext: evenkeel_cbinfo::keeps_time_for_sched_ext(),
            cpuset: effective_cpuset(tid),
            affinity: affinity::get(tid).unwrap_or_default(),
            may_place_others: has_capability(&status, CAP_SYS_NICE),
            placing: try_placing(),
            journal: dir.and_then(try_journal),
            journals,
        }
    }
}

fn has_capability(status: &str, capability: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << capability) != 0
}

/// Sets a mask, on a thread of its own that ends at once.
fn try_placing() -> Result<(), String> {
    let thread = std::thread::spawn(|| {
        let tid = nix::unistd::gettid().as_raw();
        affinity::get(tid).and_then(|mask| affinity::set(tid, &mask))
    });
    match thread.join() {
        Ok(result) => result.map_err(|why| why.to_string()),
        Err(_) => Err("the attempt ended early".to_owned()),
    }
}

/// Opens a journal as a run does, which tells more than permissions do, and removes it.
fn try_journal(dir: PathBuf) -> Result<PathBuf, String> {
    let options = SessionOptions { command: vec!["doctor".to_owned()], ..Default::default() };
    let report = Session::open(&dir, options).map_err(|why| why.to_string())?.close();
    match report.errors.first() {
        None => Ok(dir),
        Some(error) => Err(error.to_string()),
    }
}

impl Journals {
    /// Sorts the journals below a runtime directory by their names, `PID-STARTTIME.jsonl`.
    pub fn read(dir: &Path) -> Self {
        let mut journals = Self::default();
        let entries = std::fs::read_dir(dir.join("journal")).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.extension().is_none_or(|extension| extension != "jsonl") {
                continue;
            }
            match writer_of(&path) {
                Some(writer) if writer.is_alive() => journals.live += 1,
                _ => journals.left.push(path),
            }
        }
        journals.left.sort();
        journals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_journal::TaskRef;

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        assert!(has_capability("CapPrm:\t0\nCapEff:\t0000000000800000\n", CAP_SYS_NICE));
        assert!(!has_capability("CapPrm:\t0000000000800000\nCapEff:\t0\n", CAP_SYS_NICE));
        assert!(!has_capability("", CAP_SYS_NICE));
    }

    #[test]
    fn journals_of_live_and_dead_writers_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("journal");
        std::fs::create_dir_all(&folder).unwrap();
        let own = TaskRef::own_process().unwrap();
        let alive = format!("{}-{}.jsonl", own.tid, own.start_time_ticks);
        let reused = format!("{}-{}.jsonl", own.tid, own.start_time_ticks + 1);
        for name in [alive.as_str(), &reused, "nonsense.jsonl", "1-1.damaged", "2-2.tmp"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let journals = Journals::read(dir.path());
        assert_eq!(journals.live, 1);
        assert_eq!(journals.left, [folder.join(reused), folder.join("nonsense.jsonl")]);
        assert_eq!(Journals::read(&dir.path().join("absent")), Journals::default());
    }

    #[test]
    fn asking_on_this_host_changes_no_mask() {
        let before = affinity::get(nix::unistd::gettid().as_raw()).unwrap();
        let process = Process::ask();
        assert!(process.affinity.is_subset(&process.cpuset));
        assert_eq!(process.placing, Ok(()));
        assert_eq!(affinity::get(nix::unistd::gettid().as_raw()).unwrap(), before);
    }
}
