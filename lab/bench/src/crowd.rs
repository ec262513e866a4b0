//! A process with many sleeping threads. Busy threads would cost an observer more (it reads the mask of
//! each), but they would starve the measurement.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// The main function of such a process; it ends when its standard input does.
///
/// # Errors
/// There cannot be that many threads.
pub(crate) fn be(threads: u32) -> Result<i32> {
    for _ in 0..threads {
        std::thread::Builder::new()
            .stack_size(32 * 1024)
            .spawn(|| {
                loop {
                    std::thread::park();
                }
            })
            .context("cannot start that many threads")?;
    }
    std::io::read_to_string(std::io::stdin())?;
    // Ends the threads, too.
    std::process::exit(0)
}

/// Such a process as a child. It ends with this process, because its standard input does.
pub(crate) struct Crowd(Child);

impl Crowd {
    /// Starts it; its threads are not all there at once.
    pub fn start(threads: u32) -> Result<Self> {
        let child = Command::new(evenkeel_experiment::executable::own()?)
            .args(["bench", "plan", "--crowd", &threads.to_string()])
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start a process to observe")?;
        Ok(Self(child))
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
