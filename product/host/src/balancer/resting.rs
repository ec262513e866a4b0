//! Rests of the balancer: the accounting is unloaded for a while (`rest.rs` says when).

use super::{Balancer, BalancerError};

impl Balancer {
    /// Whether a program gains nothing by being balanced, as far as it was seen: its CPUs are unequal,
    /// but nothing is moved or kept in its place, and nothing is tried.
    pub(crate) fn gains_nothing(&self, program: u32) -> bool {
        self.programs.get(&program).is_some_and(|program| program.gains_nothing)
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
