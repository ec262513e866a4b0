//! The command of `evenkeel run` as a child process. Neither the command nor the process that waits for
//! evenkeel (a shell, a script) must notice that evenkeel is in between.
//!
//! The command runs in evenkeel's process group with its terminal, files and environment, and with the
//! signal dispositions that evenkeel was started with. Signals of the terminal (Ctrl-C, Ctrl-Z) reach it
//! directly; signals that are sent to evenkeel alone are passed on, also by the kernel (a hang-up, an
//! alarm). When the command stops, evenkeel stops; when it ends, evenkeel ends the same way, by exit
//! code or by signal.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, raise, signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::{Pid, getpgrp, getsid, tcgetpgrp};

/// Signals that are passed on to the command, besides all real-time signals.
const FORWARDED: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGURG,
    Signal::SIGABRT,
    Signal::SIGXCPU,
    Signal::SIGXFSZ,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    Signal::SIGPWR,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// The state that this process was started with and that the Rust runtime changed before `main`. The
/// command gets it back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Origin {
    /// SIGPIPE was ignored.
    pub sigpipe_ignored: bool,
    /// Which of standard input, output and error were closed.
    pub closed: [bool; 3],
}

/// The command could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// Exit code 127, as in a shell.
    #[error("{}", not_found(command))]
    NotFound {
        /// Its name.
        command: String,
    },
    /// Exit code 126, as in a shell.
    #[error("{command}: cannot be executed: {source}")]
    NotExecutable {
        /// Its name.
        command: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A system call failed that does not depend on the command.
    #[error("cannot start the command: {0}")]
    System(#[from] Errno),
}

fn not_found(command: &str) -> String {
    match command {
        "" => "the command is empty: give the name of a program".to_owned(),
        _ => format!("{command}: command not found"),
    }
}

impl ChildError {
    /// The exit code of a shell in this case.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::System(_) => 125,
        }
    }
}

