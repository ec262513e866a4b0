//! What the tasks of programs did meanwhile: what inherited a pin of ours is given its own mask. A
//! process that cannot be read in time is looked at again, or it would stay pinned.

use evenkeel_cbinfo::TaskEvent;
use evenkeel_journal::{PlaceError, Session, SupervisedSession, TaskError, TaskRef};

use super::late::MAX_LATE;
use super::{Balancer, BalancerError, SETTLING_NS};
use crate::clock::boottime_ns;

impl Balancer {
    /// Gives tasks that inherited a pin of ours by fork, or kept it across exec, their own mask. Call it
    /// as soon as the observer's events are readable, and in each round.
    ///
    /// # Errors
    /// The events cannot be read.
    pub fn handle_events(&mut self) -> Result<(), BalancerError> {
        let new = self.observer.events()?;
        let now_ns = boottime_ns();
        self.execs_ns.retain(|_, at_ns| *at_ns + SETTLING_NS > now_ns);
        for event in &new {
            if let TaskEvent::Exec { tgid } = event {
                self.execs_ns.insert(*tgid, now_ns);
            }
        }
        let Some(session) = self.session.as_mut().map(SupervisedSession::session) else {
            return Ok(());
        };
        let late = std::mem::take(&mut self.late);
        for event in late.events.into_iter().chain(new) {
            match handle(event, session) {
                Ok(false) => {}
                Ok(true) if self.late.events.len() < MAX_LATE => self.late.events.push(event),
                Ok(true) => tracing::warn!("{event:?}: its process cannot be read in time"),
                Err(why) => tracing::warn!("{why}"),
            }
        }
        late.releases.into_iter().for_each(|task| self.release_task(task));
        Ok(())
    }

    /// Gives a task of a program that leaves its own mask back.
    pub(super) fn release_task(&mut self, task: TaskRef) {
        let Some(session) = self.session.as_mut().map(SupervisedSession::session) else { return };
        match session.release(&task) {
            Ok(_) => {}
            Err(why) if why.is_late() && self.late.releases.len() < MAX_LATE => {
                self.late.releases.push(task);
            }
            Err(why) => tracing::warn!("{why}"),
        }
    }
}

/// Returns whether the event is to be handled again, as its process cannot be read now.
fn handle(event: TaskEvent, session: &mut Session) -> Result<bool, PlaceError> {
    let result = match event {
        // However long ago its parent was pinned: a parent that waits for a CPU in the middle of
        // clone(2) has its child reported only when it runs on.
        TaskEvent::Fork { tid, tgid, .. } if session.has_placed() => {
            TaskRef::in_process(tgid as i32, tid as i32).map(|task| session.free_inherited(&task))
        }
        // The new program must see all CPUs, and is starting up again.
        TaskEvent::Exec { tgid } => {
            TaskRef::of(tgid as i32).map(|task| session.free_after_exec(&task))
        }
        _ => return Ok(false),
    };
    match result {
        Err(TaskError::Late { .. }) => Ok(true),
        Ok(Err(why)) if why.is_late() => Ok(true),
        Ok(result) => result.map(|_| false),
        Err(_) => Ok(false),
    }
}
