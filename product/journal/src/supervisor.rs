//! The process that takes everything back when we are killed: it waits at the other end of a
//! socket for a byte that says "done", or for the end of file that says "dead".
//!
//! The socket is its standard input, so it needs no file descriptor number on its command line.
//! It has its own session, ignores the signals of the terminal and of a polite shutdown, keeps
//! nothing of ours open (a pipe that reads our output reaches its end when we and the program
//! end), and holds no directory.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::undo::{Mode, UndoReport, undo_one};

/// "I am there", from the supervisor.
const READY: u8 = b'r';
/// "All is taken back, end", to the supervisor.
const DONE: u8 = b'd';

/// How long a supervisor may take to start, or to end once told to.
const PATIENCE: Duration = Duration::from_secs(10);

/// What it must survive: the terminal's signals, and a shutdown that comes before our own end.
const IGNORED: [libc::c_int; 11] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGPIPE,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
];

/// Why there is no supervisor. The journal still works: `evenkeel undo` does what it would do.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// It could not be started.
    #[error(
        "cannot start the supervisor {exe}: {source}; without it, run `evenkeel undo` should evenkeel be killed"
    )]
    Start {
        /// The program file.
        exe: String,
        /// Why not.
        source: std::io::Error,
    },
    /// It started and did not say that it is there.
    #[error(
        "the supervisor {exe} does not answer; without it, run `evenkeel undo` should evenkeel be killed"
    )]
    Silent {
        /// The program file.
        exe: String,
    },
}

/// A running supervisor. If this value (or this process) goes away without
/// [`Supervisor::dismiss`], the supervisor undoes the journal.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    line: UnixStream,
}

impl Supervisor {
    /// Starts `exe` with `args`, which must lead to [`supervise`] with this session's
    /// [`crate::Session::journal_path`]; returns when it is ready. Start it before the first
    /// thread is placed.
    ///
    /// # Errors
    /// All of [`SupervisorError`].
    pub fn start<S: AsRef<OsStr>>(
        exe: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Self, SupervisorError> {
        let name = exe.display().to_string();
        let fail = |source| SupervisorError::Start { exe: name.clone(), source };
        // Both ends close on exec, so no program that we start holds the line open.
        let (line, theirs) = UnixStream::pair().map_err(fail)?;
        let mut command = Command::new(std::path::absolute(exe).map_err(fail)?);
        command
            .args(args)
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: `detach` makes only system calls that are async-signal-safe, and allocates
        // nothing.
        unsafe { command.pre_exec(detach) };
        let child = command.spawn().map_err(fail)?;
        // Holds the supervisor's end: while it is open here, its death would go unnoticed.
        drop(command);
        let mut supervisor = Self { child, line };
        let mut answer = [0];
        let _ = supervisor.line.set_read_timeout(Some(PATIENCE));
        match supervisor.line.read_exact(&mut answer) {
            Ok(()) if answer == [READY] => Ok(supervisor),
            _ => {
                supervisor.end();
                Err(SupervisorError::Silent { exe: name })
            }
        }
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is still there.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it away without doing anything: all is taken back ([`crate::Session::close`] first).
    pub fn dismiss(mut self) {
        // It may have been killed; then there is nobody to tell.
        let _ = self.line.write_all(&[DONE]);
        let deadline = Instant::now() + PATIENCE;
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.end();
    }

    /// Makes sure that it is gone: it may be stopped, or not be what we think it is.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs in the child between fork and exec: system calls only.
fn detach() -> std::io::Result<()> {
    // SAFETY: setsid takes nothing; a freshly forked process is no group leader.
    unsafe { libc::setsid() };
    for signal in IGNORED {
        // SAFETY: SIG_IGN is a valid disposition for each of these signals.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // Descriptors that others left inheritable; ours close on exec anyway.
    let flags = 1 << 2; // CLOSE_RANGE_CLOEXEC
    // SAFETY: three integers; the flag only marks descriptors.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, flags) };
    if result != 0 {
        // Before Linux 5.11.
        for fd in 3..4096 {
            // SAFETY: marks a descriptor, or fails if there is none of that number.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// The body of the supervisor: for the hidden command that [`Supervisor::start`] runs. Waits on
/// standard input; returns `None` when dismissed, or the report of the undo.
pub fn supervise(journal: &Path) -> Option<UndoReport> {
    // Started by hand, standard input is no socket: then the answer fails, and nothing is undone
    // that a living writer still needs.
    let mut line = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?);
    line.write_all(&[READY]).ok()?;
    let mut byte = [0];
    loop {
        match line.read(&mut byte) {
            Ok(1) if byte == [DONE] => return None,
            Ok(1) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // End of file, or the connection broke: the writer is gone, all its threads included.
            _ => return Some(undo_one(journal, Mode::WriterIsGone)),
        }
    }
}
