//! `--for`: the CPUs of a program, which interrupts are to be kept away from.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use evenkeel_journal::affinity;
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
    /// The CPUs that the program may use now: those of any of its threads, or of its cgroup.
    ///
    /// # Errors
    /// All of [`ProgramError`].
    pub fn cpus(&self) -> Result<CpuSet, ProgramError> {
        match self {
            Self::Process(pid) => {
                let tasks = fs::read_dir(format!("/proc/{pid}/task"))
                    .map_err(|_| ProgramError::NoProcess(*pid))?;
                let numbers =
                    tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
                let masks = numbers.filter_map(|tid| affinity::get(tid).ok());
                let cpus = masks.fold(CpuSet::new(), |all, mask| all.union(&mask));
                if cpus.is_empty() { Err(ProgramError::NoProcess(*pid)) } else { Ok(cpus) }
            }
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
}
