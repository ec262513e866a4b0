//! What the guests are made of, and one round in one of them as the host sees it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use evenkeel_vm::{Guest, Initramfs, Job, Kernel, Machine};

use super::clock::Clock;
use super::contestant::{self, Contestant, Scheduler};
use super::storm::TRUE;
use super::{Experiment, Figures, Only};
use crate::interrupt;

/// The oldest kernel that the keel supports, as tests/vm/kernels calls it.
const KERNEL: &str = "6.18";

/// What the guests are made of.
pub struct Lab {
    /// Why something takes no part, in sentences.
    pub said: Vec<String>,
    /// Who takes part, the baseline first.
    pub contestants: Vec<Contestant>,
    kernel: Kernel,
    initramfs: Initramfs,
}

impl Lab {
    /// Puts together both executables, the programs of the system that are installed, and
    /// those of the peers that are built.
    ///
    /// # Errors
    /// There is no kernel, or a program's libraries are missing.
    pub fn new(experiment: &Experiment, only: &Only) -> Result<Self> {
        let mut lab = Self {
            said: Vec::new(),
            contestants: Vec::new(),
            kernel: Kernel::find(KERNEL)?,
            initramfs: crate::executable::initramfs()?,
        };
        lab.initramfs.program(Path::new(TRUE))?;
        for program in experiment.programs.iter().map(Path::new) {
            if program.exists() {
                lab.initramfs.program(program)?;
            } else {
                let program = program.display();
                lab.said.push(format!("{program} is not installed: scripts/setup keel does it"));
            }
        }
        let takes_part = |one: &&Contestant| only.has(experiment, &one.name);
        for contestant in experiment.contestants.iter().filter(takes_part) {
            if contestant.scheduler == Scheduler::Peer {
                match contestant::built(&evenkeel_vm::cache(), &contestant.name) {
                    Ok(path) => {
                        lab.initramfs.program_as(&path, &contestant::in_guest(&contestant.name))?
                    }
                    Err(why) => {
                        lab.said.push(why);
                        continue;
                    }
                }
            }
            lab.contestants.push(contestant.clone());
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
    /// There is no emulator, it does not come up, or somebody asked for the end.
    pub fn boot(&self, clock: Clock) -> Result<Guest> {
        let mut machine = Machine::new(
            self.kernel.clone(),
            clock.topology(),
            self.initramfs.clone(),
            clock.acceleration(),
        );
        machine.give_up = || interrupt::asked().is_some();
        Ok(machine.boot()?)
    }
}

/// Has the guest measure everything under one contestant; what callbacks cost only where time is
/// instructions.
///
/// # Errors
/// The guest is lost ([`evenkeel_vm::Error`] is its cause), or the scheduler or a program fails.
pub fn round(
    guest: &mut Guest,
    clock: Clock,
    experiment: &Experiment,
    only: &Only,
    contestant: &str,
) -> Result<Figures> {
    let words = ["/init", "bench", experiment.name, "--inside", contestant];
    let costs = (clock == Clock::Counted).then_some("--costs");
    let command = words.into_iter().chain(costs).map(str::to_owned).chain(only.arguments());
    let command = command.collect();
    let ending = guest.run(Job { command, limit_s: experiment.limit_s })?;
    if !ending.is_clean() {
        bail!("{ending}");
    }
    let mut figures: Figures = serde_json::from_str(ending.stdout.trim())
        .with_context(|| format!("the guest does not give figures: {}", ending.stdout))?;
    let is_unlisted = |name: &&String| experiment.metric(name).is_none();
    if let Some(unknown) = figures.keys().find(is_unlisted) {
        bail!("the guest gives a figure {unknown:?} that is not listed");
    }
    figures.retain(|name, _| only.wants(name));
    Ok(figures)
}
