//! The one place where the balancer places a task: under a supervisor, and with little latency.

use evenkeel_journal::{PlaceError, Placed, SupervisedSession, SupervisorError, TaskRef};
use evenkeel_machine::CpuSet;

use crate::latency::Visits;
use crate::options::Placement;

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

/// The moves of one plan. Tasks that are moved softly have their own masks again when it is dropped,
/// once all are in place: between the two moves of an exchange a CPU is idle, and the kernel would pull
/// the task that has just left it back.
pub(crate) struct Placer<'a> {
    guarded: &'a mut SupervisedSession,
    visits: Option<Visits>,
    /// Where tasks were put.
    taken: CpuSet,
    softly: Vec<TaskRef>,
}

impl<'a> Placer<'a> {
    pub fn new(guarded: &'a mut SupervisedSession) -> Self {
        Self { guarded, visits: None, taken: CpuSet::new(), softly: Vec::new() }
    }

    /// Places a task that was last seen on CPU `from` on CPU `cpu`
    /// ([`evenkeel_journal::Session::place`]): under hard placement until its next move, under soft
    /// placement until the placer is dropped.
    ///
    /// # Errors
    /// [`GuardedError`]; the task is then as it was.
    pub fn place(
        &mut self,
        task: &TaskRef,
        from: u32,
        cpu: u32,
        placement: Placement,
    ) -> Result<Placed, GuardedError> {
        let session = self.guarded.supervised()?;
        if placement == Placement::Hard {
            return Ok(session.place(task, cpu)?);
        }
        // A task that has just been put there waits for that CPU, too. So the kernel's migration thread
        // leaves no CPU idle, while the balancer would queue for one, with the other one idle meanwhile.
        if !self.taken.contains(from) {
            match &self.visits {
                Some(visits) => drop(visits.go_on(from)),
                None => self.visits = Visits::begin(from),
            }
        }
        self.taken.insert(cpu);
        let placed = session.place(task, cpu)?;
        if !matches!(placed, Placed::Yielded { .. }) {
            self.softly.push(*task);
        }
        Ok(placed)
    }
}

impl Drop for Placer<'_> {
    fn drop(&mut self) {
        let session = self.guarded.session();
        for task in &self.softly {
            match session.release(task) {
                Ok(_) | Err(PlaceError::Gone { .. }) => {}
                Err(why) => tracing::warn!("{why}"),
            }
        }
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

    #[test]
    fn tasks_of_a_plan_have_their_own_masks_again_once_all_are_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let session = Session::open(folder.path(), SessionOptions::default()).unwrap();
        let mut guarded = SupervisedSession::new(session, |_| None);
        let own = affinity::get(nix::unistd::gettid().as_raw()).unwrap();
        let (first, last) = (own.iter().min().unwrap(), own.iter().max().unwrap());
        if first == last {
            return;
        }
        let mut sleepers = [sleeper(), sleeper()];
        let tids = sleepers.each_ref().map(|(_, task)| task.tid);
        let masks = || tids.map(|tid| affinity::get(tid).unwrap());
        let only = |cpu: u32| std::iter::once(cpu).collect();
        // Twice: the second time their masks are known.
        for (x, y) in [(first, last), (last, first)] {
            let mut placer = Placer::new(&mut guarded);
            let placed = placer.place(&sleepers[0].1, x, y, Placement::Soft).unwrap();
            assert_eq!(placed, Placed::Pinned);
            assert_eq!(masks(), [only(y), own.clone()]);
            placer.place(&sleepers[1].1, y, x, Placement::Soft).unwrap();
            assert_eq!(masks(), [only(y), only(x)]);
            drop(placer);
            assert_eq!(masks(), [own.clone(), own.clone()]);
            assert_eq!(affinity::get(nix::unistd::gettid().as_raw()).unwrap(), own);
        }
        for (child, _) in &mut sleepers {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
