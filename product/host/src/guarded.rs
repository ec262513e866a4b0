//! Placing under supervision, and promptly.

use evenkeel_journal::{GuardedSession, PlaceError, Placed, Style, SupervisorError, TaskRef};

use crate::prompt::Visit;

/// Why a task was not placed.
#[derive(Debug, thiserror::Error)]
pub enum GuardedError {
    /// By a rule or by the kernel.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Because nobody would take it back.
    #[error("nothing is moved without a supervisor: {0}")]
    Supervisor(#[from] SupervisorError),
}

/// [`evenkeel_journal::Session::place`], under supervision, of a task that was last seen on CPU
/// `from`.
///
/// # Errors
/// [`GuardedError`]; nothing was changed then.
pub(crate) fn place(
    guarded: &mut GuardedSession,
    task: &TaskRef,
    from: u32,
    cpu: u32,
    style: Style,
) -> Result<Placed, GuardedError> {
    let session = guarded.guarded()?;
    let _visit = if style == Style::Soft { Visit::to(from) } else { None };
    Ok(session.place(task, cpu, style)?)
}