/// Why a run does not tell how its command ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The command does not run.
    #[error(transparent)]
    NotStarted(#[from] ChildError),
    /// It was started, and may run on: it must not be started again.
    #[error("the command was started, but cannot be waited for: {0}")]
    Lost(#[from] Errno),
}

impl RunError {
    /// The exit code of a shell in this case.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::NotStarted(why) => i32::from(why.exit_code()),
            Self::Lost(_) => 1,
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Exited(i32),
    /// A signal of this number ended it; it may be a real-time signal.
    Killed(i32),
}

impl End {
    /// The exit code as a shell shows it: 128 + n for signal n.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        }
    }

    /// Ends this process the same way. Returns the exit code where it did not end by a signal.
    pub fn imitate(self) -> i32 {
        if let Self::Killed(fatal) = self {
            // No second core file beside that of the command.
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
            // SAFETY: system calls on a signal number that the kernel gave us and a set of our
            // own; no handler is involved.
            unsafe {
                let mut only: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&mut only);
                libc::sigaddset(&mut only, fatal);
                libc::signal(fatal, libc::SIG_DFL);
                libc::raise(fatal);
                libc::sigprocmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
            }
        }
        self.exit_code()
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit code {code}"),
            Self::Killed(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

impl Origin {
    /// Gives a child back what the Rust runtime and [`Child::start`] changed: between fork and exec, or
    /// before exec alone.
    fn restore(self, sigchld: SigHandler, mask: &SigSet) -> io::Result<()> {
        let ignored = |is_ignored| if is_ignored { SigHandler::SigIgn } else { SigHandler::SigDfl };
        // SAFETY: sets dispositions without a handler, which is async-signal-safe.
        unsafe {
            signal(Signal::SIGPIPE, ignored(self.sigpipe_ignored))?;
            signal(Signal::SIGCHLD, ignored(matches!(sigchld, SigHandler::SigIgn)))?;
        }
        for (fd, is_closed) in (0..).zip(self.closed) {
            if is_closed {
                // SAFETY: a standard stream of the child, which no code before exec uses.
                unsafe { libc::close(fd) };
            }
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(mask), None)?;
        Ok(())
    }
}

/// Replaces this process by the command, as if evenkeel had never been in between. Returns only if that
/// fails.
pub fn exec(command: &[OsString], origin: Origin) -> ChildError {
    let Some((name, arguments)) = command.split_first() else { return Errno::EINVAL.into() };
    let mut mask = SigSet::empty();
    if let Err(why) = sigprocmask(SigmaskHow::SIG_BLOCK, None, Some(&mut mask)) {
        return why.into();
    }
    let mut command = Command::new(name);
    command.args(arguments);
    // SAFETY: `restore` makes system calls and allocates nothing.
    unsafe { command.pre_exec(move || origin.restore(SigHandler::SigDfl, &mask)) };
    why_not_started(name, command.exec())
}

/// A running command.
pub struct Child {
    pid: Pid,
    signals: SignalFd,
    /// SIGTERM was sent to it, or to this process, which passed it on.
    is_told_to_end: Cell<bool>,
    /// A process whose signals reach the command by themselves.
    signals_all: Option<Pid>,
}

impl Child {
    /// Starts `command` (not empty) with its arguments, in the environment of this process and with
    /// these variables.
    ///
    /// # Errors
    /// [`ChildError`]: the command does not run then.
    pub fn start(
        command: &[OsString],
        variables: &[(OsString, OsString)],
        origin: Origin,
    ) -> Result<Self, ChildError> {
        let (name, arguments) = command.split_first().ok_or(Errno::EINVAL)?;
        let watched = watched_signals();
        let mut original = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&watched), Some(&mut original))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&watched, flags).inspect_err(|_| {
            // The caller may start the command without this process in between.
            let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&original), None);
        })?;

        // Ignored (which is inherited), the kernel would not report how the command ends.
        // SAFETY: sets a disposition without a handler.
        let sigchld = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;

        let mut child = Command::new(name);
        child.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
        // SAFETY: `restore` makes system calls and allocates nothing.
        unsafe { child.pre_exec(move || origin.restore(sigchld, &original)) };
        let spawned = match child.spawn() {
            Ok(spawned) => spawned,
            Err(source) => {
                // The caller may have something else to start.
                let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&original), None);
                // SAFETY: sets a disposition without a handler of ours.
                let _ = unsafe { signal(Signal::SIGCHLD, sigchld) };
                return Err(why_not_started(name, source));
            }
        };
        // `collect` waits for it by number, since std does not report stops.
        Ok(Self {
            pid: Pid::from_raw(spawned.id() as i32),
            signals,
            is_told_to_end: Cell::new(false),
            signals_all: None,
        })
    }

    /// This process sends each of its signals to the command as well: none of them is passed on.
    #[must_use]
    pub fn signalled_by(mut self, process: Option<u32>) -> Self {
        self.signals_all = process.map(|pid| Pid::from_raw(pid as i32));
        self
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw() as u32
    }

    /// Readable when [`Child::handle_signals`] has something to do.
    pub fn signal_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    /// Whether a SIGTERM came. What sent it may kill the command and this process next, and this
    /// process' supervisor with them (a service manager, a batch system).
    pub fn is_told_to_end(&self) -> bool {
        self.is_told_to_end.get()
    }

    /// Passes signals on, stops when the command stops, and returns how the command ended once it has.
    ///
    /// # Errors
    /// The signals or the state of the command cannot be read.
    pub fn handle_signals(&self) -> Result<Option<End>, Errno> {
        while let Some(info) = self.signals.read_signal()? {
            let number = info.ssi_signo as i32;
            if number == libc::SIGTERM {
                self.is_told_to_end.set(true);
            }
            if number != libc::SIGCHLD && self.passes_on(&info) {
                self.pass_on(&info);
            }
        }
        self.collect()
    }

    /// Passes a signal on, with the value that its sender gave it by sigqueue(3). Fails if the command
    /// has ended: `collect` sees that.
    fn pass_on(&self, info: &siginfo) {
        let (pid, number) = (self.pid.as_raw(), info.ssi_signo as i32);
        // SAFETY: system calls with integers; the pointer is a number for the receiver.
        unsafe {
            if info.ssi_code == libc::SI_QUEUE {
                let value = libc::sigval { sival_ptr: info.ssi_ptr as *mut libc::c_void };
                libc::sigqueue(pid, number, value);
            } else {
                libc::kill(pid, number);
            }
        }
    }

    /// A signal that the command sends must not come back to it. Every other signal of a process is
    /// meant for the command. A `kill` of the whole group then reaches the command twice, which is the
    /// smaller evil: a script that shares the group would otherwise lose its signal.
    fn passes_on(&self, info: &siginfo) -> bool {
        let sender = Pid::from_raw(info.ssi_pid as i32);
        // A write of this process beyond its limit gives SIGXFSZ, as if this process had sent it.
        let is_own = sender == Pid::this();
        let is_of_the_command = sender == self.pid || self.signals_all == Some(sender);
        (info.ssi_code <= 0 && !is_own && !is_of_the_command) || came_to_this_process_alone(info)
    }

    /// Whether this process is to stop as the command did. A process that signals all others stops and
    /// continues this one by itself.
    fn stops_for_a_shell(&self, status: i32) -> bool {
        self.signals_all.is_none() && is_for_a_shell(libc::WSTOPSIG(status))
    }

    fn collect(&self) -> Result<Option<End>, Errno> {
        loop {
            let mut status = 0;
            // SAFETY: the kernel writes one integer. Not by nix, which reports the end by a real-time
            // signal as an error.
            let result = unsafe {
                libc::waitpid(self.pid.as_raw(), &mut status, libc::WNOHANG | libc::WUNTRACED)
            };
            match Errno::result(result) {
                Ok(0) => return Ok(None),
                Ok(_) if libc::WIFEXITED(status) => {
                    return Ok(Some(End::Exited(libc::WEXITSTATUS(status))));
                }
                Ok(_) if libc::WIFSIGNALED(status) => {
                    return Ok(Some(End::Killed(libc::WTERMSIG(status))));
                }
                Ok(_) if libc::WIFSTOPPED(status) && self.stops_for_a_shell(status) => {
                    // The shell waits for evenkeel to stop, and continues evenkeel alone (or both).
                    raise(Signal::SIGSTOP)?;
                    let _ = kill(self.pid, Signal::SIGCONT);
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The signals that this process reads: of the command, and those that are passed on to it.
fn watched_signals() -> SigSet {
    let mut named = SigSet::empty();
    named.add(Signal::SIGCHLD);
    FORWARDED.iter().for_each(|signal| named.add(*signal));
    let mut all: libc::sigset_t = *named.as_ref();
    // SAFETY: adds numbers that libc names to a set of our own, which was initialised by nix.
    unsafe {
        for number in libc::SIGRTMIN()..=libc::SIGRTMAX() {
            libc::sigaddset(&mut all, number);
        }
        SigSet::from_sigset_t_unchecked(all)
    }
}

/// Whether the kernel sent a signal that the command does not get by itself. The signals of a terminal
/// (Ctrl-C, Ctrl-Z) go to the whole process group, but a hang-up goes to the leader of the session
/// alone, which is this process under `ssh -t host evenkeel run ...`. The signal of an alarm(2) that was
/// set before this process was executed comes to this process alone, too.
fn came_to_this_process_alone(info: &siginfo) -> bool {
    if info.ssi_code != libc::SI_KERNEL {
        return false;
    }
    match info.ssi_signo as i32 {
        libc::SIGALRM => true,
        libc::SIGHUP | libc::SIGCONT => getsid(None) == Ok(Pid::this()),
        _ => false,
    }
}

/// Whether the command stopped for a shell, which then waits for evenkeel to stop, too. That is so
/// for the terminal's signals, and for SIGSTOP if the command has the terminal (editors stop
/// themselves so). A process that merely pauses the command by SIGSTOP will continue the command
/// alone, and evenkeel must not be stopped then.
fn is_for_a_shell(stopped_by: i32) -> bool {
    if [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&stopped_by) {
        return true;
    }
    let foreground = File::open("/dev/tty").ok().and_then(|terminal| tcgetpgrp(terminal).ok());
    foreground == Some(getpgrp())
}

fn why_not_started(name: &OsStr, source: io::Error) -> ChildError {
    let command = name.to_string_lossy().into_owned();
    match source.kind() {
        // The kernel gives the same error for a script without its interpreter.
        io::ErrorKind::NotFound if name.as_bytes().contains(&b'/') && Path::new(name).exists() => {
            let why = "the interpreter that it names (#! line, or ELF loader) does not exist";
            ChildError::NotExecutable { command, source: io::Error::new(source.kind(), why) }
        }
        io::ErrorKind::NotFound => ChildError::NotFound { command },
        // execvp returns this when one directory of PATH cannot be searched and no other has the
        // command.
        io::ErrorKind::PermissionDenied if !is_anywhere(name) => ChildError::NotFound { command },
        _ => ChildError::NotExecutable { command, source },
    }
}

/// Whether the command exists in a directory of PATH, or is a path itself.
fn is_anywhere(name: &OsStr) -> bool {
    if name.as_bytes().contains(&b'/') {
        return true;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_not_found_is_named_and_an_empty_one_is_called_empty() {
        let said = |name: &str| {
            let why = why_not_started(name.as_ref(), io::ErrorKind::NotFound.into());
            (why.to_string(), why.exit_code())
        };
        assert_eq!(said("no-app"), ("no-app: command not found".to_owned(), 127));
        let empty = "the command is empty: give the name of a program";
        assert_eq!(said(""), (empty.to_owned(), 127));
    }
}
