//! The machines in which everything runs: virtual ones with a real kernel that has sched_ext.

use std::path::Path;

use anyhow::{Context, Result, bail};
use evenkeel_vm::{Acceleration, Guest, Initramfs, Job, Kernel, Machine, Topology};
use serde::{Deserialize, Serialize};

use super::contestant;
use super::round::{Figures, HACKBENCH, SYSBENCH};
use super::storm::TRUE;

/// The oldest kernel that the keel supports, as tests/vm/kernels calls it.
const KERNEL: &str = "6.18";
/// A round takes a tenth of that, in s of the guest.
const LIMIT_S: u32 = 300;

/// What the guest's clock counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// Instructions of all CPUs, one a nanosecond; idle time passes at once. Shows what a scheduler
    /// costs and how it shares, exactly, but not that it leaves CPUs idle: nothing is lost by that.
    Counted,
    /// The host's time, with a thread of the host for each CPU.
    Timed,
}

impl Clock {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Counted, Self::Timed];

    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Timed => "timed",
        }
    }

    /// What it is, for the reader of a report.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Counted => {
                "4 CPUs that an emulator executes in turn; its clock counts instructions, one a \
                 nanosecond. What a scheduler costs and how it shares is exact; what is lost \
                 where it leaves a CPU idle does not show"
            }
            Self::Timed => {
                "2 CPUs, each emulated by a thread of the host; its clock is the host's. Idle CPUs \
                 cost what they cost, and the host's noise is in it"
            }
        }
    }

    fn acceleration(self) -> Acceleration {
        match self {
            Self::Counted => Acceleration::Counting,
            Self::Timed => Acceleration::Emulation,
        }
    }

    fn topology(self) -> Topology {
        Topology::flat(match self {
            Self::Counted => 4,
            Self::Timed => 2,
        })
    }
}

impl std::str::FromStr for Clock {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|clock| clock.name() == name)
            .with_context(|| format!("there is no clock {name:?}: give some of counted, timed"))
    }
}

/// What the guests are made of.
pub struct Lab {
    /// Why something takes no part, in sentences.
    pub said: Vec<String>,
    /// Who schedules, the baseline first.
    pub contestants: Vec<String>,
    kernel: Kernel,
    initramfs: Initramfs,
}

impl Lab {
    /// Puts together evenkeel's own `executable`, the programs of the system that are installed, and
    /// those of `peers` that are built.
    ///
    /// # Errors
    /// There is no kernel, or a program's libraries are missing.
    pub fn new(executable: &Path, peers: &[String]) -> Result<Self> {
        let mut lab = Self {
            said: Vec::new(),
            contestants: vec![contestant::EEVDF.to_owned(), contestant::KEEL.to_owned()],
            kernel: Kernel::find(KERNEL)?,
            initramfs: Initramfs::new(executable)?,
        };
        lab.initramfs.program(Path::new(TRUE))?;
        for program in [HACKBENCH, SYSBENCH].map(Path::new) {
            if program.exists() {
                lab.initramfs.program(program)?;
            } else {
                let program = program.display();
                lab.said.push(format!("{program} is not installed: scripts/setup keel does it"));
            }
        }
        for peer in peers {
            match contestant::built(&evenkeel_vm::cache(), peer) {
                Ok(path) => {
                    lab.initramfs.program_as(&path, &contestant::in_guest(peer))?;
                    lab.contestants.push(peer.clone());
                }
                Err(why) => lab.said.push(why),
            }
        }
        Ok(lab)
    }

    /// The kernel in the guests.
    pub fn kernel(&self) -> &str {
        &self.kernel.package
    }

    /// Boots a machine.
    ///
    /// # Errors
    /// There is no emulator, or it does not come up.
    pub fn boot(&self, clock: Clock) -> Result<Guest> {
        let machine = Machine::new(
            self.kernel.clone(),
            clock.topology(),
            self.initramfs.clone(),
            clock.acceleration(),
        );
        Ok(machine.boot()?)
    }
}

/// Has the guest measure everything under one scheduler; what its callbacks cost only where time is
/// instructions.
///
/// # Errors
/// The guest is lost ([`evenkeel_vm::Error`] is its cause), or the scheduler or a program fails.
pub fn round(guest: &mut Guest, clock: Clock, contestant: &str) -> Result<Figures> {
    let words = ["/init", "bench", "keel", "--inside", contestant];
    let costs = (clock == Clock::Counted).then_some("--costs");
    let command = words.into_iter().chain(costs).map(str::to_owned).collect();
    let ending = guest.run(Job { command, limit_s: LIMIT_S })?;
    if !ending.is_clean() {
        bail!("{ending}");
    }
    serde_json::from_str(ending.stdout.trim())
        .with_context(|| format!("the guest does not give figures: {}", ending.stdout))
}

/// A peer by its name.
///
/// # Errors
/// Nobody knows it.
pub fn check_peers(peers: &[String]) -> Result<()> {
    match peers.iter().find(|peer| !contestant::PEERS.contains(&peer.as_str())) {
        None => Ok(()),
        Some(peer) => {
            bail!("there is no peer {peer:?}: give some of {}", contestant::PEERS.join(", "))
        }
    }
}
