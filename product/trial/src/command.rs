//! One command, run to its end: its time from the outside, and what it printed.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, getpgid};
use procfs::process::{Process, all_processes};

use crate::interrupt;

/// No run takes longer, unless its caller allows it; one that does is ended.
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// How long a command and its group may take to end once they were asked to, and once more when they
/// were killed.
const END_LIMIT: Duration = Duration::from_secs(3);
/// How often to look whether a signal asks for the end, and at the program, in ms. A program that ends
/// is seen at once.
const LOOK_MS: u16 = 100;
/// The first look at a program is so soon, in ms, and each of the next ones takes twice as long: a short
/// program is seen, too.
const FIRST_LOOK_MS: u16 = 2;
/// The most that is shown of what a failed command said, in bytes.
const SHOWN_BYTES: u64 = 2_000;
/// Variables of the environment that would change how OpenMP programs run.
const OPENMP_VARIABLES: [&str; 3] = ["OMP_", "GOMP_", "KMP_"];

/// What a run gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// From before the start of the command to its end, in s: start-up counts.
    pub seconds: f64,
    /// What it wrote to standard output: the last 2,000 bytes.
    pub output: String,
    /// The same of standard error.
    pub errors: String,
}

/// The error of a run that took more time than its caller allows, and was ended.
#[derive(Debug)]
pub struct TooLong {
    limit: Duration,
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a run took more than {} s and was ended", self.limit.as_secs_f64())
    }
}

impl std::error::Error for TooLong {}

/// The error of a command that ended by itself, and without success.
#[derive(Debug)]
pub struct Failed {
    /// What failed, as the error names it.
    pub name: String,
    /// How it ended.
    pub status: ExitStatus,
    errors: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = match self.errors.trim() {
            "" => "it wrote nothing to standard error",
            said => said,
        };
        write!(f, "{} failed ({}): {said}", self.name, self.status)
    }
}

impl std::error::Error for Failed {}

/// A command that runs. Dropping it ends it.
pub struct Running {
    name: String,
    child: Child,
    start: Instant,
    output: File,
    errors: File,
    waited: bool,
}

/// Starts a command with a given number of OpenMP threads, without this environment's settings for
/// OpenMP.
pub fn set_threads(command: &mut Command, threads: usize) {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if OPENMP_VARIABLES.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.env("OMP_NUM_THREADS", threads.to_string());
}

/// Has what the command starts be told to end (SIGTERM) when the thread that starts it ends, whatever
/// ends that.
pub fn end_with_us(command: &mut Command) {
    let us = std::process::id();
    let end_with_us = move || {
        // SAFETY: takes integers; asks the kernel to end this process with its parent.
        if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // We may have ended before the kernel was asked.
        if std::os::unix::process::parent_id() != us {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    };
    // SAFETY: system calls; memory is allocated only to report an error.
    unsafe { command.pre_exec(end_with_us) };
}

/// A helper process that runs as long as this lives; it is then asked to end (SIGTERM), and waited for.
#[derive(Debug)]
pub struct Helper(pub Child);

impl Helper {
    /// Asks it to end, and does not wait.
    pub fn ask_to_end(&self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Of one that was waited for, another process may have the number.
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            self.ask_to_end();
        }
        let _ = self.0.wait();
    }
}

/// Starts the command and waits for its end.
///
/// # Errors
/// It cannot be started, fails, takes more than two minutes, or a signal asks for the end
/// meanwhile. It does not run any more then.
pub fn run(command: &mut Command) -> Result<Ended> {
    Running::start(command)?.wait()
}

