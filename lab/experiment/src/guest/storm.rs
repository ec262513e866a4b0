//! Forks, programs and threads without pause: each parent starts one child after the other, and
//! waits for its end.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// What does nothing, and that successfully.
pub const TRUE: &str = "/bin/true";

/// What the children are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storm {
    /// Processes.
    Fork,
    /// Programs.
    Exec,
    /// Threads.
    Join,
}

impl Storm {
    /// How long it takes `parents` to have had `children` each.
    ///
    /// # Errors
    /// A child cannot be started, or fails.
    pub fn rage(self, parents: usize, children: usize) -> Result<Duration> {
        let begun = Instant::now();
        let parents: Vec<JoinHandle<Result<()>>> = (0..parents)
            .map(|_| {
                std::thread::Builder::new()
                    .spawn(move || (0..children).try_for_each(|_| self.child()))
                    .context("cannot start a thread")
            })
            .collect::<Result<_>>()?;
        for parent in parents {
            parent.join().unwrap_or_else(|_| bail!("a parent panicked"))?;
        }
        Ok(begun.elapsed())
    }

    fn child(self) -> Result<()> {
        let is_well = match self {
            Self::Fork => {
                // SAFETY: the child only ends, which is allowed after a fork of a program with
                // threads.
                match unsafe { fork() }.context("cannot fork")? {
                    ForkResult::Child => {
                        // SAFETY: ends this process at once.
                        unsafe { libc::_exit(0) }
                    }
                    ForkResult::Parent { child } => {
                        matches!(waitpid(child, None)?, WaitStatus::Exited(_, 0))
                    }
                }
            }
            Self::Exec => Command::new(Path::new(TRUE))
                .stdin(Stdio::null())
                .status()
                .with_context(|| format!("cannot start {TRUE}"))?
                .success(),
            Self::Join => {
                let thread = std::thread::Builder::new().spawn(|| ());
                thread.context("cannot start a thread")?.join().is_ok()
            }
        };
        if !is_well {
            bail!("a child of the storm {self:?} did not end well");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_storms_end() {
        for storm in [Storm::Fork, Storm::Exec, Storm::Join] {
            storm.rage(2, 3).unwrap();
        }
    }
}
