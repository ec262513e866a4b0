//! A journal session together with the supervisor that takes it back when we are killed.
//!
//! The supervisor is started right before the first change: who changes nothing does not pay for
//! one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::session::Session;
use crate::supervisor::{Supervisor, SupervisorError};
use crate::undo::UndoReport;

/// How to start the supervisor of the journal at the given path: program and arguments. `None`:
/// without one.
pub type SupervisorCommand = fn(&Path) -> Option<(PathBuf, Vec<OsString>)>;

/// The usual one: this very program, as `evenkeel supervise`.
pub fn same_program(journal: &Path) -> Option<(PathBuf, Vec<OsString>)> {
    Some(("/proc/self/exe".into(), vec!["supervise".into(), journal.into()]))
}

/// A session that changes nothing before its supervisor watches.
#[derive(Debug)]
pub struct GuardedSession {
    session: Session,
    command: SupervisorCommand,
    supervisor: Option<Supervisor>,
    is_guarded: bool,
}

impl GuardedSession {
    /// Wraps an open session.
    pub fn new(session: Session, command: SupervisorCommand) -> Self {
        Self { session, command, supervisor: None, is_guarded: false }
    }

    /// The session, for everything but changes.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The session, for changes: its supervisor watches from now on.
    ///
    /// # Errors
    /// All of [`SupervisorError`]: then nothing is to be changed.
    pub fn guarded(&mut self) -> Result<&mut Session, SupervisorError> {
        if !self.is_guarded {
            if let Some((program, arguments)) = (self.command)(&self.session.journal_path()) {
                self.supervisor = Some(Supervisor::start(&program, arguments)?);
            }
            self.is_guarded = true;
        }
        Ok(&mut self.session)
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
