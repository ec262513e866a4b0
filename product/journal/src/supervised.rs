//! A session together with the supervisor that undoes its changes when this process is killed.
//!
//! The supervisor is started right before the first change: a process that changes nothing does not
//! pay for one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::file::JournalError;
use crate::report::UndoReport;
use crate::session::Session;
use crate::supervisor::{Supervisor, SupervisorError};

/// Gives the program and the arguments that start the supervisor of a journal; `None`: the session
/// runs without a supervisor.
pub type SupervisorCommand = fn(&Path) -> Option<(PathBuf, Vec<OsString>)>;

/// The usual command: this program itself, as `evenkeel supervise JOURNAL`.
pub fn same_program(journal: &Path) -> Option<(PathBuf, Vec<OsString>)> {
    Some(("/proc/self/exe".into(), vec!["supervise".into(), journal.into()]))
}

/// A session that changes nothing before its supervisor runs.
#[derive(Debug)]
pub struct SupervisedSession {
    session: Session,
    command: SupervisorCommand,
    supervisor: Option<Supervisor>,
    has_started: bool,
}

impl SupervisedSession {
    /// Wraps an open session.
    pub fn new(session: Session, command: SupervisorCommand) -> Self {
        Self { session, command, supervisor: None, has_started: false }
    }

    /// The session, for everything but changes.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The session, for changes. The first call starts the supervisor and waits until it is ready. Where
    /// the supervisor has ended since (it was killed), another one is started.
    ///
    /// # Errors
    /// All of [`SupervisorError`]: then change nothing.
    pub fn supervised(&mut self) -> Result<&mut Session, SupervisorError> {
        if let Some(supervisor) = &mut self.supervisor
            && !supervisor.is_running()
        {
            tracing::warn!(
                "the supervisor (process {}) has ended; another one is started",
                supervisor.pid()
            );
            self.supervisor = None;
            self.has_started = false;
        }
        if !self.has_started {
            if let Some((program, arguments)) = (self.command)(&self.session.journal_path()) {
                self.supervisor = Some(Supervisor::start(&program, arguments)?);
            }
            self.has_started = true;
        }
        Ok(&mut self.session)
    }

    /// Lets all changes stand, and dismisses the supervisor.
    ///
    /// # Errors
    /// As [`Session::persist`]; everything is restored then.
    pub fn persist(self) -> Result<PathBuf, JournalError> {
        let journal = self.session.persist();
        if let Some(supervisor) = self.supervisor {
            supervisor.dismiss();
        }
        journal
    }

    /// Restores everything, and dismisses the supervisor only after that.
    pub fn close(self) -> UndoReport {
        let report = self.session.close();
        if let Some(supervisor) = self.supervisor {
            supervisor.dismiss();
        }
        report
    }
}
