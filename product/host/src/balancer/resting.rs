//! Rests of the balancer: the accounting is unloaded for a while (`rest.rs` says when).

use evenkeel_machine::CpuSet;

use super::{Balancer, BalancerError};
use crate::program::Program;
use crate::rest::Useless;

impl Balancer {
    /// Why the accounting is of no use to a program, as far as it was seen: nothing is moved or kept in
    /// its place, and nothing is tried.
    pub(crate) fn useless(&self, program: u32) -> Option<Useless> {
        self.programs.get(&program).and_then(|program| program.useless)
    }

    /// The CPUs on which a program was balanced when it was last looked at.
    pub(crate) fn usable_cpus(&self, program: u32) -> CpuSet {
        self.programs.get(&program).map_or_else(CpuSet::new, |program| self.usable(program))
    }

    /// The CPUs on which the program is balanced.
    pub(super) fn usable(&self, program: &Program) -> CpuSet {
        let allowed = program.cpus().difference(&self.isolated);
        match &self.options.cpus {
            Some(cpus) => allowed.intersection(cpus),
            None => allowed,
        }
    }

    /// Unloads the accounting for a while. Until [`Balancer::wake`], nothing is to be called but what
    /// tells of the past, and [`Balancer::finish`]. Returns whether it was loaded.
    pub(crate) fn rest(&mut self) -> bool {
        self.observer.rest()
    }

    /// Counts a rest after which nothing goes on.
    pub(crate) fn count_rest(&mut self, number: u32, rested_ns: u64) {
        if let Some(program) = self.programs.get_mut(&number) {
            program.totals.count_rest(rested_ns);
        }
    }

    /// Goes on after a rest of so many ns, with one program and its first process.
    ///
    /// # Errors
    /// The accounting cannot be loaded any more. The rest goes on.
    pub(crate) fn wake(
        &mut self,
        number: u32,
        process: u32,
        rested_ns: u64,
    ) -> Result<(), BalancerError> {
        self.observer.wake(process, number, &self.options.runtimes)?;
        self.urgent = false;
        if let Some(program) = self.programs.get_mut(&number) {
            program.go_on(self.observer.last(), self.policy.clone(), rested_ns);
        }
        Ok(())
    }
}
