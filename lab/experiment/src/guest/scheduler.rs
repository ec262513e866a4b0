//! How contestants schedule: the kernel's own scheduler, the keel with some options, and peers; and
//! in the guest, a scheduler at work.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::Contestant;
use crate::command::Running;
use crate::peers::Peer;

/// The name of [`eevdf`].
pub const EEVDF: &str = "eevdf";

/// Where peers are in the guest.
const GUEST_DIR: &str = "/usr/bin";
/// What the kernel says of sched_ext: enabled, disabled or on its way.
const STATE: &str = "/sys/kernel/sched_ext/state";
/// How often it is asked.
const LOOK: Duration = Duration::from_millis(1);

/// What schedules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheduler {
    /// The kernel's own scheduler.
    Kernel,
    /// `evenkeel sched` with these options.
    Keel(Vec<&'static str>),
    /// A scheduler of another project.
    Peer(Peer),
}

impl Scheduler {
    /// Whether it is a sched_ext scheduler: then its callbacks can be measured.
    pub fn has_callbacks(&self) -> bool {
        *self != Self::Kernel
    }
}

/// The kernel's own scheduler.
pub fn eevdf() -> Contestant<Scheduler> {
    Contestant::new(EEVDF, "the kernel's own scheduler", Scheduler::Kernel)
}

/// `evenkeel sched` with these options, separated by blanks.
pub fn keel(name: &str, options: &'static str, explanation: &str) -> Contestant<Scheduler> {
    Contestant::new(name, explanation, Scheduler::Keel(options.split_whitespace().collect()))
}

/// A scheduler of another project.
pub fn peer(peer: Peer) -> Contestant<Scheduler> {
    let Peer { name, crate_name, version, arguments } = peer;
    let options = if arguments.is_empty() { "without options" } else { arguments };
    let explanation =
        format!("{crate_name} {version} of the sched-ext project, as published, {options}");
    Contestant::new(name, &explanation, Scheduler::Peer(peer))
}

/// Where a peer is in the guest.
pub fn in_guest(peer: &Peer) -> PathBuf {
    Path::new(GUEST_DIR).join(peer.crate_name)
}

/// A scheduler at work, in the guest. The kernel's own works again when this is dropped.
pub struct AtWork {
    name: String,
    /// The process without which it would end; the kernel's own needs none.
    process: Option<Running>,
}

impl AtWork {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started, or ends at once.
    pub fn start(contestant: &Contestant<Scheduler>) -> Result<Self> {
        let name = contestant.name.clone();
        let mut command = match &contestant.how {
            Scheduler::Kernel => return Ok(Self { name, process: None }),
            Scheduler::Keel(options) => {
                let mut own = Command::new(crate::executable::product()?);
                own.arg("sched").args(options);
                own
            }
            Scheduler::Peer(peer) => {
                let mut command = Command::new(in_guest(peer));
                command.args(peer.arguments.split_whitespace());
                command
            }
        };
        let process = Running::start(&mut command)?;
        while state()? != "enabled" {
            if process.has_ended() {
                process.wait()?;
                bail!("{name} ended before it scheduled anything");
            }
            std::thread::sleep(LOOK);
        }
        Ok(Self { name, process: Some(process) })
    }

    /// Ends it.
    ///
    /// # Errors
    /// The kernel ended it meanwhile.
    pub fn end(mut self) -> Result<()> {
        let Some(process) = self.process.take() else { return Ok(()) };
        if process.has_ended() || state()? != "enabled" {
            process.wait()?;
            bail!("{} did not schedule to the end", self.name);
        }
        drop(process);
        while state()? != "disabled" {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

fn state() -> Result<String> {
    let state = std::fs::read_to_string(STATE)
        .with_context(|| format!("cannot read {STATE}: the guest's kernel has no sched_ext"))?;
    Ok(state.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernel_has_no_callbacks() {
        assert!(!eevdf().how.has_callbacks());
        assert!(keel("zone", "--gate zone", "").how.has_callbacks());
        assert!(crate::peers::all().all(|one| peer(one).how.has_callbacks()));
    }

    #[test]
    fn options_are_words() {
        let keel = keel("zone", "--gate zone", "");
        assert_eq!(keel.how, Scheduler::Keel(vec!["--gate", "zone"]));
    }
}
