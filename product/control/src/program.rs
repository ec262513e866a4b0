//! Programs by name, and the processes that run one: requests and configurations name a program where
//! they mean all of its processes.

use std::path::Path;

use procfs::process::{Process, all_processes};
use schemars::JsonSchema;
use serde::Deserialize;

/// A program, by the name of its command or the path of its file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct Program(String);

/// A process that runs a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// Its process ID.
    pub pid: u32,
    /// The user that it belongs to.
    pub uid: u32,
    /// When it was started, in ticks since boot: tells it from a later process with the same ID.
    pub start: u64,
}

impl Program {
    /// Whether `process` runs this program: by `comm`, the name that the kernel has for its command (at
    /// most 15 characters), by the word that it was started with, or by its file.
    pub fn is_run_by(&self, process: &Process, comm: &str) -> bool {
        let words = process.cmdline().unwrap_or_default();
        // A kernel thread, or a process that has ended, has no words.
        let Some(word) = words.first() else { return false };
        let file = || process.exe().ok();
        if self.0.contains('/') {
            return word == &self.0 || file().is_some_and(|file| file == Path::new(&self.0));
        }
        let is_named = |path: &Path| path.file_name().is_some_and(|name| name == self.0.as_str());
        comm == self.0 || is_named(Path::new(word)) || file().is_some_and(|file| is_named(&file))
    }

    /// The processes that run this program now, in the order of their IDs.
    pub fn instances(&self) -> Vec<Instance> {
        instances([self]).into_iter().map(|(_, instance)| instance).collect()
    }
}

/// The processes that run one of these programs, each with the first program that it runs.
pub fn instances<'a>(
    programs: impl IntoIterator<Item = &'a Program> + Clone,
) -> Vec<(&'a Program, Instance)> {
    let mut found = Vec::new();
    // A process that ends meanwhile is left out.
    for process in all_processes().into_iter().flatten().flatten() {
        let Ok(stat) = process.stat() else { continue };
        let runs = |program: &&Program| program.is_run_by(&process, &stat.comm);
        if let Some(program) = programs.clone().into_iter().find(runs)
            && let (Ok(pid), Ok(uid)) = (u32::try_from(stat.pid), process.uid())
        {
            found.push((program, Instance { pid, uid, start: stat.starttime }));
        }
    }
    found.sort_by_key(|(_, instance)| instance.pid);
    found
}

impl TryFrom<String> for Program {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() || text.ends_with('/') {
            return Err(format!(
                "program \"{text}\": expected the name of a command or the path of its file"
            ));
        }
        Ok(Self(text))
    }
}

impl std::str::FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> (Process, String) {
        let process = Process::myself().unwrap();
        let comm = process.stat().unwrap().comm;
        (process, comm)
    }

    #[test]
    fn a_process_runs_a_program_by_any_of_its_names() {
        let (process, comm) = own();
        let file = process.exe().unwrap();
        let names = [comm.clone(), file.display().to_string()];
        let base = file.file_name().unwrap().to_str().unwrap().to_owned();
        for name in names.into_iter().chain([base]) {
            let program: Program = name.parse().unwrap();
            assert!(program.is_run_by(&process, &comm), "{program}");
            let pid = std::process::id();
            assert!(program.instances().iter().any(|instance| instance.pid == pid), "{program}");
        }
        for other in ["no-such-program", "/no/such/program", "control/src"] {
            let program: Program = other.parse().unwrap();
            assert!(!program.is_run_by(&process, &comm), "{program}");
            assert_eq!(program.instances(), []);
        }
        for nonsense in ["", "/usr/bin/"] {
            let why = nonsense.parse::<Program>().unwrap_err();
            assert!(why.contains("name of a command or the path"), "{why}");
        }
    }
}
