//! A command as a child of ours: it must not notice, and whoever waits for us must not either.
//!
//! The command runs in our process group with our terminal, files and environment, with the signal
//! dispositions that we were started with. What the terminal sends (Ctrl-C, Ctrl-Z) reaches it
//! directly; what is sent to us by number is passed on. When it stops, we stop; when it ends, we
//! end the same way, by exit code or by signal.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, raise, signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

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
    /// By a signal.
    Killed(Signal),
}

impl End {
    /// What a shell would show: 128 + n for signal n.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal as i32,
        }
    }

    /// Ends this process the same way. Returns only if even that failed.
    pub fn imitate(self) -> i32 {
        if let Self::Killed(fatal) = self {
            // The command left its core file, if any; a second one would only confuse.
            let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
            // SAFETY: restores the default disposition of a signal; no handler of ours is involved.
            let _ = unsafe { signal(fatal, SigHandler::SigDfl) };
            let mut only = SigSet::empty();
            only.add(fatal);
            let _ = raise(fatal);
            let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&only), None);
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
    /// Starts `command` (not empty) with its arguments. `sigpipe_ignored` is the disposition of
    /// SIGPIPE that this process was started with: the Rust runtime has changed it since.
    ///
    /// # Errors
    /// All of [`ProgramError`].
    pub fn start(command: &[OsString], sigpipe_ignored: bool) -> Result<Self, ProgramError> {
        let (name, arguments) = command.split_first().ok_or(Errno::EINVAL)?;
        let mut watched = SigSet::empty();
        watched.add(Signal::SIGCHLD);
        FORWARDED.iter().for_each(|signal| watched.add(*signal));
        let mut original = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&watched), Some(&mut original))?;
        let signals =
            SignalFd::with_flags(&watched, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;

        let mut child = Command::new(name);
        child.args(arguments);
        let restore = move || {
            let disposition = if sigpipe_ignored { SigHandler::SigIgn } else { SigHandler::SigDfl };
            // SAFETY: sets a disposition without a handler, which is async-signal-safe.
            unsafe { signal(Signal::SIGPIPE, disposition) }?;
            sigprocmask(SigmaskHow::SIG_SETMASK, Some(&original), None)?;
            Ok(())
        };
        // SAFETY: `restore` makes two system calls and allocates nothing.
        unsafe { child.pre_exec(restore) };
        let spawned = child.spawn().map_err(|source| {
            let command = name.to_string_lossy().into_owned();
            match source.kind() {
                io::ErrorKind::NotFound => ProgramError::NotFound { command },
                _ => ProgramError::NotExecutable { command, source },
            }
        })?;
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
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        loop {
            match waitpid(self.pid, Some(flags)) {
                Ok(WaitStatus::Exited(_, code)) => return Ok(Some(End::Exited(code))),
                Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(Some(End::Killed(signal))),
                // The shell waits for us to stop, too; whoever continues us continues the command.
                Ok(WaitStatus::Stopped(..)) => {
                    raise(Signal::SIGSTOP)?;
                    let _ = kill(self.pid, Signal::SIGCONT);
                }
                Ok(_) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
