//! The one place where the balancer places a task: under a supervisor, and with little latency.

use evenkeel_journal::{PlaceError, Placed, Style, SupervisedSession, SupervisorError, TaskRef};

use crate::latency::Visit;

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
    softly: Vec<TaskRef>,
}

impl<'a> Placer<'a> {
    pub fn new(guarded: &'a mut SupervisedSession) -> Self {
        Self { guarded, softly: Vec::new() }
    }

    /// Places a task that was last seen on CPU `from` on CPU `cpu`
    /// ([`evenkeel_journal::Session::place`]).
    ///
    /// # Errors
    /// [`GuardedError`]; the task is then as it was.
    pub fn place(
        &mut self,
        task: &TaskRef,
        from: u32,
        cpu: u32,
        style: Style,
    ) -> Result<Placed, GuardedError> {
        let session = self.guarded.supervised()?;
        if style == Style::Hard {
            return Ok(session.place(task, cpu, style)?);
        }
        let _visit = Visit::to(from);
        let placed = session.place(task, cpu, Style::Hard)?;
        if matches!(placed, Placed::Yielded { .. }) {
            return Ok(placed);
        }
        self.softly.push(*task);
        Ok(if placed == Placed::Pinned { Placed::Moved } else { placed })
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
