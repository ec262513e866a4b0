//! Placing threads on CPUs, and letting them go again: the journal line first, then the call, then
//! a look whether it did what was meant.

use std::path::{Path, PathBuf};

use evenkeel_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::affinity::{self, AffinityError, Original, just};
use crate::cpuset::{effective_cpuset, mask_in_cpuset};
use crate::directory::journal_dir;
use crate::file::{JournalError, JournalFile};
use crate::ledger::{Claim, Ledger, State};
use crate::record::{Closed, Pin, Program, Record};
use crate::setting::Setting;
use crate::task::{Processes, TaskRef, now_ns};
use crate::undo::{Outcome, UndoReport, free_heirs, header_of_writer, settle, take_back};

/// How a thread is put on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// Pinned there until further notice.
    Hard,
    /// Moved there, and its own mask given back at once: the kernel may move it on. A thread that
    /// sleeps just then is not moved.
    Soft,
}

/// What came of placing a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// It is pinned to the CPU.
    Pinned,
    /// It was moved and has its own mask again.
    Moved,
    /// It can run nowhere else anyway; nothing was done.
    Unchanged,
    /// Its user (or it itself) chose CPUs since we touched it: let go, and never touched again.
    Yielded {
        /// The mask that was found.
        found: CpuSet,
        /// Whether this was found now; false for every later try.
        newly: bool,
    },
}

/// What came of letting a thread go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// It has again what it had before.
    Restored,
    /// It already had.
    Unchanged,
    /// Somebody else changed its mask: left as it is.
    Kept {
        /// The mask that was found.
        found: CpuSet,
    },
    /// It ended.
    Gone,
    /// We do not hold it.
    NotHeld,
}

/// Why a thread was not placed. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It ended.
    #[error("{task} has ended")]
    Gone {
        /// The thread.
        task: TaskRef,
    },
    /// The CPU is offline or not in the thread's cpuset.
    #[error("{task} cannot be put on CPU {cpu}: its cpuset is {effective}; choose one of these")]
    OutsideCpuset {
        /// The thread.
        task: TaskRef,
        /// Where it was to go.
        cpu: u32,
        /// Where it may go.
        effective: CpuSet,
    },
    /// The user restricted the thread to other CPUs before we touched it.
    #[error(
        "{task} is not put on CPU {cpu}: its user allowed it only CPUs {allowed}; widen that (taskset -p) or use --override"
    )]
    OutsideUserMask {
        /// The thread.
        task: TaskRef,
        /// Where it was to go.
        cpu: u32,
        /// Where it may go.
        allowed: CpuSet,
    },
    /// The journal cannot be written: go on by observing only.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused.
    #[error(transparent)]
    Affinity(AffinityError),
}

/// What the kernel's refusal means for this thread.
fn refused(task: &TaskRef, error: AffinityError) -> PlaceError {
    match error {
        AffinityError::Gone { .. } => PlaceError::Gone { task: *task },
        AffinityError::Impossible { tid, mask } => PlaceError::OutsideCpuset {
            task: *task,
            cpu: mask.iter().next().unwrap_or(0),
            effective: effective_cpuset(tid),
        },
        error => PlaceError::Affinity(error),
    }
}

/// How a session behaves.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Command line of this process, for whoever reads the journal.
    pub command: Vec<String>,
    /// Place threads that their user pinned, too (`--override`), on any CPU of their cpuset. What
    /// they get back is what their user set last.
    pub override_user: bool,
    /// The journal is made smaller whenever it has grown by this many bytes; none: 512 KiB.
    pub compact_bytes: Option<u64>,
}

/// One process's journal and all threads that it placed. Dropping it takes everything back, as
/// [`Session::close`] does, but without a report.
#[derive(Debug)]
pub struct Session {
    file: JournalFile,
    header: Record,
    ledger: Ledger,
    next_id: u64,
    override_user: bool,
    is_closed: bool,
}

/// What is known of a thread at the moment.
struct Look {
    current: CpuSet,
    effective: CpuSet,
    claim: Claim,
}

