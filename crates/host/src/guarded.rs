//! A journal session together with the supervisor that takes it back when we are killed.
//!
//! The supervisor is started right before the first task is placed: a program that is never
//! touched does not pay for one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use evenkeel_journal::{
    PlaceError, Placed, Session, Style, Supervisor, SupervisorError, TaskRef, UndoReport,
};

use crate::prompt::Visit;

/// How to start the supervisor of the journal at the given path: program and arguments. `None`:
/// without one.
pub type SupervisorCommand = fn(&Path) -> Option<(PathBuf, Vec<OsString>)>;

/// A session that places nothing before its supervisor watches.
#[derive(Debug)]
pub struct GuardedSession {
    session: Session,
    command: SupervisorCommand,
    supervisor: Option<Supervisor>,
    is_guarded: bool,
}

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

impl GuardedSession {
    /// Wraps an open session.
    pub fn new(session: Session, command: SupervisorCommand) -> Self {
        Self { session, command, supervisor: None, is_guarded: false }
    }

    /// The session, for everything but placing.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// [`Session::place`], under supervision, of a task that was last seen on CPU `from`.
    ///
    /// # Errors
    /// [`GuardedError`]; nothing was changed then.
    pub fn place(
        &mut self,
        task: &TaskRef,
        from: u32,
        cpu: u32,
        style: Style,
    ) -> Result<Placed, GuardedError> {
        if !self.is_guarded {
            if let Some((program, arguments)) = (self.command)(&self.session.journal_path()) {
                self.supervisor = Some(Supervisor::start(&program, arguments)?);
            }
            self.is_guarded = true;
        }
        let _visit = if style == Style::Soft { Visit::to(from) } else { None };
        Ok(self.session.place(task, cpu, style)?)
    }

    /// Takes everything back, and only then sends the supervisor away.
    pub fn close(self) -> UndoReport {
        let report = self.session.close();
        if let Some(supervisor) = self.supervisor {
            supervisor.dismiss();
        }
        report
    }
}