impl Running {
    /// Starts the command. It ends with this thread, whatever becomes of us.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        interrupt::check()?;
        let output = tempfile::tempfile().context("cannot make a temporary file")?;
        let errors = tempfile::tempfile().context("cannot make a temporary file")?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(errors.try_clone()?);
        end_with_us(command);
        let name = command.get_program().display().to_string();
        let start = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child, start, output, errors, waited: false })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended already. [`Self::wait`] says how.
    pub fn has_ended(&self) -> bool {
        is_over(Pid::from_raw(self.child.id() as i32))
    }

    /// The file that takes its standard output: to read all of it once it has ended.
    ///
    /// # Errors
    /// The process has too many files open.
    pub fn output(&self) -> io::Result<File> {
        self.output.try_clone()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// It fails ([`Failed`]), takes more than two minutes, or a signal asks for the end meanwhile.
    pub fn wait(self) -> Result<Ended> {
        self.wait_at_most(RUN_LIMIT, |_| {})
    }

    /// Waits for the end. `look` is called with the number of the process while it runs: after 2 ms, and
    /// then less and less often, at last each 100 ms.
    ///
    /// # Errors
    /// It fails ([`Failed`]), takes more time than `limit` ([`TooLong`]), or a signal asks for the end
    /// meanwhile.
    pub fn wait_at_most(mut self, limit: Duration, mut look: impl FnMut(u32)) -> Result<Ended> {
        let waited = wait(&mut self.child, self.start, limit, &mut look);
        let seconds = self.start.elapsed().as_secs_f64();
        self.waited = true;
        let status = waited?;
        let errors = text(&self.errors)?;
        if !status.success() {
            return Err(Failed { name: self.name.clone(), status, errors }.into());
        }
        Ok(Ended { seconds, output: text(&self.output)?, errors })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.waited {
            end(&mut self.child);
        }
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

/// Waits for the end of the command; ends it when a signal asks for that, or at the limit.
fn wait(
    child: &mut Child,
    start: Instant,
    limit: Duration,
    look: &mut dyn FnMut(u32),
) -> Result<ExitStatus> {
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
    let mut look_ms = FIRST_LOOK_MS;
    loop {
        let mut fds = [PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
        if matches!(poll(&mut fds, PollTimeout::from(look_ms)), Ok(1)) {
            return Ok(child.wait()?);
        }
        look_ms = next_look_ms(look_ms);
        look(child.id());
        let late = start.elapsed() > limit;
        if late || interrupt::asked().is_some() {
            end(child);
            interrupt::check()?;
            return Err(TooLong { limit }.into());
        }
    }
}

/// The time from a look at a program to the next, from the time before it, in ms.
fn next_look_ms(last_ms: u16) -> u16 {
    last_ms.saturating_mul(2).min(LOOK_MS)
}

/// Asks the command to end, which lets a balancer clean up; then makes it. A command that leads a
/// process group ends with all of its group, also with members that outlive it: it is reaped last, since
/// another group may get its number from then on.
fn end(child: &mut Child) {
    let pid = Pid::from_raw(child.id() as i32);
    let leads_group = getpgid(Some(pid)) == Ok(pid);
    let send = |signal| if leads_group { killpg(pid, signal) } else { kill(pid, signal) };
    let wait = || {
        let start = Instant::now();
        while !(is_over(pid) && (!leads_group || is_empty(pid))) && start.elapsed() < END_LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let _ = send(Signal::SIGTERM);
    wait();
    let _ = send(Signal::SIGKILL);
    wait();
    let _ = child.wait();
}

/// Whether our child has ended. It is not reaped by that.
fn is_over(child: Pid) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    !matches!(waitid(Id::Pid(child), flags), Ok(WaitStatus::StillAlive))
}

/// Whether no process of a group runs any more.
fn is_empty(group: Pid) -> bool {
    let runs = |process: Process| {
        let stat = process.stat();
        stat.is_ok_and(|stat| stat.pgrp == group.as_raw() && !matches!(stat.state, 'Z' | 'X'))
    };
    // A process that has ended since the list was read is no member.
    !all_processes().is_ok_and(|all| all.flatten().any(runs))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_streams_are_kept_apart() {
        let ended = run(&mut shell("echo out; echo err >&2")).unwrap();
        assert_eq!((ended.output.as_str(), ended.errors.as_str()), ("out\n", "err\n"));
        assert!(ended.seconds > 0.0);
    }

    #[test]
    fn a_failure_is_told_with_its_words() {
        let error = run(&mut shell("echo because >&2; exit 3")).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("because"), "{error}");
        let error = run(&mut shell("exit 1")).unwrap_err().to_string();
        assert_eq!(error, "sh failed (exit status: 1): it wrote nothing to standard error");
        let error = run(&mut Command::new("/no/such/program")).unwrap_err().to_string();
        assert_eq!(error, "cannot start /no/such/program");
    }

    #[test]
    fn one_that_takes_too_long_is_ended_with_its_group() {
        let mut command = shell("sleep 600 & echo $!; wait");
        let running = Running::start(command.process_group(0)).unwrap();
        let mut output = running.output().unwrap();
        let mut looks = 0;
        let error = running.wait_at_most(Duration::from_millis(300), |_| looks += 1).unwrap_err();
        assert_eq!(error.to_string(), "a run took more than 0.3 s and was ended");
        assert!(looks > 0);
        let mut text = String::new();
        output.rewind().unwrap();
        output.read_to_string(&mut text).unwrap();
        let child = Pid::from_raw(text.trim().parse().unwrap());
        assert!(is_gone(child));
    }

    /// Whether a process has ended. It is a zombie until init has waited for it.
    fn is_gone(pid: Pid) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    }

    #[test]
    fn short_programs_are_looked_at_too() {
        let times = std::iter::successors(Some(FIRST_LOOK_MS), |last| Some(next_look_ms(*last)));
        assert_eq!(times.take(8).collect::<Vec<_>>(), [2, 4, 8, 16, 32, 64, 100, 100]);
    }

    #[test]
    fn members_of_the_group_that_ignore_the_request_are_killed() {
        // The shell itself ends at once.
        let script = "(trap '' TERM; echo ready; while :; do sleep 1; done) & echo $!; wait";
        let running = Running::start(shell(script).process_group(0)).unwrap();
        // Opened anew: another position in the file than that of the shell.
        let output = format!("/proc/self/fd/{}", running.output.as_raw_fd());
        let mut text = String::new();
        while !(text.contains("ready") && text.lines().count() == 2) {
            text = std::fs::read_to_string(&output).unwrap();
        }
        let member = text.lines().find_map(|line| line.parse().ok()).map(Pid::from_raw).unwrap();
        drop(running);
        let is_gone = is_gone(member);
        let _ = kill(member, Signal::SIGKILL);
        assert!(is_gone);
    }

    #[test]
    fn one_that_is_dropped_is_ended() {
        let running = Running::start(&mut shell("sleep 600")).unwrap();
        let pid = Pid::from_raw(running.pid() as i32);
        drop(running);
        assert_eq!(kill(pid, None), Err(nix::errno::Errno::ESRCH));
    }
}
