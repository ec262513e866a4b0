//! Programs by name: which processes run one, and how each that will is to aggregate.

use std::collections::BTreeMap;
use std::path::Path;

use procfs::process::{Process, all_processes};
use serde::Deserialize;

use super::Aggregation;
use super::bonus::Bonus;

/// A program: the name of its command, or the path of its file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Program(String);

/// A process that runs a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// Its number.
    pub pid: u32,
    /// Whose it is.
    pub uid: u32,
    /// When it was started, in ticks since boot: tells it from another one of this number.
    pub start: u64,
}

impl Program {
    /// Whether a process runs it, whose command the kernel calls `comm`: by that name (of which the
    /// kernel keeps 15 characters), by the word that it was started with, or by its file.
    pub fn is_run_by(&self, process: &Process, comm: &str) -> bool {
        let words = process.cmdline().unwrap_or_default();
        // Without words: a kernel thread, or a process that has ended.
        let Some(word) = words.first() else { return false };
        let file = || process.exe().ok();
        if self.0.contains('/') {
            return word == &self.0 || file().is_some_and(|file| file == Path::new(&self.0));
        }
        let is_named = |path: &Path| path.file_name().is_some_and(|name| name == self.0.as_str());
        comm == self.0 || is_named(Path::new(word)) || file().is_some_and(|file| is_named(&file))
    }

    /// The processes that run it now, in the order of their numbers.
    pub fn instances(&self) -> Vec<Instance> {
        instances([self]).into_iter().map(|(_, instance)| instance).collect()
    }
}

/// The processes that run one of these, each with the first of them that it runs.
pub(super) fn instances<'a>(
    programs: impl IntoIterator<Item = &'a Program> + Clone,
) -> Vec<(&'a Program, Instance)> {
    let mut found = Vec::new();
    // One that ends while it is looked at is none.
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

/// How the processes of a program aggregate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Preference {
    /// How far their threads may run ahead.
    pub bonus: Bonus,
    /// Preferred at most so often in a row on a CPU; 0: no limit.
    pub limit: u64,
}

impl Preference {
    /// For one of them.
    pub fn aggregation(&self, pid: u32) -> Aggregation {
        let (bonus_type, bonus_value) = self.bonus.type_and_value();
        Aggregation { pid, agg: 1, bonus_type, bonus_value, limit: self.limit }
    }
}

/// Table `[ias]` of a configuration: what holds whenever the keel runs with this order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IasSettings {
    /// CPUs that aggregate together, as [`super::grouped`] takes them; none: those of a cache.
    pub groups: Option<String>,
    /// Programs whose processes aggregate, as soon as they run.
    pub programs: BTreeMap<Program, Preference>,
}

impl IasSettings {
    /// What is set here, and for the rest what is set in `other`.
    pub fn or(self, other: Self) -> Self {
        let mut programs = other.programs;
        programs.extend(self.programs);
        Self { groups: self.groups.or(other.groups), programs }
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
        for other in ["no-such-program", "/no/such/program", "keel/src"] {
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
