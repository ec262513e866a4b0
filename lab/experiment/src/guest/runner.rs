//! Turns in guests, as the host sees them: boots a guest when a case begins, and again where one is
//! lost.

use anyhow::{Result, bail};
use evenkeel_machine::CpuSet;
use evenkeel_trial::Sample;
use evenkeel_vm::Guest;

use super::lab::{Lab, turn};
use super::{Clock, GuestBench, Scheduler};
use crate::accounts::Accounts;
use crate::display::Display;
use crate::host::usable_cpus;
use crate::{Only, Runner, Turn, interrupt};

/// A guest with CPUs that are emulated concurrently can be lost when its kernel patches itself, as it
/// does whenever a scheduler comes or goes (tests/vm/boots.rs): so many are booted in all for a case.
const MAX_BOOTS: usize = 4;

/// Makes runs in guests.
pub struct GuestRunner<'a> {
    bench: &'a GuestBench,
    only: &'a Only,
    lab: &'a Lab,
    display: &'a Display,
    accounts: Accounts,
    /// CPUs of the host.
    host: CpuSet,
    /// The machine that is up, and how often it was booted.
    guest: Option<(Clock, Guest)>,
    boots: usize,
}

impl<'a> GuestRunner<'a> {
    /// Nothing is booted yet.
    ///
    /// # Errors
    /// The kernel does not tell which CPUs may be used.
    pub fn new(
        bench: &'a GuestBench,
        only: &'a Only,
        lab: &'a Lab,
        display: &'a Display,
    ) -> Result<Self> {
        let (accounts, host) = (Accounts::open(), usable_cpus()?);
        Ok(Self { bench, only, lab, display, accounts, host, guest: None, boots: 0 })
    }

    /// A guest in which everything was done once: the first time takes longer, and never counts.
    fn boot(&mut self, clock: Clock) -> Result<()> {
        self.guest = None;
        self.display.message(&format!("booting the {} machine", clock.name()));
        let mut guest = self.lab.boot(clock)?;
        if let Some(baseline) = self.lab.contestants.first() {
            turn(&mut guest, clock, self.bench, self.only, baseline)?;
        }
        self.guest = Some((clock, guest));
        Ok(())
    }

    fn measure(&mut self, clock: Clock, contestant: &str) -> Result<Sample> {
        let Some((_, guest)) = &mut self.guest else { bail!("no guest is up") };
        let pid = guest.pid();
        let before = self.accounts.read(&self.host, &[pid])?;
        let figures = turn(guest, clock, self.bench, self.only, contestant)?;
        let window = self.accounts.read(&self.host, &[pid])?.since(&before);
        // A clock that counts instructions does not see other programs of the host.
        let foreign_pct = if clock == Clock::Timed { window.foreign_pct } else { 0.0 };
        Ok(Sample { figures, foreign_pct })
    }
}

impl Runner<Scheduler> for GuestRunner<'_> {
    fn run(&mut self, turn: &Turn<'_, Scheduler>) -> Result<Sample> {
        let clock: Clock = turn.case.name.parse()?;
        let Some(contestant) = turn.contestant else { bail!("guests have no reference") };
        if self.guest.as_ref().is_none_or(|(up, _)| *up != clock) {
            self.boots = 1;
            self.boot(clock)?;
        }
        loop {
            interrupt::check()?;
            match self.measure(clock, &contestant.name) {
                Err(error) if error.is::<evenkeel_vm::Error>() && self.boots < MAX_BOOTS => {
                    interrupt::check()?;
                    self.display.say("the guest was lost: this turn once more, in another one");
                    tracing::info!("{error:#}");
                    self.boots += 1;
                    self.boot(clock)?;
                }
                measured => return measured,
            }
        }
    }
}
