//! The end of balancing: a program leaves or is only watched, or all leave. Masks are given back, and
//! the last interval is counted.

use std::collections::BTreeMap;
use std::rc::Rc;

use evenkeel_journal::SupervisedSession;

use super::Balancer;
use crate::decision::Decision;
use crate::observe::AccountingChoice;
use crate::program::{Program, task_ref};
use crate::summary::Totals;

impl Balancer {
    /// Stops balancing a program and gives its tasks their masks back. Returns its totals and decisions.
    pub fn leave(&mut self, program: u32) -> Option<(Totals, Vec<Decision>)> {
        let mut left = self.programs.remove(&program)?;
        if self.free_what_is_new(program, &left) {
            let now = Rc::clone(self.observer.last());
            self.count_last_interval(program, &mut left);
            left.last = now;
        }
        self.release(program);
        // A thread that was started until then has the mask of its parent.
        if left.last.tasks_of(program).is_some_and(|tasks| !tasks.is_empty()) {
            self.free_what_is_new(program, &left);
        }
        if let Err(why) = self.observer.forget(program) {
            tracing::warn!("{why}");
        }
        Some(left.into_results())
    }

    /// Reads all tasks anew, and gives those that a program has started since its last reading the mask
    /// that they would have without ours. False where they cannot be read.
    fn free_what_is_new(&mut self, number: u32, program: &Program) -> bool {
        if let Err(why) = self.observer.read() {
            tracing::debug!("tasks that started since the last reading are not known: {why}");
            return false;
        }
        let now = Rc::clone(self.observer.last());
        if let Some(session) = self.session.as_mut().map(SupervisedSession::session) {
            program.free_new_tasks(number, &now, session);
        }
        true
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

    /// Moves no task any more if the journal was removed, as a login's folder is when it ends: nothing
    /// would take moves back if this process were killed.
    pub(super) fn check_journal(&mut self, program: &mut Program) {
        let is_removed = |session: &mut SupervisedSession| !session.session().has_journal();
        let Some(session) = self.session.take_if(is_removed) else { return };
        tracing::warn!(
            "the journal was removed: all tasks have their own CPUs again, and are only observed; start \
             again to have them moved"
        );
        for why in session.close().errors {
            tracing::error!("{why}");
        }
        program.held.clear();
        self.programs.values_mut().for_each(|program| program.held.clear());
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
    use std::io::Write;
    use std::process::{Command, Stdio};

    use evenkeel_journal::{Session, SessionOptions, TaskRef, affinity};
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

    #[test]
    fn what_was_started_just_before_a_program_leaves_may_use_all_its_cpus() {
        let folder = tempfile::tempdir().unwrap();
        let session = Session::open(folder.path(), SessionOptions::default()).unwrap();
        let session = SupervisedSession::new(session, |_| None);
        let machine = Machine::preset("small").unwrap();
        let mut balancer = Balancer::new(machine, Some(session), Options::by_procfs()).unwrap();
        // It starts a child when it is told to.
        let mut shell = Command::new("sh");
        shell.args(["-c", "read line; sleep 60 & read line"]).stdin(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let task = TaskRef::of(shell.id() as i32).unwrap();
        let whole = affinity::get(task.tid).unwrap();
        balancer.join(NUMBER, &task).unwrap();
        balancer.observer.read().unwrap();
        balancer.programs.get_mut(&NUMBER).unwrap().last = Rc::clone(balancer.observer.last());
        let cpu = whole.iter().next().unwrap();
        let session = balancer.session.as_mut().map(SupervisedSession::session).unwrap();
        session.place(&task, cpu).unwrap();
        shell.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        let children = format!("/proc/{0}/task/{0}/children", task.tid);
        let child = loop {
            let children = std::fs::read_to_string(&children).unwrap();
            if let Ok(child) = children.trim().parse::<i32>() {
                break child;
            }
            std::thread::yield_now();
        };
        balancer.leave(NUMBER).unwrap();
        let masks = [task.tid, child].map(|tid| affinity::get(tid).unwrap());
        kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert_eq!(masks, [whole.clone(), whole]);
    }
}
