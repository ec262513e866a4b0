//! `--for`: the CPUs of a program, which interrupts are to be kept away from.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use evenkeel_journal::{TaskError, TaskRef, affinity};
use evenkeel_machine::CpuSet;

/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The file of a cgroup with the CPUs that its tasks may use.
const CPUS: &str = "cpuset.cpus.effective";

/// A program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// By a process.
    Process(i32),
    /// By its cgroup: its directory, or its name below the root.
    Cgroup(PathBuf),
}

/// A program that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunningProgram {
    /// A process, by its first thread. By its start, too: its number may become another one's.
    Process(TaskRef),
    /// As [`Program::Cgroup`].
    Cgroup(PathBuf),
}

/// Why the CPUs of a program are not known.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The process has ended.
    #[error("--for {0}: there is no such process; name one that runs, or a cgroup")]
    NoProcess(i32),
    /// The cgroup has no list of CPUs.
    #[error(
        "--for {}: no cgroup with {CPUS} there: name one of version 2 with the cpuset controller",
        .0.display()
    )]
    NoCgroup(PathBuf),
}

impl FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(pid @ 1..) => Ok(Self::Process(pid)),
            Err(_) if text.starts_with('/') => Ok(Self::Cgroup(text.into())),
            _ => Err("expected a process number, like 1234, or a cgroup, like /batch".to_owned()),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Cgroup(path) => write!(f, "cgroup {}", path.display()),
        }
    }
}

impl Program {
    /// Finds the process, which is the same from now on.
    ///
    /// # Errors
    /// [`ProgramError::NoProcess`].
    pub fn find(&self) -> Result<RunningProgram, ProgramError> {
        match self {
            Self::Process(pid) => {
                let process = TaskRef::of(*pid).and_then(|task| task.process());
                process.map(RunningProgram::Process).map_err(|_| ProgramError::NoProcess(*pid))
            }
            Self::Cgroup(path) => Ok(RunningProgram::Cgroup(path.clone())),
        }
    }

    /// The CPUs that the program may use now.
    ///
    /// # Errors
    /// All of [`ProgramError`].
    pub fn cpus(&self) -> Result<CpuSet, ProgramError> {
        self.find()?.cpus()
    }
}

impl RunningProgram {
    /// The CPUs that the program may use now: those of any of its threads, or of its cgroup.
    ///
    /// # Errors
    /// All of [`ProgramError`].
    pub fn cpus(&self) -> Result<CpuSet, ProgramError> {
        match self {
            Self::Process(process) => cpus_of_threads(process),
            Self::Cgroup(path) => {
                let below = path.strip_prefix("/").unwrap_or(path);
                let places = [path.join(CPUS), Path::new(CGROUPS).join(below).join(CPUS)];
                let list = places.iter().find_map(|file| fs::read_to_string(file).ok());
                let cpus = list.and_then(|list| list.trim().parse().ok());
                cpus.ok_or_else(|| ProgramError::NoCgroup(path.clone()))
            }
        }
    }
}

fn cpus_of_threads(process: &TaskRef) -> Result<CpuSet, ProgramError> {
    let pid = process.tgid;
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
    // A zombie has a mask until its parent waits for it.
    let may_run = |tid: &i32| match TaskRef::in_process(pid, *tid) {
        Ok(task) => task.is_alive(),
        Err(why) => matches!(why, TaskError::Late { .. }),
    };
    let masks = numbers.filter(may_run).filter_map(|tid| affinity::get(tid).ok());
    let cpus = masks.fold(CpuSet::new(), |all, mask| all.union(&mask));
    // Last: if the process is still the same now, what was read was its own.
    // One that cannot be read in time has not ended as far as is known.
    let is_same = match TaskRef::in_process(pid, pid) {
        Ok(now) => now == *process,
        Err(why) => matches!(why, TaskError::Late { .. }),
    };
    if cpus.is_empty() || !is_same { Err(ProgramError::NoProcess(pid)) } else { Ok(cpus) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_process_or_a_cgroup() {
        assert_eq!("12".parse(), Ok(Program::Process(12)));
        assert_eq!("/batch".parse(), Ok(Program::Cgroup("/batch".into())));
        for text in ["0", "-1", "batch", ""] {
            assert!(text.parse::<Program>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_cpus_of_a_process_are_its_threads_and_those_of_a_cgroup_its_files() {
        let own = std::process::id() as i32;
        assert!(affinity::get(own).unwrap().is_subset(&Program::Process(own).cpus().unwrap()));
        let why = Program::Process(i32::MAX).cpus().unwrap_err().to_string();
        assert!(why.contains("no such process"), "{why}");
        let folder = tempfile::tempdir().unwrap();
        let program = Program::Cgroup(folder.path().to_owned());
        assert!(program.cpus().unwrap_err().to_string().contains("cpuset controller"));
        fs::write(folder.path().join(CPUS), "2-3\n").unwrap();
        assert_eq!(program.cpus().unwrap(), "2-3".parse().unwrap());
    }

    #[test]
    fn a_process_that_has_ended_has_no_cpus_while_its_number_is_taken() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = Program::Process(child.id() as i32);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        // Until it is waited for, it is a zombie.
        while process.cpus().is_ok() {
            assert!(std::time::Instant::now() < deadline, "a zombie has CPUs");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        child.wait().unwrap();
        // Another process that had this number before.
        let own = TaskRef::own_process().unwrap();
        let earlier = TaskRef { start_time_ticks: own.start_time_ticks - 1, ..own };
        assert!(RunningProgram::Process(own).cpus().is_ok());
        assert!(RunningProgram::Process(earlier).cpus().is_err());
    }
}