impl Session {
    /// Creates the journal `DIR/journal/PID-STARTTIME.jsonl`; `dir` is [`crate::runtime_dir`] or
    /// one of a test's own. What sessions that died left there is not touched: [`crate::undo`]
    /// first.
    ///
    /// # Errors
    /// All of [`JournalError`]: then place nothing, observe only.
    pub fn open(dir: &Path, options: SessionOptions) -> Result<Self, JournalError> {
        let header = header_of_writer(options.command)?;
        let writer = header.writer;
        let header = Record::Header(header);
        let file =
            JournalFile::create(&journal_dir(dir)?, &writer, &header, options.compact_bytes)?;
        Ok(Self {
            file,
            header,
            ledger: Ledger::default(),
            next_id: 1,
            override_user: options.override_user,
            is_closed: false,
        })
    }

    /// Where the journal lies: what the supervisor needs.
    pub fn journal_path(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    /// Names the first process of a program that is looked after, so that orphans of it are found.
    ///
    /// # Errors
    /// [`PlaceError::Gone`], [`PlaceError::Journal`].
    pub fn add_program(&mut self, root: &TaskRef) -> Result<(), PlaceError> {
        let stat = root.stat().ok_or(PlaceError::Gone { task: *root })?;
        self.write(Record::Program(Program { root: *root, session: stat.session }))?;
        // A daemon may do nothing else for weeks.
        self.compact_if_large();
        Ok(())
    }

    /// Puts a thread on a CPU. See [`Style`] and [`Placed`].
    ///
    /// # Errors
    /// All of [`PlaceError`]; the thread's affinity is unchanged then.
    pub fn place(&mut self, task: &TaskRef, cpu: u32, style: Style) -> Result<Placed, PlaceError> {
        if !self.override_user && self.has_yielded(task) {
            let found = affinity::get(task.tid).map_err(|error| refused(task, error))?;
            return Ok(Placed::Yielded { found, newly: false });
        }
        let look = self.look(task)?;
        let state = self.ledger.entry(task).map(|entry| entry.state);
        let (original, replaces) = match look.claim {
            Claim::Ours(original) => (original, Some(look.current.clone())),
            Claim::Unknown => (Original::of(&look.current, &look.effective), None),
            Claim::AsBefore if state == Some(State::Released) => (self.original_of(task), None),
            // A pin of ours that is gone without us is somebody else's doing, too.
            Claim::AsBefore | Claim::Foreign if self.override_user => {
                (Original::of(&look.current, &look.effective), None)
            }
            Claim::AsBefore | Claim::Foreign => return Ok(self.yield_to_user(task, look.current)),
        };
        if !look.effective.contains(cpu) {
            return Err(PlaceError::OutsideCpuset { task: *task, cpu, effective: look.effective });
        }
        if !original.allows(cpu) && !self.override_user {
            let allowed = original.shown_in(&look.effective);
            return Err(PlaceError::OutsideUserMask { task: *task, cpu, allowed });
        }
        let target = just(cpu);
        let is_held = state == Some(State::Pinned);
        if look.current == target && (replaces.is_none() || (is_held && style == Style::Hard)) {
            return Ok(Placed::Unchanged);
        }
        self.move_to(task, target, style, original, replaces)
    }

    fn move_to(
        &mut self,
        task: &TaskRef,
        target: CpuSet,
        style: Style,
        original: Original,
        replaces: Option<CpuSet>,
    ) -> Result<Placed, PlaceError> {
        let id = self.write_pin(task, target.clone(), original.clone(), replaces.clone())?;
        if let Err(error) = affinity::set(task.tid, &target) {
            match replaces {
                None => self.write_or_warn(Record::Restored(Closed { id, time_ns: now_ns() })),
                // It still carries the mask of ours that it had.
                Some(kept) => {
                    let _ = self.write_pin(task, kept, original, None).inspect_err(|why| {
                        tracing::warn!(%why, "a move that failed could not be taken off the journal");
                    });
                }
            }
            return Err(refused(task, error));
        }
        self.ledger.confirm();
        // Ended between look and call: nobody can have taken over its number so soon.
        let after = self.look(task)?;
        if after.claim == Claim::Foreign {
            return Ok(self.yield_to_user(task, after.current));
        }
        if style == Style::Soft {
            original.give_back(task.tid).map_err(|error| refused(task, error))?;
            self.write_restored(task, id);
        }
        self.compact_if_large();
        Ok(if style == Style::Soft { Placed::Moved } else { Placed::Pinned })
    }

    /// Gives a thread back what it had before we touched it.
    ///
    /// # Errors
    /// [`PlaceError::Affinity`] if the kernel refuses; it stays on the books then.
    pub fn release(&mut self, task: &TaskRef) -> Result<Released, PlaceError> {
        let Some((id, State::Pinned)) =
            self.ledger.entry(task).map(|entry| (entry.pin.id, entry.state))
        else {
            return Ok(Released::NotHeld);
        };
        let outcome = settle(&self.ledger, task, &mut Processes::default())
            .map_err(|error| refused(task, error))?;
        Ok(match outcome {
            Outcome::Kept(found) => {
                self.write_or_warn(Record::Yielded(Closed { id, time_ns: now_ns() }));
                Released::Kept { found }
            }
            outcome => {
                self.write_restored(task, id);
                match outcome {
                    Outcome::Restored => Released::Restored,
                    Outcome::Gone => Released::Gone,
                    _ => Released::Unchanged,
                }
            }
        })
    }

    /// Call for every new thread: if it was born with a pin of ours, it gets what its parent had
    /// before us. True if so. Costs one system call for a thread that inherited nothing.
    ///
    /// # Errors
    /// All of [`PlaceError`]; a thread that ended is none.
    pub fn free_inherited(&mut self, task: &TaskRef) -> Result<bool, PlaceError> {
        if self.ledger.entry(task).is_some() {
            return Ok(false);
        }
        match self.try_free_inherited(task) {
            Err(PlaceError::Gone { .. }) => Ok(false),
            result => result,
        }
    }

    /// Call when a process has become another program: it gets what it, or the thread of it that
    /// called exec and now goes by the process's number, had before us. True if so.
    ///
    /// # Errors
    /// All of [`PlaceError`]; a process that ended is none.
    pub fn free_after_exec(&mut self, process: &TaskRef) -> Result<bool, PlaceError> {
        let result = match self.release(process) {
            Ok(Released::NotHeld) => self.free_heir_by_exec(process),
            result => result.map(|released| released == Released::Restored),
        };
        match result {
            Err(PlaceError::Gone { .. }) => Ok(false),
            result => result,
        }
    }

    /// Call when a thread of a process is gone, and it is not known whether by exec: as
    /// [`Session::free_after_exec`], but a leader that we placed and that still is itself stays
    /// where it is.
    ///
    /// # Errors
    /// All of [`PlaceError`].
    pub fn free_heir_by_exec(&mut self, process: &TaskRef) -> Result<bool, PlaceError> {
        let mask = affinity::get(process.tid).map_err(|error| refused(process, error))?;
        match self.ledger.heir_by_exec(process, &mask) {
            Some(original) if process.is_alive() => self.free_heir(process, mask, original),
            _ => Ok(false),
        }
    }

    fn try_free_inherited(&mut self, task: &TaskRef) -> Result<bool, PlaceError> {
        let mask = affinity::get(task.tid).map_err(|error| refused(task, error))?;
        if !self.ledger.has_set(&mask) {
            return Ok(false);
        }
        let look = self.look(task)?;
        let Claim::Ours(original) = look.claim else { return Ok(false) };
        self.free_heir(task, look.current, original)
    }

    fn free_heir(
        &mut self,
        task: &TaskRef,
        mask: CpuSet,
        original: Original,
    ) -> Result<bool, PlaceError> {
        let id = self.write_pin(task, mask.clone(), original.clone(), Some(mask))?;
        original.give_back(task.tid).map_err(|error| refused(task, error))?;
        self.write_restored(task, id);
        self.compact_if_large();
        Ok(true)
    }

    /// Gives every thread back what it had, descendants that inherited a pin included, and turns each
    /// knob back. The session stays usable.
    pub fn release_all(&mut self) -> UndoReport {
        let Self { file, ledger, .. } = self;
        take_back(ledger, &mut |record| {
            if let Err(error) = file.append(record) {
                tracing::warn!(%error, "a mask was given back, but this is not in the journal");
            }
        })
    }

    /// Frees every thread on the system that was born with a pin of ours: for those who do not see
    /// threads come. Looks at each thread if anything was ever pinned.
    pub fn free_heirs(&mut self) -> UndoReport {
        let mut report = UndoReport::default();
        free_heirs(&mut self.ledger, &mut report);
        report
    }

    /// Takes everything back and removes the journal. If something could not be taken back (see
    /// the report's errors), the journal stays for `evenkeel undo`.
    pub fn close(mut self) -> UndoReport {
        self.close_once()
    }

    fn close_once(&mut self) -> UndoReport {
        self.is_closed = true;
        let mut report = self.release_all();
        if report.errors.is_empty()
            && let Err(error) = self.file.remove()
        {
            report.error(Some(self.file.path()), None, format!("cannot remove it: {error}"));
        }
        report
    }

    /// Call for the threads that are looked after when CPUs came or went. Where a CPU went, the
    /// kernel has taken our pin to it back; where one came, a thread that was given all CPUs
    /// meanwhile gets all of them again (before 6.2 the kernel makes of "all" a list of those that
    /// are online, and leaves it at that).
    ///
    /// # Errors
    /// All of [`PlaceError`]; a thread that ended is none.
    pub fn follow_cpus(&mut self, task: &TaskRef) -> Result<(), PlaceError> {
        let Some(entry) = self.ledger.entry(task) else { return Ok(()) };
        let effective = effective_cpuset(task.tid);
        let result = match entry.state {
            State::Pinned if entry.pin.set.intersection(&effective).is_empty() => {
                self.release(task).map(drop)
            }
            State::Released => match entry.left.clone() {
                Some(left) => self.regrow(task, &left, &effective),
                None => Ok(()),
            },
            _ => Ok(()),
        };
        match result {
            Err(PlaceError::Gone { .. }) => Ok(()),
            result => result,
        }
    }

    /// The CPUs that a thread may be placed on now: its cpuset, and within it what its user allowed
    /// (all of the cpuset with `override_user`). A pin of ours does not count.
    ///
    /// # Errors
    /// [`PlaceError::Gone`], [`PlaceError::Affinity`].
    pub fn allowed_cpus(&self, task: &TaskRef) -> Result<CpuSet, PlaceError> {
        let look = self.look(task)?;
        Ok(match look.claim {
            _ if self.override_user => look.effective,
            Claim::Ours(original) => original.shown_in(&look.effective),
            _ => look.current,
        })
    }

    /// Whether threads that their user pinned are placed, too.
    pub fn overrides_user(&self) -> bool {
        self.override_user
    }

    /// Whether any thread was ever placed: if not, none can have inherited a pin.
    pub fn has_placed(&self) -> bool {
        self.ledger.has_held()
    }

    /// The CPU that a thread is pinned to by us, as far as we know.
    pub fn pinned_cpu(&self, task: &TaskRef) -> Option<u32> {
        let entry = self.ledger.entry(task).filter(|entry| entry.state == State::Pinned)?;
        entry.pin.set.iter().next()
    }

    /// Whether the thread was let go because its user chose CPUs for it.
    pub fn has_yielded(&self, task: &TaskRef) -> bool {
        self.ledger.entry(task).is_some_and(|entry| entry.state == State::Yielded)
    }

    fn original_of(&self, task: &TaskRef) -> Original {
        self.ledger.entry(task).map_or(Original::All, |entry| entry.pin.original.clone())
    }

    fn look(&self, task: &TaskRef) -> Result<Look, PlaceError> {
        let mut look = self.look_once(task)?;
        if look.claim == Claim::Foreign {
            // What is known of the thread's cpuset may be a moment older than its mask: that must
            // not be taken for a user who changed the mask.
            look = self.look_once(task)?;
        }
        Ok(look)
    }

    fn look_once(&self, task: &TaskRef) -> Result<Look, PlaceError> {
        let (current, effective) =
            mask_in_cpuset(task.tid).map_err(|error| refused(task, error))?;
        let claim = self.ledger.claim(task, &current, &effective, &mut Processes::default());
        // Last: what was read above was the thread's own if it is still the same now.
        if !task.is_alive() {
            return Err(PlaceError::Gone { task: *task });
        }
        Ok(Look { current, effective, claim })
    }

    /// Gives all CPUs of the cpuset to a thread that still has those that were `left` to it.
    fn regrow(
        &mut self,
        task: &TaskRef,
        left: &CpuSet,
        effective: &CpuSet,
    ) -> Result<(), PlaceError> {
        let current = affinity::get(task.tid).map_err(|error| refused(task, error))?;
        let is_stale = current == *left && current != *effective && current.is_subset(effective);
        if is_stale && task.is_alive() {
            Original::All.give_back(task.tid).map_err(|error| refused(task, error))?;
            self.note_left(task);
        }
        Ok(())
    }

    /// Its mask has been given back.
    fn write_restored(&mut self, task: &TaskRef, id: u64) {
        self.write_or_warn(Record::Restored(Closed { id, time_ns: now_ns() }));
        self.note_left(task);
    }

    /// So that a mask that lacks CPUs because it is older than these is not taken for a user's.
    fn note_left(&mut self, task: &TaskRef) {
        let Some(entry) = self.ledger.entry(task) else { return };
        if entry.pin.original != Original::All {
            return;
        }
        let id = entry.pin.id;
        // One that has ended needs nothing.
        if let Ok(left) = affinity::get(task.tid) {
            self.ledger.note_left(id, left);
        }
    }

    fn yield_to_user(&mut self, task: &TaskRef, found: CpuSet) -> Placed {
        tracing::info!(%task, %found, "its CPUs were chosen by somebody else: letting it go");
        if let Some(id) = self.ledger.entry(task).map(|entry| entry.pin.id) {
            self.write_or_warn(Record::Yielded(Closed { id, time_ns: now_ns() }));
        }
        Placed::Yielded { found, newly: true }
    }

    fn write_pin(
        &mut self,
        task: &TaskRef,
        set: CpuSet,
        original: Original,
        replaces: Option<CpuSet>,
    ) -> Result<u64, PlaceError> {
        let known = self.ledger.entry(task).map(|entry| (entry.pin.id, entry.pin.process));
        let (id, process) = match known {
            Some(known) => known,
            None => {
                let process = task.process().map_err(|_| PlaceError::Gone { task: *task })?;
                (self.next_id, process)
            }
        };
        let time_ns = now_ns();
        self.write(Record::Pin(Pin {
            id,
            task: *task,
            process,
            original,
            replaces,
            set,
            time_ns,
        }))?;
        self.next_id = self.next_id.max(id + 1);
        Ok(id)
    }

    /// The knobs that are turned.
    pub(crate) fn settings(&self) -> &[Setting] {
        self.ledger.settings()
    }

    /// What must be in the journal before anything is done.
    pub(crate) fn write(&mut self, record: Record) -> Result<(), JournalError> {
        self.file.append(&record)?;
        self.ledger.apply(&record);
        Ok(())
    }

    /// What is already done: true even if it cannot be written. Without the line, an undo looks
    /// at the thread once more, finds its own mask, and leaves it.
    pub(crate) fn write_or_warn(&mut self, record: Record) {
        if let Err(error) = self.file.append(&record) {
            tracing::warn!(%error, "a change back could not be written to the journal");
        }
        self.ledger.apply(&record);
    }

    fn compact_if_large(&mut self) {
        if !self.file.wants_compaction() {
            return;
        }
        let mut records = vec![self.header.clone()];
        records.extend(self.ledger.compact(now_ns()));
        if let Err(error) = self.file.replace(&records) {
            tracing::warn!(%error, "the journal could not be made smaller; it goes on growing");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_closed {
            self.close_once();
        }
    }
}
