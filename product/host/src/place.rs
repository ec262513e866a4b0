//! The one place where the balancer places a task: under a supervisor, and with little latency.

use evenkeel_journal::{PlaceError, Placed, Released, SupervisedSession, SupervisorError, TaskRef};
use evenkeel_machine::CpuSet;

use crate::decision::Refusal;
use crate::latency::Visits;
use crate::options::Placement;
use crate::summary::Totals;

/// Why a task was not placed.
#[derive(Debug, thiserror::Error)]
pub enum GuardedError {
    /// A rule forbids it, or the kernel refused.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// No supervisor runs, which would undo it if this process is killed.
    #[error("no task is moved without a supervisor: {0}")]
    Supervisor(#[from] SupervisorError),
}

/// The moves of one plan. Tasks that are moved softly have their own masks again before the balancer
/// goes to the CPU of another task, and at the latest when it is dropped. So both tasks of an exchange
/// are pinned until both are in place: between their moves a CPU is idle, and the kernel would pull the
/// task that has just left it back. But none is pinned while the balancer waits for a CPU: that may take
/// milliseconds for each move, or as long as a real-time task runs there.
pub(crate) struct Placer<'a> {
    guarded: &'a mut SupervisedSession,
    visits: Option<Visits>,
    /// CPUs that the balancer does not go to: it might not run there for as long as real-time tasks do.
    not_to_visit: CpuSet,
    /// Where tasks were put since then.
    taken: CpuSet,
    softly: Vec<TaskRef>,
    /// Tasks with a mask that their user set before their release.
    yielded: u64,
    /// Why tasks stay pinned.
    failed: Vec<Refusal>,
}

impl<'a> Placer<'a> {
    pub fn new(guarded: &'a mut SupervisedSession, not_to_visit: CpuSet) -> Self {
        Self {
            guarded,
            visits: None,
            not_to_visit,
            taken: CpuSet::new(),
            softly: Vec::new(),
            yielded: 0,
            failed: Vec::new(),
        }
    }

    /// Places a task that was last seen on CPU `from` on CPU `cpu`
    /// ([`evenkeel_journal::Session::place`]): under hard placement until its next move, under soft
    /// placement until the balancer goes to another CPU, or the placer is dropped.
    ///
    /// # Errors
    /// [`GuardedError`]; the task is then as it was, or is so when it is released.
    pub fn place(
        &mut self,
        task: &TaskRef,
        from: u32,
        cpu: u32,
        placement: Placement,
    ) -> Result<Placed, GuardedError> {
        self.guarded.supervised()?;
        // A task that has just been put there waits for that CPU, too. So the kernel's migration thread
        // leaves no CPU idle, while the balancer would queue for one, with the other one idle meanwhile.
        if placement == Placement::Soft && !self.taken.contains(from) {
            self.release();
            self.visit(from);
        }
        let session = self.guarded.session();
        let placed = session.place(task, cpu);
        // Also a task that was moved, and could not be looked at after that.
        if session.pinned_cpu(task) == Some(cpu) {
            self.taken.insert(cpu);
            if placement == Placement::Soft {
                self.softly.push(*task);
            }
        }
        Ok(placed?)
    }

    /// Ends the plan, and counts what came of its releases. Returns why tasks stay pinned.
    pub fn end(mut self, totals: &mut Totals) -> Vec<Refusal> {
        self.release();
        totals.yielded += self.yielded;
        totals.refused += self.failed.len() as u64;
        std::mem::take(&mut self.failed)
    }

    fn visit(&mut self, cpu: u32) {
        if self.not_to_visit.contains(cpu) {
            return;
        }
        match &self.visits {
            Some(visits) => drop(visits.go_on(cpu)),
            None => self.visits = Visits::begin(cpu),
        }
    }

    /// Gives the tasks that were moved softly until now their own masks back.
    fn release(&mut self) {
        let session = self.guarded.session();
        for task in self.softly.drain(..) {
            match session.release(&task) {
                Ok(Released::Kept { found }) => {
                    self.yielded += 1;
                    tracing::info!(
                        "{task}: its user set CPUs {found}, so evenkeel no longer moves it"
                    );
                }
                Ok(_) | Err(PlaceError::Gone { .. }) => {}
                Err(why) => {
                    tracing::warn!("{why}; it stays pinned until it is moved again");
                    self.failed.push(Refusal::Failed(why.to_string()));
                }
            }
        }
        self.taken = CpuSet::new();
    }
}

