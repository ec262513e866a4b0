//! A process of so many threads that all sleep. Busy ones would cost whoever observes them more (each
//! is asked for its mask), but would starve whoever measures that.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Is such a process; ends when its standard input does.
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

/// Such a process as a child that ends with us, whatever becomes of us: its standard input ends
/// then.
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
