//! One run of a program: the command of each contestant, its time from the outside, and what it
//! prints about itself.

use std::cell::RefCell;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use evenkeel_host::Summary;
use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;

use super::matrix::{Method, Subject};
use crate::programs::{Installed, Program, field};
use evenkeel_experiment::command;

/// What a run is.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// The program.
    pub subject: Subject,
    /// Units of work of the static loop.
    pub work: u64,
    /// How it is run.
    pub method: Method,
    /// `OMP_WAIT_POLICY`.
    pub wait_policy: Option<&'static str>,
}

/// What a run gave.
#[derive(Debug)]
pub struct Ended {
    /// From before the start of the command to its end, in s: start-up counts.
    pub seconds: f64,
    /// What the balancer says, if there was one.
    pub summary: Option<Summary>,
}

/// Starts programs.
pub struct Launcher {
    executable: PathBuf,
    programs: Installed,
    threads: usize,
    fast: CpuSet,
    /// Work and result of the static loop: all runs of the same work must have the same result.
    checksum: RefCell<Option<(u64, String)>>,
}

impl Launcher {
    /// `executable` is evenkeel itself, `usable` the CPUs of the programs, `noisy` the one of them
    /// that is disturbed.
    ///
    /// # Errors
    /// The programs cannot be written to the temporary directory.
    pub fn new(executable: PathBuf, usable: &CpuSet, noisy: u32) -> Result<Self> {
        let mut fast = usable.clone();
        fast.remove(noisy);
        Ok(Self {
            executable,
            programs: Installed::new()?,
            threads: usable.len(),
            fast,
            checksum: RefCell::new(None),
        })
    }

    /// Threads of each program.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs the program once, to its end.
    ///
    /// # Errors
    /// It cannot be started, fails, or its result differs from an earlier one, or a signal asked for
    /// the end. It does not run any more then.
    pub fn run(&self, task: &Task) -> Result<Ended> {
        let balanced = task.method.balancer();
        let json = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
        let program = match task.subject {
            Subject::StaticLoop => {
                let work = task.work.to_string();
                self.programs.command(Program::StaticLoop, ["--work", &work])
            }
            Subject::Ep => self.programs.command(Program::Ep, ["--class", "A"]),
        };
        let mut command = match balanced {
            None => program,
            Some(options) => {
                let mut run = Command::new(&self.executable);
                // The defaults are the built-in ones, not those of this machine's configuration.
                run.args(["--config", "/dev/null", "run", "-q", "--json"]).arg(json.path());
                run.args(options).arg("--").arg(program.get_program()).args(program.get_args());
                run
            }
        };
        self.set_up(&mut command, task)?;
        let ended = command::run(&mut command)?;
        let summary = match balanced {
            None => None,
            Some(_) => {
                let bytes =
                    std::fs::read(json.path()).context("cannot read the balancer's JSON")?;
                let summary = serde_json::from_slice(&bytes);
                Some(summary.with_context(|| {
                    format!("evenkeel run did not say how it went: {}", ended.errors.trim())
                })?)
            }
        };
        self.check(task, &ended.output)?;
        Ok(Ended { seconds: ended.seconds, summary })
    }

    /// Environment and CPUs.
    fn set_up(&self, command: &mut Command, task: &Task) -> Result<()> {
        command::set_threads(command, self.threads);
        if let Some(policy) = task.wait_policy {
            command.env("OMP_WAIT_POLICY", policy);
        }
        match task.method {
            Method::Pinned => {
                command.env("OMP_PROC_BIND", "true").env("OMP_PLACES", "threads");
            }
            Method::FastOnly if self.fast.is_empty() => {
                bail!("fast-only needs a CPU without noise, and there is no other");
            }
            Method::FastOnly => {
                let fast = self.fast.clone();
                let stay_there = move || {
                    affinity::set(nix::unistd::getpid().as_raw(), &fast)
                        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
                };
                // SAFETY: one system call; memory is allocated only to report an error.
                unsafe { command.pre_exec(stay_there) };
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks the result that the program printed.
    fn check(&self, task: &Task, line: &str) -> Result<()> {
        let printed = || format!("{} printed {:?}", task.subject.name(), line.trim());
        match task.subject {
            Subject::Ep if field(line, "verification") == Some("SUCCESSFUL") => {}
            Subject::Ep => bail!("{}: its results are wrong", printed()),
            Subject::StaticLoop => {
                let sum = field(line, "checksum").with_context(printed)?.to_owned();
                let mut known = self.checksum.borrow_mut();
                match known.as_ref().filter(|(work, _)| *work == task.work) {
                    Some((_, first)) if *first != sum => {
                        bail!("{}: another run of the same work gave {first}", printed());
                    }
                    _ => *known = Some((task.work, sum)),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launcher() -> Launcher {
        let usable = affinity::get(nix::unistd::getpid().as_raw()).unwrap();
        let noisy = usable.iter().next().unwrap();
        Launcher::new("/bin/false".into(), &usable, noisy).unwrap()
    }

    fn task(method: Method) -> Task {
        Task { subject: Subject::StaticLoop, work: 4, method, wait_policy: Some("passive") }
    }

    #[test]
    fn programs_run_and_are_timed() {
        let launcher = launcher();
        for contestant in [Method::Default, Method::Pinned, Method::FastOnly] {
            if contestant == Method::FastOnly && launcher.fast.is_empty() {
                continue;
            }
            let ended = launcher.run(&task(contestant)).unwrap();
            assert!(ended.seconds > 0.0);
            assert!(ended.summary.is_none());
        }
    }

    #[test]
    fn another_result_for_the_same_work_is_an_error() {
        let launcher = launcher();
        *launcher.checksum.borrow_mut() = Some((4, "0".into()));
        let error = launcher.run(&task(Method::Default)).unwrap_err().to_string();
        assert!(error.contains("another run of the same work gave 0"), "{error}");
    }

    #[test]
    fn a_balancer_that_fails_is_told() {
        let error = launcher().run(&task(Method::Lag)).unwrap_err().to_string();
        assert!(error.contains("/bin/false failed (exit status: 1)"), "{error}");
    }
}
