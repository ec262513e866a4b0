//! A command as a child of ours: it must not notice, and whoever waits for us must not either.
//!
//! The command runs in our process group with our terminal, files and environment, with the signal
//! dispositions that we were started with. What the terminal sends (Ctrl-C, Ctrl-Z) reaches it
//! directly; what is sent to us by number is passed on. When it stops, we stop; when it ends, we
//! end the same way, by exit code or by signal.

use std::ffi::{OsStr, OsString};
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
use nix::unistd::{Pid, getpgrp, tcgetpgrp};

/// Signals that are passed on when somebody sends them to us.
const FORWARDED: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// What this process was started with and the Rust runtime has changed before `main`. The command
/// is to find it as it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Origin {
    /// SIGPIPE was ignored.
    pub sigpipe_ignored: bool,
    /// Which of standard input, output and error were closed.
    pub closed: [bool; 3],
}

/// Why a command could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// Exit code 127, as in a shell.
    #[error("{command}: command not found")]
    NotFound {
        /// Its name.
        command: String,
    },
    /// Exit code 126, as in a shell.
    #[error("{command}: cannot be executed: {source}")]
    NotExecutable {
        /// Its name.
        command: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// Something that has nothing to do with the command.
    #[error("cannot watch the command: {0}")]
    System(#[from] Errno),
}

impl ProgramError {
    /// What a shell would exit with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::System(_) => 125,
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself.
    Exited(i32),
    /// By the signal of this number, which may be a real-time one.
    Killed(i32),
}

impl End {
    /// What a shell would show: 128 + n for signal n.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        }
    }

    /// Ends this process the same way. Returns only if even that failed.
    pub fn imitate(self) -> i32 {
        if let Self::Killed(fatal) = self {
            // The command left its core file, if any; a second one would only confuse.
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

/// A running command.
pub struct Program {
    pid: Pid,
    signals: SignalFd,
}

impl Program {
    /// Starts `command` (not empty) with its arguments.
    ///
    /// # Errors
    /// All of [`ProgramError`].
    pub fn start(command: &[OsString], origin: Origin) -> Result<Self, ProgramError> {
        let (name, arguments) = command.split_first().ok_or(Errno::EINVAL)?;
        let mut watched = SigSet::empty();
        watched.add(Signal::SIGCHLD);
        FORWARDED.iter().for_each(|signal| watched.add(*signal));
        let mut original = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&watched), Some(&mut original))?;
        let signals =
            SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;

        // Ignored (which is inherited), the kernel would not tell us how the command ends.
        // SAFETY: sets a disposition without a handler.
        let sigchld = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;

        let mut child = Command::new(name);
        child.args(arguments);
        let restore = move || {
            let ignored =
                |is_ignored| if is_ignored { SigHandler::SigIgn } else { SigHandler::SigDfl };
            // SAFETY: sets dispositions without a handler, which is async-signal-safe.
            unsafe {
                signal(Signal::SIGPIPE, ignored(origin.sigpipe_ignored))?;
                signal(Signal::SIGCHLD, ignored(matches!(sigchld, SigHandler::SigIgn)))?;
            }
            for (fd, is_closed) in (0..).zip(origin.closed) {
                if is_closed {
                    // SAFETY: a standard stream of the child, which nothing here uses any more.
                    unsafe { libc::close(fd) };
                }
            }
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&original), None)?;
            Ok(())
        };
        // SAFETY: `restore` makes system calls and allocates nothing.
        unsafe { child.pre_exec(restore) };
        let spawned = child.spawn().map_err(|source| why_not_started(name, source))?;
        // Its end is collected by number, together with its stops, which std does not report.
        Ok(Self { pid: Pid::from_raw(spawned.id() as i32), signals })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw() as u32
    }

    /// Readable when [`Program::handle_signals`] has something to do.
    pub fn signal_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    /// Passes signals on, stops when the command stops, and says when it has ended.
    ///
    /// # Errors
    /// When the kernel refuses to say what became of the command.
    pub fn handle_signals(&self) -> Result<Option<End>, ProgramError> {
        while let Some(info) = self.signals.read_signal()? {
            let Ok(signal) = Signal::try_from(info.ssi_signo as i32) else { continue };
            if signal != Signal::SIGCHLD && self.passes_on(&info) {
                // Gone already: its end is collected below.
                let _ = kill(self.pid, signal);
            }
        }
        self.collect()
    }

    /// What the kernel sends (Ctrl-C, Ctrl-Z, a hang-up) goes to the whole process group, so the
    /// command has it already; what the command sends us, it does not want back. Everything else
    /// is meant for the command. Somebody who signals the whole group by number reaches it twice;
    /// to pass nothing on then would lose the signal of a script that shares our group.
    fn passes_on(&self, info: &siginfo) -> bool {
        info.ssi_code <= 0 && info.ssi_pid as i32 != self.pid.as_raw()
    }

    fn collect(&self) -> Result<Option<End>, ProgramError> {
        loop {
            let mut status = 0;
            // SAFETY: the kernel fills the one integer. Not by nix, which knows no real-time
            // signals and calls the end by one invalid.
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
                Ok(_) if libc::WIFSTOPPED(status) && is_for_a_shell(libc::WSTOPSIG(status)) => {
                    // The shell waits for us to stop, too; whoever continues us continues the
                    // command.
                    raise(Signal::SIGSTOP)?;
                    let _ = kill(self.pid, Signal::SIGCONT);
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether a shell waits for its job to stop: by the terminal's signals always; by SIGSTOP if the
/// job has the terminal (editors stop themselves so). Somebody who just pauses the command for a
/// while will continue the command and not us, who then would never wake up.
fn is_for_a_shell(stopped_by: i32) -> bool {
    if [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&stopped_by) {
        return true;
    }
    let foreground = File::open("/dev/tty").ok().and_then(|terminal| tcgetpgrp(terminal).ok());
    foreground == Some(getpgrp())
}

fn why_not_started(name: &OsStr, source: io::Error) -> ProgramError {
    let command = name.to_string_lossy().into_owned();
    match source.kind() {
        // The kernel says the same of a script whose interpreter is missing.
        io::ErrorKind::NotFound if name.as_bytes().contains(&b'/') && Path::new(name).exists() => {
            let why = "the interpreter that it names (#! line, or ELF loader) does not exist";
            ProgramError::NotExecutable { command, source: io::Error::new(source.kind(), why) }
        }
        io::ErrorKind::NotFound => ProgramError::NotFound { command },
        // So says execvp when it may not search one of the directories and finds it in no other.
        io::ErrorKind::PermissionDenied if !is_anywhere(name) => ProgramError::NotFound { command },
        _ => ProgramError::NotExecutable { command, source },
    }
}

/// Whether there is a file of this name: in a directory of PATH, unless it is a path itself.
fn is_anywhere(name: &OsStr) -> bool {
    if name.as_bytes().contains(&b'/') {
        return true;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).exists())
}
