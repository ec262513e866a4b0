//! Programs by name, and the processes that run one: requests and configurations name a program where
//! they mean all of its processes.

use std::path::Path;
use std::sync::Arc;

use procfs::process::{Process, Stat, StatFlags, all_processes};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::command_line::judge_first_words;
use crate::in_time::{Lock, read_each_in_time, read_in_time};

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
    /// Whether a process runs this program by `comm`, the name that the kernel has for its command (at
    /// most 15 characters), or by its file.
    fn is_command(&self, comm: &str, file: Option<&Path>) -> bool {
        if self.0.contains('/') {
            return file.is_some_and(|file| file == Path::new(&self.0));
        }
        comm == self.0 || file.is_some_and(|file| self.is_name_of(file))
    }

    /// Whether a process runs this program by the word that it was started with.
    fn is_word(&self, word: &str) -> bool {
        if self.0.contains('/') { word == self.0 } else { self.is_name_of(Path::new(word)) }
    }

    fn is_name_of(&self, path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == self.0.as_str())
    }

    /// The processes that run this program now, in the order of their IDs.
    pub fn instances(&self) -> Vec<Instance> {
        instances([self]).into_iter().map(|(_, instance)| instance).collect()
    }
}

/// The processes that run one of these programs, in the order of their IDs, each with the first program
/// that it runs: by the name of its command, by its file, or by the word that it was started with. Where
/// one of these cannot be read in time, the process may be missing: it need not have ended.
pub fn instances<'a>(
    programs: impl IntoIterator<Item = &'a Program>,
) -> Vec<(&'a Program, Instance)> {
    let programs: Vec<&Program> = programs.into_iter().collect();
    let known: Arc<[Program]> = programs.iter().copied().cloned().collect();
    let running = all_processes().into_iter().flatten().flatten();
    let pids: Vec<i32> = running.map(|process| process.pid).collect();
    let by_command = Arc::clone(&known);
    let mut seen: Vec<(usize, Instance)> =
        read_each_in_time(Lock::Exec, &pids, move |pid| see(pid, &by_command))
            .into_values()
            .flatten()
            .collect();
    let unsure = seen.iter().filter(|(first, _)| *first > 0);
    let pids: Vec<i32> = unsure.map(|(_, instance)| instance.pid as i32).collect();
    let program_of = move |word: &str| known.iter().position(|program| program.is_word(word));
    let by_words = judge_first_words(&pids, program_of);
    for (first, instance) in &mut seen {
        let by_word = by_words.get(&(instance.pid as i32)).filter(|by_word| **by_word < *first);
        if let Some(by_word) = by_word.filter(|_| is_there(instance)) {
            *first = *by_word;
        }
    }
    let mut found: Vec<(&Program, Instance)> = seen
        .into_iter()
        .filter_map(|(first, instance)| Some((*programs.get(first)?, instance)))
        .collect();
    found.sort_by_key(|(_, instance)| instance.pid);
    found
}

/// A process with the place of its first program, by its command or its file; without one, the number
/// of programs. `None` for one that ends meanwhile or runs nothing. This may wait for ever.
fn see(pid: i32, programs: &[Program]) -> Option<(usize, Instance)> {
    // All is read through one descriptor, so it is of one process.
    let process = Process::new(pid).ok()?;
    let stat = process.stat().ok().filter(|stat| !runs_nothing(stat))?;
    let file = process.exe().ok();
    let is_command = |program: &Program| program.is_command(&stat.comm, file.as_deref());
    let first = programs.iter().position(is_command).unwrap_or(programs.len());
    let (pid, uid) = (u32::try_from(pid).ok()?, process.uid().ok()?);
    Some((first, Instance { pid, uid, start: stat.starttime }))
}

/// Whether this is a kernel thread, or a process that has ended.
fn runs_nothing(stat: &Stat) -> bool {
    let flags = StatFlags::from_bits_truncate(stat.flags);
    flags.contains(StatFlags::PF_KTHREAD) || matches!(stat.state, 'Z' | 'X')
}

/// Whether the process surely has its number still.
fn is_there(instance: &Instance) -> bool {
    let pid = instance.pid as i32;
    let stat =
        read_in_time(Lock::Exec, pid, move || Process::new(pid).and_then(|process| process.stat()));
    stat.is_ok_and(|stat| stat.is_ok_and(|stat| stat.starttime == instance.start))
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
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};
    use std::time::Duration;

    use super::*;

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn program(name: &str) -> Program {
        name.parse().unwrap()
    }

    fn is_found(program: &Program, pid: u32) -> bool {
        program.instances().iter().any(|instance| instance.pid == pid)
    }

    #[test]
    fn a_process_runs_a_program_by_its_command_and_by_its_file() {
        let own = Process::myself().unwrap();
        let file = own.exe().unwrap();
        let base = file.file_name().unwrap().to_str().unwrap().to_owned();
        let pid = std::process::id();
        for name in [own.stat().unwrap().comm, file.display().to_string(), base] {
            assert!(is_found(&program(&name), pid), "{name}");
        }
        for other in ["no-such-program", "/no/such/program", "control/src"] {
            assert_eq!(program(other).instances(), [], "{other}");
        }
        for nonsense in ["", "/usr/bin/"] {
            let why = nonsense.parse::<Program>().unwrap_err();
            assert!(why.contains("name of a command or the path"), "{why}");
        }
    }

    #[test]
    fn a_process_runs_a_program_by_the_word_that_it_was_started_with() {
        let word = "/evenkeel/no/such/alias";
        let mut command = Command::new("sleep");
        let sleeper = Sleeper(command.arg0(word).arg("600").spawn().unwrap());
        let (path, name) = (program(word), program("alias"));
        // On a busy machine there may be a pause in the reading.
        let is_known = || is_found(&path, sleeper.0.id()) && is_found(&name, sleeper.0.id());
        assert!((0..6000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            is_known()
        }));
        // The first program counts, by whichever of these a process runs it.
        let sleep = program("sleep");
        let first_of = |programs: [&Program; 2]| {
            let pid = sleeper.0.id();
            let found = instances(programs).into_iter().find(|(_, instance)| instance.pid == pid);
            found.map(|(program, _)| program.to_string())
        };
        assert_eq!(first_of([&sleep, &path]).as_deref(), Some("sleep"));
        assert!((0..6000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            first_of([&path, &sleep]).as_deref() == Some(word)
        }));
    }

    #[test]
    fn kernel_threads_and_ended_processes_run_nothing() {
        let kernel_threads = program("kthreadd").instances();
        assert!(kernel_threads.iter().all(|instance| instance.pid != 2), "{kernel_threads:?}");
        let mut ended = Sleeper(Command::new("true").spawn().unwrap());
        let pid = ended.0.id();
        let has_ended = || Process::new(pid as i32).unwrap().stat().unwrap().state == 'Z';
        while !has_ended() {
            std::thread::yield_now();
        }
        assert!(!is_found(&program("true"), pid));
        ended.0.wait().unwrap();
    }
}
