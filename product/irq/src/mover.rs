//! The actuator of `evenkeel irq run`: moves lines and the kernel threads of threaded NAPI under the
//! journal, so that everything is taken back whatever ends the run.

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_journal::{
    DisplacedLine, JournalError, LetGoLine, MovedLine, PlaceError, Placed, Session, SessionOptions,
    SettingError, Style, SupervisedSession, SupervisorCommand, SupervisorError, TaskRef,
    UndoReport, undo_earlier,
};

use crate::decide::Move;
use crate::observe::Originals;
use crate::rounds::{Actuator, Change, MovedByOther, Outcome};
use crate::snapshot::SourceId;
use crate::threads;

/// Why nothing can be moved any more.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The supervisor does not start.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The affinity of a line that was moved cannot be read.
    #[error(transparent)]
    Line(#[from] SettingError),
}

/// Moves sources, and takes that back when it is closed.
#[derive(Debug)]
pub struct Mover {
    session: SupervisedSession,
    /// By number.
    placed: BTreeMap<i32, (TaskRef, String)>,
}

impl Mover {
    /// Takes back what killed processes left, and opens a journal.
    ///
    /// # Errors
    /// All of [`JournalError`].
    pub fn open(
        directory: &Path,
        command: Vec<String>,
        supervisor: SupervisorCommand,
    ) -> Result<Self, JournalError> {
        undo_earlier(directory);
        let options = SessionOptions { command, ..SessionOptions::default() };
        let session = Session::open(directory, options)?;
        Ok(Self { session: SupervisedSession::new(session, supervisor), placed: BTreeMap::new() })
    }

    /// What the moved sources were allowed before.
    pub fn originals(&mut self) -> Originals {
        let session = self.session.session();
        let lines = session.lines().iter().map(|line| (line.number, line.before.clone()));
        let lines = lines.collect();
        let threads = self
            .placed
            .iter()
            .filter_map(|(number, (task, _))| Some((*number, session.allowed_cpus(task).ok()?)));
        Originals { lines, threads: threads.collect() }
    }

    /// Takes everything back.
    pub fn close(self) -> UndoReport {
        self.session.close()
    }

    fn move_thread(&mut self, number: i32, step: &Move) -> Result<Outcome, MoveError> {
        let Some(task) = threads::find(number, &step.name) else { return Ok(Outcome::Nothing) };
        Ok(match self.session.supervised()?.place(&task, step.to, Style::Hard) {
            Ok(Placed::Pinned | Placed::Moved) => {
                self.placed.insert(number, (task, step.name.clone()));
                Outcome::Moved
            }
            Ok(Placed::Unchanged) | Err(PlaceError::Gone { .. }) => Outcome::Nothing,
            Ok(Placed::Yielded { found, .. }) => Outcome::LetGo { found },
            Err(PlaceError::Journal(why)) => return Err(why.into()),
            Err(why) => Outcome::Refused { why: why.to_string() },
        })
    }
}

impl Actuator for Mover {
    type Error = MoveError;

    fn look(&mut self) -> Result<Vec<Change>, MoveError> {
        let session = self.session.session();
        let lines = session.release_changed_lines()?;
        let by_other = |LetGoLine { number, name, found }| {
            Change::ByOther(MovedByOther { source: SourceId::Line(number), name, found })
        };
        let set_back = |DisplacedLine { number, name, offline }| Change::SetBack {
            source: SourceId::Line(number),
            name,
            offline,
        };
        let let_go = lines.let_go.into_iter().map(by_other);
        let mut changes: Vec<Change> =
            let_go.chain(lines.displaced.into_iter().map(set_back)).collect();
        self.placed.retain(|number, (task, name)| {
            let Some(cpu) = session.pinned_cpu(task) else { return false };
            // Its place: nothing is done but to look whether the thread is still there.
            match session.place(task, cpu, Style::Hard) {
                Ok(Placed::Yielded { found, .. }) => {
                    let (source, name) = (SourceId::Thread(*number), name.clone());
                    changes.push(Change::ByOther(MovedByOther { source, name, found }));
                    false
                }
                Err(PlaceError::Gone { .. }) => false,
                _ => true,
            }
        });
        Ok(changes)
    }

    fn carry_out(&mut self, step: &Move) -> Result<Outcome, MoveError> {
        let line = match step.source {
            SourceId::Line(line) => line,
            SourceId::Thread(number) => return self.move_thread(number, step),
            SourceId::Napi(_) => return Ok(Outcome::Nothing),
        };
        let cpu = [step.to].into_iter().collect();
        let session = self.session.supervised()?;
        Ok(match session.move_line(Path::new("/"), line, &step.name, &cpu) {
            Ok(MovedLine::Moved) => Outcome::Moved,
            Ok(MovedLine::Unchanged | MovedLine::Gone) => Outcome::Nothing,
            Ok(MovedLine::LetGo { found }) => Outcome::LetGo { found },
            Err(SettingError::Journal(why)) => return Err(why.into()),
            // EPERM or EIO: a managed line, where the kernel does not show that before.
            Err(why) => Outcome::Refused { why: why.to_string() },
        })
    }
}
