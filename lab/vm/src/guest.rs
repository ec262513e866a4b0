//! A running guest, seen from the host.
//!
//! A thread of its own starts QEMU, passes on the guest's answers, and reaps QEMU. The caller's thread
//! writes requests and waits for answers: while it waits it asks whether to give up, and it kills a
//! guest that says nothing for too long.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::emulator::QEMU;
use crate::protocol::{Answer, Request};
use crate::{Ending, Error, Job, file};

/// How much of a console an error shows, in lines.
const CONSOLE_LINES: usize = 80;
/// Words by which a kernel says why it dies.
const FAULTS: [&str; 2] = ["Oops", "BUG:"];
/// How often the caller is asked whether to give up.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// A guest that is ready to run commands. Dropping it kills it.
pub struct Guest {
    requests: ChildStdin,
    answers: Receiver<Answer>,
    qemu: Arc<Mutex<Child>>,
    /// The thread that started QEMU.
    keeper: Option<JoinHandle<()>>,
    silence: Duration,
    give_up: fn() -> bool,
    /// Holds its console and its root directory.
    dir: TempDir,
}

impl Guest {
    /// Starts QEMU and waits until the guest is ready.
    pub(crate) fn start(
        mut command: Command,
        dir: TempDir,
        silence: Duration,
        give_up: fn() -> bool,
    ) -> Result<Self, Error> {
        let errors = dir.path().join("errors");
        let errors = File::create(&errors).map_err(file("cannot write", &errors))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        // QEMU must not outlive this process. PR_SET_PDEATHSIG acts when the *thread* that started QEMU
        // ends, so that thread stays until QEMU has ended.
        // SAFETY: one system call with plain numbers between fork and exec.
        unsafe {
            command.pre_exec(|| {
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let (started, start) = channel();
        let (answer, answers) = channel();
        let keeper = std::thread::spawn(move || keep(command, &started, &answer));
        let ended = || Error::Ended { console: String::new() };
        let (qemu, requests) = start.recv().map_err(|_| ended())??;
        let mut guest =
            Self { requests, answers, qemu, keeper: Some(keeper), silence, give_up, dir };
        while guest.answer()? != Answer::Ready {}
        Ok(guest)
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// The guest ended, is stuck or was given up; it is lost then.
    pub fn run(&mut self, job: Job) -> Result<Ending, Error> {
        self.ask(&Request::Run(job))?;
        loop {
            if let Answer::Ended(ending) = self.answer()? {
                return Ok(ending);
            }
        }
    }

    /// Powers it off; returns all that its console showed.
    ///
    /// # Errors
    /// It is stuck or was given up.
    pub fn off(mut self) -> Result<String, Error> {
        self.ask(&Request::Off)?;
        loop {
            match self.answer() {
                Ok(_) => {}
                Err(Error::Ended { .. }) => return Ok(self.console()),
                Err(error) => return Err(error),
            }
        }
    }

    /// QEMU's process, for measuring its CPU time.
    pub fn pid(&self) -> u32 {
        lock(&self.qemu).id()
    }

    /// All that its console has shown so far.
    pub fn console(&self) -> String {
        let read = |name| std::fs::read(name).unwrap_or_default();
        let bytes = [read(console_in(self.dir.path())), read(self.dir.path().join("errors"))];
        String::from_utf8_lossy(&bytes.concat()).into_owned()
    }

    fn console_end(&self) -> String {
        end_of(&self.console())
    }

    fn ask(&mut self, request: &Request) -> Result<(), Error> {
        // All maps in it have strings as keys, so this cannot fail.
        let mut line = serde_json::to_vec(request).unwrap_or_default();
        line.push(b'\n');
        self.requests.write_all(&line).map_err(|_| Error::Ended { console: self.console_end() })
    }

    fn answer(&mut self) -> Result<Answer, Error> {
        let start = Instant::now();
        loop {
            // First, because a guest that never falls silent must be given up, too.
            if (self.give_up)() {
                self.kill();
                return Err(Error::GivenUp);
            }
            match self.answers.recv_timeout(ASK_EVERY.min(self.silence)) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Ended { console: self.console_end() });
                }
                Err(RecvTimeoutError::Timeout) if start.elapsed() >= self.silence => {
                    self.kill();
                    let console = self.console_end();
                    return Err(Error::Silent { silence: self.silence, console });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn kill(&self) {
        if let Err(error) = lock(&self.qemu).kill() {
            tracing::warn!("cannot kill {QEMU}: {error}");
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
        if let Some(keeper) = self.keeper.take() {
            // It panics only when memory is exhausted.
            let _ = keeper.join();
        }
    }
}

type Started = (Arc<Mutex<Child>>, ChildStdin);

/// Starts QEMU, passes on the guest's answers until QEMU has ended, and reaps it.
fn keep(mut command: Command, started: &Sender<Result<Started, Error>>, answers: &Sender<Answer>) {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(source) => {
            let _ = started.send(Err(Error::NoQemu { command: QEMU, source }));
            return;
        }
    };
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let child = Arc::new(Mutex::new(child));
    if let (Some(stdin), Some(stdout)) = (stdin, stdout) {
        // Guest::start() waits for this.
        let _ = started.send(Ok((Arc::clone(&child), stdin)));
        pass_on(stdout, answers);
    }
    // Its output has ended, so it is about to end.
    if let Err(error) = lock(&child).wait() {
        tracing::warn!("cannot wait for {QEMU}: {error}");
    }
}

fn pass_on(stdout: ChildStdout, answers: &Sender<Answer>) {
    for line in BufReader::new(stdout).split(b'\n') {
        let Ok(line) = line else { return };
        match serde_json::from_slice(&line) {
            // Sending fails once the guest is dropped.
            Ok(answer) => drop(answers.send(answer)),
            Err(error) => tracing::debug!("the guest sent a line that is no answer: {error}"),
        }
    }
}

/// Where a guest's console is written, in its directory.
pub(crate) fn console_in(dir: &Path) -> PathBuf {
    dir.join("console")
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last lines of a console. A kernel that dies may print more than these: then the line in which it
/// says why comes before them.
fn end_of(console: &str) -> String {
    let lines: Vec<&str> = console.lines().collect();
    let (before, end) = lines.split_at(lines.len().saturating_sub(CONSOLE_LINES));
    let says_why = |line: &&&str| FAULTS.iter().any(|word| line.contains(word));
    let why = before.iter().rev().find(says_why);
    why.into_iter().chain(end).copied().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

    /// The file to which a program that is never ready writes its pid.
    static SAID: OnceLock<PathBuf> = OnceLock::new();

    fn said() -> Option<String> {
        let text = std::fs::read_to_string(SAID.get()?).ok()?;
        text.strip_suffix('\n').map(str::to_owned)
    }

    #[test]
    fn a_long_death_is_shown_with_its_reason() {
        let trace: Vec<String> = (0..200).map(|line| format!("frame {line}")).collect();
        let reason = "[   15.2] Oops: int3: 0000 [#1] SMP";
        let end = end_of(&format!("BUG: of another day\n{reason}\n{}", trace.join("\n")));
        assert!(end.starts_with(reason) && end.ends_with("frame 199"), "{end}");
        assert_eq!(end.lines().count(), CONSOLE_LINES + 1);
        assert_eq!(end_of("one\nOops\ntwo"), "one\nOops\ntwo");
    }

    #[test]
    fn a_guest_that_is_given_up_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let file = SAID.get_or_init(|| dir.path().join("pid"));
        let alive = serde_json::to_string(&Answer::Alive).unwrap();
        // One guest says nothing, the other one says all the time that it is alive.
        for does in ["exec sleep 1000", "while echo \"$1\"; do sleep 0.02; done"] {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo $$ > \"$0\"; {does}")]).arg(file).arg(&alive);
            let console = tempfile::tempdir().unwrap();
            let start = Guest::start(command, console, Duration::MAX, || said().is_some());
            let Err(error) = start else { panic!("it never said that it is ready") };
            assert!(matches!(error, Error::GivenUp), "{error}");
            let pid = said().unwrap();
            assert!(!Path::new("/proc").join(&pid).exists(), "{pid} is still there");
            std::fs::remove_file(file).unwrap();
        }
    }
}
