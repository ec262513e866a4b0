//! Facts that only a live process can ask the kernel for: what it may do, and whether doing it
//! works.

use std::path::{Path, PathBuf};

use evenkeel_cbinfo::{RunTimeExcludes, Unsupported};
use evenkeel_journal::{
    Session, SessionOptions, affinity, effective_cpuset, runtime_dir, writer_of,
};
use evenkeel_machine::CpuSet;

/// CAP_SYS_NICE (kernel: `include/uapi/linux/capability.h`).
const CAP_SYS_NICE: u32 = 23;

/// What the kernel answers this process.
#[derive(Debug, Clone)]
pub struct Process {
    /// Whether exact accounting may be started.
    pub bpf: Result<(), Unsupported>,
    /// What the kernel's run time leaves out by itself, where that can be told.
    pub excludes: Option<RunTimeExcludes>,
    /// Functions of sched_ext that the kernel's BTF describes wrongly: no scheduler can be loaded.
    pub malformed_functions: Vec<String>,
    /// The CPUs of the cpuset that are online.
    pub cpuset: CpuSet,
    /// The CPUs that this process may use, and whatever it starts.
    pub affinity: CpuSet,
    /// May place tasks of other users.
    pub may_place_others: bool,
    /// Whether an affinity could be set.
    pub placing: Result<(), String>,
    /// Where journals lie, if one could be opened there.
    pub journal: Result<PathBuf, String>,
    /// The journals that were there already.
    pub journals: Journals,
}

/// Journals by what became of their writers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Journals {
    /// The writer is alive.
    pub live: usize,
    /// The writer has ended without taking everything back.
    pub left: Vec<PathBuf>,
}

impl Process {
    /// Asks and tries. Leaves nothing behind.
    pub fn ask() -> Self {
        let tid = nix::unistd::gettid().as_raw();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let dir = runtime_dir().map_err(|why| why.to_string());
        // Looked at before we open one of our own.
        let journals = dir.as_deref().map(Journals::read).unwrap_or_default();
        Self {
            bpf: evenkeel_cbinfo::support(),
            excludes: evenkeel_cbinfo::run_time_excludes(),
            malformed_functions: evenkeel_keel::malformed_functions(),
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

/// Sets a mask on a thread of its own, whose end takes it along.
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

/// Opens a journal as a run would, which tells more than looking at permissions, and removes it.
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
    fn journals_of_the_living_and_of_the_dead() {
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
    fn this_host_may_be_asked() {
        let before = affinity::get(nix::unistd::gettid().as_raw()).unwrap();
        let process = Process::ask();
        assert!(process.affinity.is_subset(&process.cpuset));
        assert_eq!(process.placing, Ok(()));
        assert_eq!(affinity::get(nix::unistd::gettid().as_raw()).unwrap(), before);
    }
}
