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

/// Places a task that was last seen on CPU `from` on CPU `cpu`
/// ([`evenkeel_journal::Session::place`]).
///
/// # Errors
/// [`GuardedError`]; the task is then as it was.
pub(crate) fn place(
    guarded: &mut SupervisedSession,
    task: &TaskRef,
    from: u32,
    cpu: u32,
    style: Style,
) -> Result<Placed, GuardedError> {
    let session = guarded.supervised()?;
    let _visit = if style == Style::Soft { Visit::to(from) } else { None };
    Ok(session.place(task, cpu, style)?)
}
