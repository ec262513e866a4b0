//! The task of a batch system. Its plugin (packaging/slurm) replaces the path of the task's program by
//! that of this executable and leaves the arguments alone, so variables say what the program is, how
//! `run` is to run it, and which process that is for. Whatever goes wrong here, the program runs: as if
//! it had been started without evenkeel, and with one line that says why.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use evenkeel_host::{ChildError, Origin, RunError, exec};

use crate::cli::{Cli, Command, RunArgs};
use crate::config::usable::blame;
use crate::{config, run, terminal};

/// The path of the task's program.
const PROGRAM: &str = "EVENKEEL_TASK_PROGRAM";
/// Options of `run`, between spaces.
const OPTIONS: &str = "EVENKEEL_TASK_OPTIONS";
/// The process that is the task: what is started before it, by a prolog, inherits the variables.
const PID: &str = "EVENKEEL_TASK_PID";

/// A task that this process was started for.
#[derive(Debug)]
pub struct Task {
    options: Vec<OsString>,
    command: Vec<OsString>,
}

impl Task {
    /// The task, if this process is one. Takes the variables out of the environment: the program must
    /// not see them. Call it before any other thread runs.
    pub fn of_this_process() -> Option<Self> {
        let program = std::env::var_os(PROGRAM)?;
        let options = std::env::var(OPTIONS).unwrap_or_default();
        let pid = std::env::var(PID).unwrap_or_default();
        for name in [PROGRAM, OPTIONS, PID] {
            // SAFETY: no other thread runs that could read the environment.
            unsafe { std::env::remove_var(name) };
        }
        (pid == std::process::id().to_string()).then(|| Self {
            options: options.split_whitespace().map(OsString::from).collect(),
            command: std::iter::once(find(program)).chain(std::env::args_os().skip(1)).collect(),
        })
    }

    /// Runs the program as `run` does, or else in place of this process.
    pub fn run(self, origin: Origin) -> ExitCode {
        terminal::start_logging(0);
        match self.try_run(origin) {
            Ok(code) => terminal::exit_code("evenkeel", Ok(code)),
            Err(why) => {
                // One task of each node says it for all.
                if std::env::var("SLURM_LOCALID").map_or(true, |local| local == "0") {
                    say(&format!("{}; the task runs without evenkeel", in_a_line(&why)));
                }
                let failed = exec(&self.command, origin);
                say(&failed.to_string());
                ExitCode::from(code_of(&failed))
            }
        }
    }

    fn try_run(&self, origin: Origin) -> Result<i32> {
        let args = self.arguments()?;
        match run::run_command(args, config::load(None)?, origin) {
            Ok(code) => Ok(code),
            Err(run::Failure::Refused(why)) => Err(blame(why, None)),
            Err(run::Failure::Run(RunError::NotStarted(why))) => Err(why.into()),
            Err(run::Failure::Run(why @ RunError::Lost(_))) => {
                say(&why.to_string());
                Ok(why.exit_code())
            }
        }
    }

    fn arguments(&self) -> Result<RunArgs> {
        let [name, run, end] = ["evenkeel", "run", "--"].map(OsString::from);
        let options = self.options.iter().cloned();
        let words = [name, run].into_iter().chain(options).chain([end]);
        let words = words.chain(self.command.iter().cloned());
        let parsed = Cli::try_parse_from(words).map_err(|why| {
            let text = why.to_string();
            let first = text.lines().next().unwrap_or_default();
            anyhow::anyhow!("{}", first.trim_start_matches("error: "))
        })?;
        match parsed.command {
            Command::Run(args) => Ok(args),
            _ => anyhow::bail!("the options of the task are not those of evenkeel run"),
        }
    }
}

/// The path of a program, by the rules of Slurm: a name without a slash is looked for in PATH, which
/// scripts of the site may have changed since the plugin was called.
fn find(name: OsString) -> OsString {
    let bytes = name.as_bytes();
    if bytes.contains(&b'/') {
        let is_from_here = bytes.starts_with(b"./") || bytes.starts_with(b"../");
        let here = if is_from_here { std::env::current_dir().ok() } else { None };
        return here.map_or_else(|| name.clone(), |here| here.join(&name).into_os_string());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::env::split_paths(&folders).map(|folder| folder.join(&name));
    let found = paths.into_iter().find(|path| {
        nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok() && path.is_file()
    });
    match found {
        Some(path) => path.into_os_string(),
        // Then one from here, whatever PATH has.
        None => Path::new(".").join(name).into_os_string(),
    }
}

/// The exit code of a task that Slurm cannot start: the number of the error.
fn code_of(error: &ChildError) -> u8 {
    let number = match error {
        ChildError::NotFound { .. } => Some(libc::ENOENT),
        // Without a number: the interpreter does not exist.
        ChildError::NotExecutable { source, .. } => source.raw_os_error().or(Some(libc::ENOENT)),
        ChildError::System(number) => Some(*number as i32),
    };
    number.and_then(|number| u8::try_from(number).ok()).unwrap_or(1)
}

fn in_a_line(error: &anyhow::Error) -> String {
    let text = terminal::in_full(error);
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Prints a line on standard error. Not by eprintln, which panics when standard error is closed.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(format!("evenkeel: {text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(options: &[&str], command: &[&str]) -> Task {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect();
        Task { options: words(options), command: words(command) }
    }

    #[test]
    fn the_arguments_of_the_program_are_its_own() {
        let args =
            task(&["--threads", "4"], &["/bin/app", "--shares", "--", "-q"]).arguments().unwrap();
        assert_eq!(args.threads, Some(4));
        assert!(!args.shares && !args.quiet);
        assert_eq!(args.command, ["/bin/app", "--shares", "--", "-q"]);
    }

    #[test]
    fn a_program_is_found_as_slurm_finds_it() {
        let here = std::env::current_dir().unwrap();
        let found = |name: &str| find(name.into()).into_string().unwrap();
        assert!(found("sh").starts_with('/') && found("sh").ends_with("/sh"));
        assert_eq!(found("/no/such"), "/no/such");
        assert_eq!(found("bin/app"), "bin/app");
        assert_eq!(found("./app"), format!("{}/./app", here.display()));
        assert_eq!(found("no-such-program-anywhere"), "./no-such-program-anywhere");
    }

    #[test]
    fn options_that_run_does_not_have_are_named() {
        let why = task(&["--warp"], &["/bin/app"]).arguments().unwrap_err().to_string();
        assert!(why.contains("--warp") && !why.contains('\n'), "{why}");
    }
}
