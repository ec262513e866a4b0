//! One run of a program: the command of each contestant, its time from the outside, and what it
//! says about itself.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_host::Summary;
use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::matrix::{Contestant, Subject};
use crate::interrupt;
use crate::programs::{Installed, Program, field};

/// No run takes longer; one that does is ended.
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// How long a command may take to end once it was asked to.
const END_LIMIT: Duration = Duration::from_secs(3);
/// How often to look whether somebody asked for the end, in ms. A program that ends is seen at
/// once.
const LOOK_MS: u16 = 100;
/// The most that is shown of what a failed command said, in bytes.
const SHOWN_BYTES: u64 = 2_000;
/// Variables of the environment that would change how the programs run.
const OPENMP_VARIABLES: [&str; 3] = ["OMP_", "GOMP_", "KMP_"];

/// What a run is.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// The program.
    pub subject: Subject,
    /// Units of work of the static loop.
    pub work: u64,
    /// How it is run.
    pub contestant: Contestant,
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
    /// Work and result of the static loop: whoever runs it, the result must be the same.
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
    /// It cannot be started, fails, computes something else than before, or somebody asked for the
    /// end meanwhile. It does not run any more then.
    pub fn run(&self, task: &Task) -> Result<Ended> {
        interrupt::check()?;
        let balanced = task.contestant.balancer();
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
        let output = tempfile::tempfile().context("cannot make a temporary file")?;
        let errors = tempfile::tempfile().context("cannot make a temporary file")?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?);

        let start = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let waited = wait(&mut child, start);
        let seconds = start.elapsed().as_secs_f64();
        let status = waited?;
        let said = || -> Result<String> { Ok(text(&errors)?.trim().to_owned()) };
        if !status.success() {
            bail!("{} failed ({status}): {}", command.get_program().display(), said()?);
        }
        let line = text(&output)?;
        let summary = match balanced {
            None => None,
            Some(_) => {
                let bytes =
                    std::fs::read(json.path()).context("cannot read the balancer's JSON")?;
                let summary = serde_json::from_slice(&bytes);
                Some(summary.with_context(|| {
                    format!("evenkeel run did not say how it went: {}", said().unwrap_or_default())
                })?)
            }
        };
        self.check(task, &line)?;
        Ok(Ended { seconds, summary })
    }

    /// Environment, CPUs, and the end with us.
    fn set_up(&self, command: &mut Command, task: &Task) -> Result<()> {
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if OPENMP_VARIABLES.iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command.env("OMP_NUM_THREADS", self.threads.to_string());
        if let Some(policy) = task.wait_policy {
            command.env("OMP_WAIT_POLICY", policy);
        }
        let mut only = None;
        match task.contestant {
            Contestant::Pinned => {
                command.env("OMP_PROC_BIND", "true").env("OMP_PLACES", "threads");
            }
            Contestant::FastOnly if self.fast.is_empty() => {
                bail!("fast-only needs a CPU without noise, and there is no other");
            }
            Contestant::FastOnly => only = Some(self.fast.clone()),
            _ => {}
        }
        let before_exec = move || {
            // SAFETY: takes integers; asks the kernel to end this process with its parent.
            if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } != 0 {
                return Err(io::Error::last_os_error());
            }
            match &only {
                Some(cpus) => affinity::set(nix::unistd::getpid().as_raw(), cpus)
                    .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL)),
                None => Ok(()),
            }
        };
        // SAFETY: two system calls; memory is allocated only to report an error.
        unsafe { command.pre_exec(before_exec) };
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

/// What a command wrote to a file, its end if that is much.
fn text(mut file: &File) -> Result<String> {
    let length = file.seek(io::SeekFrom::End(0))?;
    file.seek(io::SeekFrom::Start(length.saturating_sub(SHOWN_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(SHOWN_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits for the end of the command; ends it when somebody asks for the end, or at the limit.
fn wait(child: &mut Child, start: Instant) -> Result<ExitStatus> {
    let pid = child.id() as libc::pid_t;
    // SAFETY: takes two integers; a non-negative result is a descriptor that we own.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let Ok(fd) = libc::c_int::try_from(fd) else { return Ok(child.wait()?) };
    if fd < 0 {
        // Forbidden in some containers: without it Ctrl-C takes effect after the run.
        return Ok(child.wait()?);
    }
    // SAFETY: see above.
    let ended = unsafe { OwnedFd::from_raw_fd(fd) };
    loop {
        let mut fds = [PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
        if matches!(poll(&mut fds, PollTimeout::from(LOOK_MS)), Ok(1)) {
            return Ok(child.wait()?);
        }
        let late = start.elapsed() > RUN_LIMIT;
        if late || interrupt::asked().is_some() {
            end(child);
            interrupt::check()?;
            bail!("a run took more than {} s and was ended", RUN_LIMIT.as_secs());
        }
    }
}

/// Asks the command to end, which lets a balancer clean up; then makes it.
fn end(child: &mut Child) {
    let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
    let start = Instant::now();
    while start.elapsed() < END_LIMIT {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launcher() -> Launcher {
        let usable = affinity::get(nix::unistd::getpid().as_raw()).unwrap();
        let noisy = usable.iter().next().unwrap();
        Launcher::new("/bin/false".into(), &usable, noisy).unwrap()
    }

    fn task(contestant: Contestant) -> Task {
        Task { subject: Subject::StaticLoop, work: 4, contestant, wait_policy: Some("passive") }
    }

    #[test]
    fn programs_run_and_are_timed() {
        let launcher = launcher();
        for contestant in [Contestant::Default, Contestant::Pinned, Contestant::FastOnly] {
            if contestant == Contestant::FastOnly && launcher.fast.is_empty() {
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
        let error = launcher.run(&task(Contestant::Default)).unwrap_err().to_string();
        assert!(error.contains("another run of the same work gave 0"), "{error}");
    }

    #[test]
    fn a_balancer_that_fails_is_told() {
        let error = launcher().run(&task(Contestant::Lag)).unwrap_err().to_string();
        assert!(error.contains("/bin/false failed (exit status: 1)"), "{error}");
    }
}
