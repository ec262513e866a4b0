//! Who schedules: the kernel's own scheduler, the keel with some options, and peers; and in the
//! guest, having them do so for a while.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::command::Running;

/// The name of [`Contestant::eevdf`].
pub const EEVDF: &str = "eevdf";

/// Where peers are in the guest.
const GUEST_DIR: &str = "/usr/bin";
/// What the kernel says of sched_ext: enabled, disabled or on its way.
const STATE: &str = "/sys/kernel/sched_ext/state";
/// How often it is asked.
const LOOK: Duration = Duration::from_millis(1);

/// Somebody who takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contestant {
    /// Its name in the report.
    pub name: String,
    /// What it is, for the reader of a report.
    pub explanation: &'static str,
    /// Who schedules.
    pub scheduler: Scheduler,
}

/// Who schedules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheduler {
    /// The kernel's own.
    Kernel,
    /// `evenkeel sched` with these options.
    Keel(Vec<&'static str>),
    /// A program of the sched-ext project that is called as the contestant.
    Peer,
}

impl Contestant {
    /// The kernel's own scheduler.
    pub fn eevdf() -> Self {
        Self {
            name: EEVDF.to_owned(),
            explanation: "the kernel's own scheduler",
            scheduler: Scheduler::Kernel,
        }
    }

    /// `evenkeel sched` with these options, separated by blanks.
    pub fn keel(name: &str, options: &'static str, explanation: &'static str) -> Self {
        let scheduler = Scheduler::Keel(options.split_whitespace().collect());
        Self { name: name.to_owned(), explanation, scheduler }
    }

    /// A scheduler of the sched-ext project.
    pub fn peer(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            explanation: "a scheduler of the sched-ext project, as published, without options",
            scheduler: Scheduler::Peer,
        }
    }

    /// What the names of its callbacks begin with; `None`: it has none.
    pub fn callbacks(&self) -> Option<&str> {
        match self.scheduler {
            Scheduler::Kernel => None,
            Scheduler::Keel(_) => Some("keel"),
            Scheduler::Peer => Some(self.name.trim_start_matches("scx_")),
        }
    }
}

/// Where a peer is in the guest.
pub fn in_guest(peer: &str) -> PathBuf {
    Path::new(GUEST_DIR).join(peer)
}

/// Where `scripts/peers` has put a peer.
///
/// # Errors
/// It is not there: says why it could not be built, or that nobody tried.
pub fn built(cache: &Path, peer: &str) -> Result<PathBuf, String> {
    let dir = cache.join("peers");
    let program = dir.join("bin").join(peer);
    if program.exists() {
        return Ok(program);
    }
    Err(match std::fs::read_to_string(dir.join(format!("{peer}.error"))) {
        Ok(error) => format!("{peer} takes no part, it could not be built: {}", error.trim()),
        Err(_) => format!("{peer} takes no part: build it by scripts/peers {peer}"),
    })
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
    pub fn start(contestant: &Contestant) -> Result<Self> {
        let name = contestant.name.clone();
        let mut command = match &contestant.scheduler {
            Scheduler::Kernel => return Ok(Self { name, process: None }),
            Scheduler::Keel(options) => {
                let mut own = Command::new(crate::executable::product()?);
                own.arg("sched").args(options);
                own
            }
            Scheduler::Peer => Command::new(in_guest(&name)),
        };
        let mut process = Running::start(&mut command)?;
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
    /// It was thrown out meanwhile.
    pub fn end(mut self) -> Result<()> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
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
    fn what_is_not_built_says_why() {
        let cache = tempfile::tempdir().unwrap();
        let peers = cache.path().join("peers");
        std::fs::create_dir_all(peers.join("bin")).unwrap();
        let why = built(cache.path(), "scx_flash").unwrap_err();
        assert!(why.contains("scripts/peers scx_flash"), "{why}");
        std::fs::write(peers.join("scx_flash.error"), "error: no such thing\n").unwrap();
        let why = built(cache.path(), "scx_flash").unwrap_err();
        assert!(why.ends_with("could not be built: error: no such thing"), "{why}");
        std::fs::write(peers.join("bin/scx_flash"), "").unwrap();
        assert_eq!(built(cache.path(), "scx_flash").unwrap(), peers.join("bin/scx_flash"));
    }

    #[test]
    fn callbacks_are_named_after_their_scheduler() {
        assert_eq!(Contestant::eevdf().callbacks(), None);
        assert_eq!(Contestant::keel("zone", "--gate zone", "").callbacks(), Some("keel"));
        assert_eq!(Contestant::peer("scx_bpfland").callbacks(), Some("bpfland"));
    }

    #[test]
    fn options_are_words() {
        let keel = Contestant::keel("zone", "--gate zone", "");
        assert_eq!(keel.scheduler, Scheduler::Keel(vec!["--gate", "zone"]));
    }
}
