//! What the guests are made of, and one turn in one of them as the host sees it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use evenkeel_vm::{Guest, Initramfs, Job, Kernel, Machine};

use super::GuestBench;
use super::clock::Clock;
use super::scheduler::{Scheduler, in_guest};
use super::storm::TRUE;
use crate::{Figures, Only, interrupt, peers};

/// The oldest kernel that the keel supports, as tests/vm/kernels calls it.
const KERNEL: &str = "6.18";

/// What the guests are made of.
pub struct Lab {
    /// Why something takes no part, in sentences.
    pub said: Vec<String>,
    /// The contestants that take part, by name, the baseline first.
    pub contestants: Vec<String>,
    kernel: Kernel,
    initramfs: Initramfs,
    nodes: u32,
}

impl Lab {
    /// Puts together both executables, the programs of the system that are installed, and
    /// those of the peers that are built.
    ///
    /// # Errors
    /// There is no kernel, or a program's libraries are missing.
    pub fn new(bench: &GuestBench, only: &Only) -> Result<Self> {
        let mut lab = Self {
            said: Vec::new(),
            contestants: Vec::new(),
            kernel: Kernel::find(KERNEL)?,
            initramfs: crate::executable::initramfs()?,
            nodes: bench.nodes,
        };
        lab.initramfs.program(Path::new(TRUE))?;
        for program in bench.programs.iter().map(Path::new) {
            if program.exists() {
                lab.initramfs.program(program)?;
            } else {
                let program = program.display();
                lab.said.push(format!("{program} is not installed: scripts/setup keel does it"));
            }
        }
        for contestant in bench.takes_part(only) {
            if let Scheduler::Peer(peer) = &contestant.how {
                match peers::built(&evenkeel_vm::cache(), peer) {
                    Ok(path) => lab.initramfs.program_as(&path, &in_guest(peer))?,
                    Err(why) => {
                        lab.said.push(why);
                        continue;
                    }
                }
            }
            lab.contestants.push(contestant.name.clone());
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
    /// There is no emulator, it does not come up, or a signal asked for the end.
    pub fn boot(&self, clock: Clock) -> Result<Guest> {
        let mut machine = Machine::new(
            self.kernel.clone(),
            clock.topology(self.nodes),
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
pub fn turn(
    guest: &mut Guest,
    clock: Clock,
    bench: &GuestBench,
    only: &Only,
    contestant: &str,
) -> Result<Figures> {
    let words = ["/init", "bench", bench.experiment.name, "--inside", contestant];
    let costs = (clock == Clock::Counted).then_some("--costs");
    let command = words.into_iter().chain(costs).map(str::to_owned).chain(only.arguments());
    let command = command.collect();
    let ending = guest.run(Job { command, limit_s: bench.limit_s })?;
    if !ending.is_clean() {
        bail!("{ending}");
    }
    let mut figures: Figures = serde_json::from_str(ending.stdout.trim())
        .with_context(|| format!("the guest does not give figures: {}", ending.stdout))?;
    let is_unlisted = |name: &&String| bench.experiment.metric(name).is_none();
    if let Some(unknown) = figures.keys().find(is_unlisted) {
        bail!("the guest gives a figure {unknown:?} that is not listed");
    }
    figures.retain(|name, _| only.wants(name));
    Ok(figures)
}
