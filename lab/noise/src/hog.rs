//! A noisy neighbour: an endless ordinary program on the CPU, in a session of its own.
//!
//! It is a process of its own (programs/noise_child.c), because sched_autogroup groups by session:
//! inside this process it would compete with the measured program as one of its own threads.
//! A thread here owns it: PR_SET_PDEATHSIG fires when the *thread* that started a child ends.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{Generator, NoiseConfig, NoiseError, Tally, thread};

const NAME: &str = "evenkeel-hog";
/// programs/noise_child.c, compiled by build.rs.
static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/noise_child.static"));

/// The running child and the thread that owns it.
pub(super) struct Hog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Option<Result<Tally, NoiseError>>>>,
    pid: u32,
}

impl Hog {
    pub(super) fn start(cpu: u32, config: &NoiseConfig) -> Result<Self, NoiseError> {
        let (stop, stopped) = channel();
        let limit_ms = (config.limit.as_millis() as u64).max(1);
        let pid = Arc::new(AtomicU32::new(0));
        let told = Arc::clone(&pid);
        let setup = move || {
            let owned = Owned::spawn(cpu, limit_ms)?;
            told.store(owned.child.id(), Ordering::Release);
            Ok(owned)
        };
        let handle = thread::start(NAME, setup, move |owned| owned.finish(&stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(handle), pid: pid.load(Ordering::Acquire) })
    }
}

impl Generator for Hog {
    fn stop(&mut self) -> Result<Tally, NoiseError> {
        self.stop.take();
        match self.thread.take() {
            Some(handle) => thread::finish(NAME, handle)?,
            None => Ok(Tally::default()),
        }
    }

    fn process(&self) -> Option<u32> {
        Some(self.pid)
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// The child and what it says.
struct Owned {
    child: Child,
    output: BufReader<ChildStdout>,
    // Open as long as the child runs: its program is started from here.
    _program: File,
}

impl Owned {
    fn spawn(cpu: u32, limit_ms: u64) -> Result<Self, NoiseError> {
        let failed = |why: String| NoiseError::failed("cannot start the hog", why);
        let program = program_in_memory().map_err(|e| failed(e.to_string()))?;
        let mut child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .args([cpu.to_string(), limit_ms.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        let Some(output) = child.stdout.take() else {
            return Err(failed("its output was not connected".into()));
        };
        let mut owned = Self { child, output: BufReader::new(output), _program: program };
        match owned.line()?.as_str() {
            "ready" => Ok(owned),
            _ => {
                let mut why = String::new();
                if let Some(mut stderr) = owned.child.stderr.take() {
                    let _ = std::io::Read::read_to_string(&mut stderr, &mut why);
                }
                let _ = owned.child.wait();
                Err(failed(why.trim().to_owned()))
            }
        }
    }

    fn line(&mut self) -> Result<String, NoiseError> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .map_err(|e| NoiseError::failed("cannot read what the hog says", e))?;
        Ok(line.trim().to_owned())
    }

    /// Waits for the word to stop, closes the child's input, and takes its figures.
    fn finish(mut self, stopped: &Receiver<()>) -> Result<Tally, NoiseError> {
        // Nothing is ever sent: the sender's end is dropped.
        let _ = stopped.recv();
        drop(self.child.stdin.take());
        let line = self.line();
        let status = self.child.wait();
        let line = line?;
        let number = |key| field(&line, key)?.parse::<u64>().ok();
        match (number("wall_ns"), number("busy_ns")) {
            (Some(wall_ns), Some(busy_ns)) => {
                Ok(Tally { wall_ns, busy_ns, seen_ns: busy_ns, ..Tally::default() })
            }
            _ => Err(NoiseError::failed(
                "the hog",
                match status {
                    Ok(status) => format!("another process ended it before its report ({status})"),
                    Err(error) => error.to_string(),
                },
            )),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Only on an error path is it still there.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program in an anonymous file: no path, so nothing to clean up.
fn program_in_memory() -> std::io::Result<File> {
    let fd = memfd_create("evenkeel-hog", MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(PROGRAM)?;
    Ok(file)
}

/// The value of `key=` in the line that the program printed.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_arguments_are_refused() {
        let program = program_in_memory().unwrap();
        let path = format!("/proc/self/fd/{}", program.as_raw_fd());
        let output = Command::new(path).arg("0").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty());
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage:"));
    }
}