impl Drop for Placer<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use evenkeel_journal::{Session, SessionOptions, affinity};

    use super::*;

    fn sleeper() -> (Child, TaskRef) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let task = TaskRef::of(child.id() as i32).unwrap();
        (child, task)
    }

    /// A session without a supervisor, and the folder of its journal.
    fn supervised() -> (tempfile::TempDir, SupervisedSession) {
        let folder = tempfile::tempdir().unwrap();
        let session = Session::open(folder.path(), SessionOptions::default()).unwrap();
        (folder, SupervisedSession::new(session, |_| None))
    }

    fn only(cpu: u32) -> CpuSet {
        std::iter::once(cpu).collect()
    }

    fn mask(task: &TaskRef) -> CpuSet {
        affinity::get(task.tid).unwrap()
    }

    /// All CPUs of this thread, and two of them; without two, `test` is skipped.
    fn two_cpus(test: &str) -> Option<(CpuSet, u32, u32)> {
        let own = affinity::get(nix::unistd::gettid().as_raw()).unwrap();
        let (first, last) = (own.iter().min().unwrap(), own.iter().max().unwrap());
        if first == last {
            evenkeel_skip::skip(test, "this thread has one CPU");
            return None;
        }
        Some((own, first, last))
    }

    fn end(sleepers: &mut [(Child, TaskRef)]) {
        for (child, _) in sleepers {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn both_tasks_of_an_exchange_have_their_own_masks_again_once_both_are_in_place() {
        let test = "both_tasks_of_an_exchange_have_their_own_masks_again_once_both_are_in_place";
        let Some((own, first, last)) = two_cpus(test) else { return };
        let (_folder, mut guarded) = supervised();
        let mut sleepers = [sleeper(), sleeper()];
        let tasks = sleepers.each_ref().map(|(_, task)| *task);
        let masks = || tasks.each_ref().map(mask);
        // Twice: the second time their masks are known.
        for (x, y) in [(first, last), (last, first)] {
            let mut placer = Placer::new(&mut guarded, CpuSet::new());
            let placed = placer.place(&tasks[0], x, y, Placement::Soft).unwrap();
            assert_eq!(placed, Placed::Pinned);
            assert_eq!(masks(), [only(y), own.clone()]);
            placer.place(&tasks[1], y, x, Placement::Soft).unwrap();
            assert_eq!(masks(), [only(y), only(x)]);
            drop(placer);
            assert_eq!(masks(), [own.clone(), own.clone()]);
            assert_eq!(affinity::get(nix::unistd::gettid().as_raw()).unwrap(), own);
        }
        end(&mut sleepers);
    }

    #[test]
    fn no_task_is_pinned_softly_while_the_balancer_goes_to_another_cpu() {
        let test = "no_task_is_pinned_softly_while_the_balancer_goes_to_another_cpu";
        let Some((own, first, last)) = two_cpus(test) else { return };
        let (_folder, mut guarded) = supervised();
        let mut sleepers = [sleeper(), sleeper(), sleeper(), sleeper()];
        let tasks = sleepers.each_ref().map(|(_, task)| *task);
        let masks = || tasks.each_ref().map(mask);
        let mut placer = Placer::new(&mut guarded, CpuSet::new());
        placer.place(&tasks[0], first, last, Placement::Soft).unwrap();
        placer.place(&tasks[1], last, first, Placement::Soft).unwrap();
        placer.place(&tasks[2], first, last, Placement::Hard).unwrap();
        assert_eq!(masks(), [only(last), only(first), only(last), own.clone()]);
        // No CPU has this number: all that matters is that none of them was put there.
        placer.place(&tasks[3], 8000, first, Placement::Soft).unwrap();
        assert_eq!(masks(), [own.clone(), own.clone(), only(last), only(first)]);
        drop(placer);
        assert_eq!(masks(), [own.clone(), own.clone(), only(last), own]);
        end(&mut sleepers);
    }

    #[test]
    fn a_task_leaves_a_cpu_that_is_not_to_be_visited_all_the_same() {
        let test = "a_task_leaves_a_cpu_that_is_not_to_be_visited_all_the_same";
        let Some((own, first, last)) = two_cpus(test) else { return };
        let (_folder, mut guarded) = supervised();
        let mut sleepers = [sleeper(), sleeper()];
        let tasks = sleepers.each_ref().map(|(_, task)| *task);
        let balancer = || affinity::get(nix::unistd::gettid().as_raw()).unwrap();
        let mut placer = Placer::new(&mut guarded, only(first));
        placer.place(&tasks[0], first, last, Placement::Soft).unwrap();
        assert_eq!((mask(&tasks[0]), balancer()), (only(last), own.clone()));
        drop(placer);
        let mut placer = Placer::new(&mut guarded, only(first));
        placer.place(&tasks[1], last, first, Placement::Soft).unwrap();
        assert_eq!((mask(&tasks[1]), balancer()), (only(first), only(last)));
        drop(placer);
        assert_eq!((mask(&tasks[1]), balancer()), (own.clone(), own));
        end(&mut sleepers);
    }

    #[test]
    fn a_mask_that_its_user_sets_before_the_release_is_counted() {
        let test = "a_mask_that_its_user_sets_before_the_release_is_counted";
        let Some((_, first, last)) = two_cpus(test) else { return };
        let (_folder, mut guarded) = supervised();
        let mut sleepers = [sleeper()];
        let task = sleepers[0].1;
        let mut totals = Totals::default();
        let mut placer = Placer::new(&mut guarded, CpuSet::new());
        placer.place(&task, first, last, Placement::Soft).unwrap();
        affinity::set(task.tid, &only(first)).unwrap();
        assert!(placer.end(&mut totals).is_empty());
        assert_eq!((totals.yielded, totals.refused, mask(&task)), (1, 0, only(first)));
        assert!(guarded.session().has_yielded(&task));
        end(&mut sleepers);
    }
}
