//! Experiments on this machine.

use anyhow::{Context, Result};
use evenkeel_journal::{affinity, effective_cpuset};
use evenkeel_machine::CpuSet;
use evenkeel_trial::{Figures, Sample};

use crate::accounts::Accounts;
use crate::{Runner, Turn};

/// The CPUs that programs started by this process may use.
///
/// # Errors
/// The kernel does not tell.
pub fn usable_cpus() -> Result<CpuSet> {
    let tid = nix::unistd::gettid().as_raw();
    let mine = affinity::get(tid).context("cannot read which CPUs may be used")?;
    Ok(mine.intersection(&effective_cpuset(tid)))
}

/// Has the calling thread run on this CPU only.
///
/// # Errors
/// The kernel refuses: the CPU is offline, or not in the cpuset.
pub fn run_on(cpu: u32) -> Result<()> {
    let tid = nix::unistd::gettid().as_raw();
    affinity::set(tid, &[cpu].into_iter().collect())
        .with_context(|| format!("cannot run on CPU {cpu}"))
}

/// Makes runs by a function, and sees what other programs took meanwhile.
pub struct HostRunner<F> {
    accounts: Accounts,
    online: CpuSet,
    run: F,
}

impl<F> HostRunner<F> {
    /// `run` makes one run and gives its figures.
    ///
    /// # Errors
    /// The kernel does not tell which CPUs may be used.
    pub fn new(run: F) -> Result<Self> {
        Ok(Self { accounts: Accounts::open(), online: usable_cpus()?, run })
    }
}

impl<How, F: FnMut(&Turn<'_, How>) -> Result<Figures>> Runner<How> for HostRunner<F> {
    fn run(&mut self, turn: &Turn<'_, How>) -> Result<Sample> {
        crate::interrupt::check()?;
        let before = self.accounts.read(&self.online, &[])?;
        let figures = (self.run)(turn)?;
        let window = self.accounts.read(&self.online, &[])?.since(&before);
        Ok(Sample { figures, foreign_pct: window.foreign_pct })
    }
}
