//! The supervisor: the process that undoes the journal when its writer is killed.
//!
//! Writer and supervisor share a socket pair. The supervisor waits on its end: the byte [`DONE`] means
//! that the writer restored everything itself; end of file means that the writer was killed, whatever
//! killed it, because the kernel closes the sockets of a process that ends. Then the supervisor runs
//! [`undo_of_ended_writer`] on the journal and ends.
//!
//! Its socket is its standard input, so its command line needs no descriptor number. So that it
//! outlives its writer, it has a session of its own and ignores the signals of the terminal and of a
//! shutdown. So that it disturbs nothing, it keeps none of the writer's descriptors (the reader of the
//! writer's output gets end of file when writer and program end), and its directory is `/`.

use std::ffi::{CStr, OsStr};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::report::UndoReport;
use crate::undo::undo_of_ended_writer;

/// From the supervisor: it is ready.
const READY: u8 = b'r';
/// To the supervisor: everything is restored, exit.
const DONE: u8 = b'd';

/// What `ps` shows as its program: the file may be /proc/self/exe, which names nothing.
const PROGRAM: &str = "evenkeel";
/// What `top` and `pgrep` show as its name, 15 characters at most.
const NAME: &CStr = c"evenkeel-super";

/// How long a supervisor may take to start, or to exit once dismissed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Signals of the terminal and of a shutdown: these may reach the supervisor before its writer ends.
const IGNORED_SIGNALS: [libc::c_int; 11] = [
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

/// Why there is no supervisor. The journal works without: `evenkeel undo` does what the supervisor
/// would do.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// It could not be started.
    #[error(
        "cannot start the supervisor {exe}: {source}; without it, run `evenkeel undo` if evenkeel is \
         killed"
    )]
    Start {
        /// The program file.
        exe: String,
        /// Why not.
        source: std::io::Error,
    },
    /// It started, and was not ready within 10 s.
    #[error(
        "the supervisor {exe} does not answer; without it, run `evenkeel undo` if evenkeel is killed"
    )]
    Silent {
        /// The program file.
        exe: String,
    },
}

/// A running supervisor. If this value is dropped without [`Supervisor::dismiss`], or this process is
/// killed, the supervisor undoes the journal.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    socket: UnixStream,
}

impl Supervisor {
    /// Starts `exe` with `args`, which must call [`supervise`] with the session's
    /// [`crate::Session::journal_path`]; returns when the supervisor is ready. Call it before the first
    /// change.
    ///
    /// # Errors
    /// All of [`SupervisorError`].
    pub fn start<S: AsRef<OsStr>>(
        exe: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Self, SupervisorError> {
        let name = exe.display().to_string();
        let fail = |source| SupervisorError::Start { exe: name.clone(), source };
        // Both ends close on exec, so no program that this process starts holds the socket open.
        let (socket, theirs) = UnixStream::pair().map_err(fail)?;
        let mut command = Command::new(std::path::absolute(exe).map_err(fail)?);
        command
            .arg0(PROGRAM)
            .args(args)
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // SAFETY: `detach` makes only system calls that are async-signal-safe, and allocates
        // nothing.
        unsafe { command.pre_exec(detach) };
        let child = command.spawn().map_err(fail)?;
        // `command` holds the supervisor's end: while it is open here, the supervisor's death is unseen.
        drop(command);
        let mut supervisor = Self { child, socket };
        let mut answer = [0];
        let _ = supervisor.socket.set_read_timeout(Some(TIMEOUT));
        match supervisor.socket.read_exact(&mut answer) {
            Ok(()) if answer == [READY] => Ok(supervisor),
            _ => {
                supervisor.kill();
                Err(SupervisorError::Silent { exe: name })
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the supervisor without an undo: call [`crate::Session::close`] first.
    pub fn dismiss(mut self) {
        // If the supervisor was killed, this fails, and there is nothing to tell it.
        let _ = self.socket.write_all(&[DONE]);
        let deadline = Instant::now() + TIMEOUT;
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill();
    }

    /// Kills it, because it may be stopped, or a program that never reads its input.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs in the child between fork and exec: system calls only.
fn detach() -> std::io::Result<()> {
    // SAFETY: setsid takes nothing; a freshly forked process is no group leader.
    unsafe { libc::setsid() };
    for signal in IGNORED_SIGNALS {
        // SAFETY: SIG_IGN is a valid disposition for each of these signals.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // Descriptors that the process's parents left inheritable; our own close on exec anyway.
    let flags = 1 << 2; // CLOSE_RANGE_CLOEXEC
    // SAFETY: three integers; the flag only marks descriptors.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, flags) };
    if result != 0 {
        // The flag exists since Linux 5.11.
        for fd in 3..4096 {
            // SAFETY: marks a descriptor, or fails if there is none of that number.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// The supervisor's main loop, for the hidden command that [`Supervisor::start`] runs. Waits on
/// standard input; returns `None` when dismissed, otherwise the report of the undo.
pub fn supervise(journal: &Path) -> Option<UndoReport> {
    // SAFETY: a text that ends with a zero; only the name of this thread is set.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    // If started by hand, standard input is no socket: the answer fails, and the journal of a living
    // writer is not undone.
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?);
    socket.write_all(&[READY]).ok()?;
    let mut byte = [0];
    loop {
        match socket.read(&mut byte) {
            Ok(1) if byte == [DONE] => return None,
            Ok(1) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // End of file, or the connection broke: the writer is gone, all its threads included.
            _ => return Some(undo_of_ended_writer(journal)),
        }
    }
}
