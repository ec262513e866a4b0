//! The end of balancing: a program leaves or is only watched, or all leave. Masks are given back, and
//! the last interval is counted.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Balancer;
use crate::decision::Decision;
use crate::observe::AccountingChoice;
use crate::program::{Program, task_ref};
use crate::summary::Totals;

impl Balancer {
    /// Stops balancing a program and gives its tasks their masks back. Returns its totals and decisions.
    pub fn leave(&mut self, program: u32) -> Option<(Totals, Vec<Decision>)> {
        let mut left = self.programs.remove(&program)?;
        match self.observer.read() {
            Ok(_) => self.count_last_interval(program, &mut left),
            Err(why) => {
                tracing::debug!("tasks that started since the last reading are not known: {why}");
            }
        }
        self.release(program);
        if let Err(why) = self.observer.forget(program) {
            tracing::warn!("{why}");
        }
        Some(left.into_results())
    }

    /// Decides and counts the moves of a program from now on, and makes none: what was done to it is
    /// taken back. Or balances it again.
    pub(crate) fn set_watched(&mut self, number: u32, is_watched: bool) {
        if is_watched {
            self.release(number);
        }
        if let Some(program) = self.programs.get_mut(&number) {
            program.set_watched(is_watched);
        }
    }

    /// Gives the tasks of all programs their masks back: pins by other options would stay.
    pub(super) fn release_all(&mut self) {
        let programs: Vec<u32> = self.programs.keys().copied().collect();
        programs.into_iter().for_each(|program| self.release(program));
        self.programs.values_mut().for_each(|program| program.held.clear());
    }

    /// Gives the tasks of a program their masks back.
    fn release(&mut self, program: u32) {
        let last = Rc::clone(self.observer.last());
        for (id, task) in last.tasks_of(program).into_iter().flatten() {
            self.release_task(task_ref(*id, task.process));
        }
    }

    /// Gives back every mask. Returns the totals and decisions of each program.
    pub fn finish(mut self) -> BTreeMap<u32, (Totals, Vec<Decision>)> {
        let mut programs = std::mem::take(&mut self.programs);
        match self.observer.read() {
            Ok(_) => {
                for (number, program) in &mut programs {
                    self.count_last_interval(*number, program);
                }
            }
            Err(error) => tracing::debug!("the last interval is not counted: {error}"),
        }
        if let Some(session) = self.session.take() {
            let report = session.close();
            for program in programs.values_mut() {
                program.totals.kept = report.kept.len() as u64;
            }
            for error in report.errors {
                tracing::error!("{error}; take it back with: evenkeel undo");
            }
        }
        programs.into_iter().map(|(number, program)| (number, program.into_results())).collect()
    }

    /// What happened since the last round, in which nothing is decided any more. As of any interval, it
    /// is left out if the program was stopped meanwhile.
    fn count_last_interval(&mut self, number: u32, program: &mut Program) {
        let was_stopped = program.was_stopped(number, self.observer.last());
        self.update_cpus(number, program);
        if was_stopped {
            let then = std::mem::replace(&mut program.last, Rc::clone(self.observer.last()));
            program.leave_out(&then);
            return;
        }
        if let Some(snapshot) = self.snapshot(number, program) {
            program.totals.add(&snapshot, self.observer.last());
        }
    }

    /// Why the figures are not exact, where exact ones were wanted.
    pub(crate) fn why_not_exact(&self) -> Option<String> {
        let is_as_asked = self.options.accounting == AccountingChoice::Procfs;
        let is_worse = !self.observer.accounting().is_exact() && !is_as_asked;
        is_worse.then(|| self.observer.why_not_exact().map(str::to_owned)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use evenkeel_journal::TaskRef;
    use evenkeel_machine::Machine;
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::{WaitPidFlag, waitpid};
    use nix::unistd::Pid;

    use super::*;
    use crate::options::Options;

    const NUMBER: u32 = 1;

    #[test]
    fn the_last_interval_counts_unless_the_program_was_stopped_in_it() {
        for is_stopped in [false, true] {
            let machine = Machine::preset("small").unwrap();
            let mut balancer = Balancer::new(machine, None, Options::by_procfs()).unwrap();
            let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
            let pid = Pid::from_raw(sleeper.id() as i32);
            balancer.join(NUMBER, &TaskRef::of(pid.as_raw()).unwrap()).unwrap();
            if is_stopped {
                kill(pid, Signal::SIGSTOP).unwrap();
                waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
            }
            let (totals, _) = balancer.leave(NUMBER).unwrap();
            assert_eq!(totals.intervals, u64::from(!is_stopped));
            let elapsed_ns: Vec<u64> = totals.cpus().iter().map(|cpu| cpu.elapsed_ns).collect();
            assert_eq!(elapsed_ns.iter().all(|ns| *ns == 0), is_stopped, "{elapsed_ns:?}");
            sleeper.kill().unwrap();
            sleeper.wait().unwrap();
        }
    }
}
