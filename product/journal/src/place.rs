//! Placing threads on CPUs, and giving them their own mask back.
//!
//! Each placement is the same four steps: see if the thread has its own mask or ours (`claim`); write
//! the entry; set the affinity; see again. If the user changed a thread's mask, the thread is let go
//! (*Yield*), and is never placed again.

use evenkeel_machine::CpuSet;

use crate::affinity::{self, AffinityError, Original, single_cpu};
use crate::claim::Claim;
use crate::cpuset::{effective_cpuset, mask_in_cpuset};
use crate::entry::{Entry, Pin, PinEnd, Program};
use crate::file::JournalError;
use crate::session::Session;
use crate::state::{PinState, may_live_on_by_exec};
use crate::stranger::{self, free_stranger};
use crate::task::{Processes, TaskRef, now_ns};
use crate::undo::{Outcome, restore_thread};

/// What came of placing a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    /// It is pinned to the CPU.
    Pinned,
    /// It may run on no other CPU anyway; nothing was done.
    Unchanged,
    /// Its user, or the thread itself, changed its mask since it was placed: it is let go, and is never
    /// placed again.
    Yielded {
        /// The mask that it has.
        found: CpuSet,
        /// Whether this was found now; false for every later try.
        newly: bool,
    },
}

/// What came of releasing a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Released {
    /// It has its own mask again.
    Restored,
    /// It had its own mask already.
    Unchanged,
    /// Another process changed its mask: left as it is.
    Kept {
        /// The mask that it has.
        found: CpuSet,
    },
    /// It has ended.
    Gone,
    /// It is not pinned by this session.
    NotHeld,
}

/// Why a thread was not placed. Its affinity is unchanged then.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The thread has ended.
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
        /// The CPU that was asked for.
        cpu: u32,
        /// The CPUs of its cpuset that are online.
        effective: CpuSet,
    },
    /// The user restricted the thread to other CPUs before it was placed.
    #[error(
        "{task} is not put on CPU {cpu}: its user allowed it only CPUs {allowed}; widen that \
         (taskset -p) or use --override"
    )]
    OutsideUserMask {
        /// The thread.
        task: TaskRef,
        /// The CPU that was asked for.
        cpu: u32,
        /// The CPUs that its user allowed.
        allowed: CpuSet,
    },
    /// The journal cannot be written: change nothing more, observe only.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused.
    #[error(transparent)]
    Affinity(AffinityError),
}

impl PlaceError {
    /// Whether nothing is wrong but that the thread cannot be read or set now: it is to be tried again.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Affinity(AffinityError::Transient { .. }))
    }
}

/// What a refusal by the kernel means for this thread.
fn refusal(task: &TaskRef, error: AffinityError) -> PlaceError {
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

/// A thread's mask, its cpuset and the claim on the mask, at one moment.
struct Look {
    current: CpuSet,
    /// None where the mask alone tells the claim.
    effective: Option<CpuSet>,
    claim: Claim,
}

impl Look {
    fn cpuset_of(&self, task: &TaskRef) -> CpuSet {
        self.effective.clone().unwrap_or_else(|| effective_cpuset(task.tid))
    }
}

impl Session {
    /// Names the first process of a program that is balanced, so that its orphans are recognised.
    ///
    /// # Errors
    /// [`PlaceError::Gone`], [`PlaceError::Journal`].
    pub fn add_program(&mut self, root: &TaskRef) -> Result<(), PlaceError> {
        // Not read from /proc: that may be late, and any user may let a program join.
        // SAFETY: integers only.
        let session = unsafe { libc::getsid(root.tid) };
        if session < 0 || !root.is_alive() {
            return Err(PlaceError::Gone { task: *root });
        }
        self.write(Entry::Program(Program { root: *root, session }))?;
        // A daemon may write nothing else for weeks.
        self.compact_if_large();
        Ok(())
    }

    /// Pins a thread to a CPU until its next move or its release. See [`Placed`].
    ///
    /// # Errors
    /// All of [`PlaceError`]; the thread's affinity is unchanged then.
    pub fn place(&mut self, task: &TaskRef, cpu: u32) -> Result<Placed, PlaceError> {
        if !self.override_user && self.has_yielded(task) {
            let found = affinity::get(task.tid).map_err(|error| refusal(task, error))?;
            return Ok(Placed::Yielded { found, newly: false });
        }
        let look = self.look(task)?;
        let pin_state = self.state.tracked(task).map(|tracked| tracked.pin_state);
        let (original, replaces) = match look.claim {
            Claim::Ours(ref original) => (original.clone(), Some(look.current.clone())),
            Claim::Unknown => (Original::of(&look.current, &look.cpuset_of(task)), None),
            Claim::AsBefore if pin_state == Some(PinState::Released) => {
                (self.original_of(task), None)
            }
            // A pin that this session did not end was ended by another process.
            Claim::AsBefore | Claim::Foreign if self.override_user => {
                (Original::of(&look.current, &look.cpuset_of(task)), None)
            }
            Claim::AsBefore | Claim::Foreign => return Ok(self.yield_to_user(task, look.current)),
        };
        // The kernel keeps a mask within its cpuset.
        if !look.current.contains(cpu) {
            let effective = look.cpuset_of(task);
            if !effective.contains(cpu) {
                return Err(PlaceError::OutsideCpuset { task: *task, cpu, effective });
            }
        }
        if !original.allows(cpu) && !self.override_user {
            let allowed = original.shown_in(&look.cpuset_of(task));
            return Err(PlaceError::OutsideUserMask { task: *task, cpu, allowed });
        }
        let target = single_cpu(cpu);
        let is_held = pin_state == Some(PinState::Pinned);
        if look.current == target && (replaces.is_none() || is_held) {
            return Ok(Placed::Unchanged);
        }
        self.move_to(task, target, original, replaces)
    }

    fn move_to(
        &mut self,
        task: &TaskRef,
        target: CpuSet,
        original: Original,
        replaces: Option<CpuSet>,
    ) -> Result<Placed, PlaceError> {
        let id = self.write_pin(task, target.clone(), original.clone(), replaces.clone())?;
        if let Err(error) = affinity::set(task.tid, &target) {
            match replaces {
                None => self.write_or_warn(Entry::Restored(PinEnd { id, time_ns: now_ns() })),
                // The thread still has the mask of ours that it had.
                Some(kept) => {
                    let _ = self.write_pin(task, kept, original, None).inspect_err(|why| {
                        tracing::warn!(%why, "a move that failed is still in the journal");
                    });
                }
            }
            return Err(refusal(task, error));
        }
        self.state.confirm_pending_pin();
        let after = match self.look(task) {
            // The mask was set, and the journal says so: the thread is pinned as far as is known.
            Err(why) if why.is_late() => return Ok(Placed::Pinned),
            result => result.inspect_err(|why| {
                if matches!(why, PlaceError::Gone { .. }) {
                    // It has logged what it did.
                    let _ = free_stranger(&self.state, task, &target);
                }
            })?,
        };
        if after.claim == Claim::Foreign {
            return Ok(self.yield_to_user(task, after.current));
        }
        self.compact_if_large();
        Ok(Placed::Pinned)
    }

    /// Gives a thread back the mask that it had before it was placed.
    ///
    /// # Errors
    /// [`PlaceError::Affinity`] if the kernel refuses; the thread stays pinned then, and the journal
    /// says so.
    pub fn release(&mut self, task: &TaskRef) -> Result<Released, PlaceError> {
        let pin = match self.state.tracked(task) {
            Some(tracked) if tracked.pin_state == PinState::Pinned => tracked.pin.clone(),
            _ => return Ok(Released::NotHeld),
        };
        let id = pin.id;
        let outcome = restore_thread(&self.state, task, &mut Processes::default())
            .map_err(|error| refusal(task, error))?;
        Ok(match outcome {
            Outcome::Kept(found) => {
                self.write_or_warn(Entry::Yielded(PinEnd { id, time_ns: now_ns() }));
                Released::Kept { found }
            }
            // Stays pinned in the state: `free_after_exec` and the undo ask whether it lives on.
            Outcome::Gone if may_live_on_by_exec(&pin) => Released::Gone,
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

    /// Call for every new thread: one that inherited a mask of ours is given what its parent had before.
    /// True if so. Costs one system call for a thread that inherited nothing.
    ///
    /// # Errors
    /// All of [`PlaceError`] but `Gone`: a thread that has ended is no error.
    pub fn free_inherited(&mut self, task: &TaskRef) -> Result<bool, PlaceError> {
        if self.state.tracked(task).is_some() {
            return Ok(false);
        }
        match self.try_free_inherited(task) {
            Err(PlaceError::Gone { .. }) => Ok(false),
            result => result,
        }
    }

    /// Call after exec(2): the process is given what it had before, or what the thread had that called
    /// exec and now has the process's number. True if so.
    ///
    /// # Errors
    /// All of [`PlaceError`] but `Gone`: a process that has ended is no error.
    pub fn free_after_exec(&mut self, process: &TaskRef) -> Result<bool, PlaceError> {
        let result = match self.release(process) {
            Ok(Released::NotHeld) => self.free_inherited_by_exec(process),
            result => result.map(|released| released == Released::Restored),
        };
        match result {
            Err(PlaceError::Gone { .. }) => Ok(false),
            result => result,
        }
    }

    /// Call when a thread of a process is gone and it is unknown whether by exec(2). Does what
    /// [`Session::free_after_exec`] does, but a leader that was placed itself stays where it is.
    ///
    /// # Errors
    /// All of [`PlaceError`].
    pub fn free_inherited_by_exec(&mut self, process: &TaskRef) -> Result<bool, PlaceError> {
        let mask = affinity::get(process.tid).map_err(|error| refusal(process, error))?;
        match self.state.find_inherited_by_exec(process, &mask) {
            Some(original) => {
                process.check().map_err(|error| refusal(process, error))?;
                self.give_back(process, mask, original)
            }
            None => Ok(false),
        }
    }

    fn try_free_inherited(&mut self, task: &TaskRef) -> Result<bool, PlaceError> {
        let mask = affinity::get(task.tid).map_err(|error| refusal(task, error))?;
        if !self.state.has_set_mask(&mask) {
            return Ok(false);
        }
        let look = self.look(task)?;
        let Claim::Ours(original) = look.claim else { return Ok(false) };
        self.give_back(task, look.current, original)
    }

    /// Gives a thread that inherited `mask` its parent's original.
    fn give_back(
        &mut self,
        task: &TaskRef,
        mask: CpuSet,
        original: Original,
    ) -> Result<bool, PlaceError> {
        let id = self.write_pin(task, mask.clone(), original.clone(), Some(mask))?;
        stranger::give_back(&self.state, task, &original).map_err(|error| refusal(task, error))?;
        self.write_restored(task, id);
        self.compact_if_large();
        Ok(true)
    }

    /// Call for each thread of a program after CPUs came or went. Where the thread's CPU went, the
    /// kernel has widened its mask already: the pin is ended. Where a CPU came, a thread that was given
    /// back all CPUs is given all of them again, because before Linux 6.2 the kernel turned "all" into a
    /// list of the CPUs online then.
    ///
    /// # Errors
    /// All of [`PlaceError`] but `Gone`: a thread that has ended is no error.
    pub fn follow_cpus(&mut self, task: &TaskRef) -> Result<(), PlaceError> {
        let Some(tracked) = self.state.tracked(task) else { return Ok(()) };
        let effective = effective_cpuset(task.tid);
        let result = match tracked.pin_state {
            PinState::Pinned if tracked.pin.set.intersection(&effective).is_empty() => {
                self.release(task).map(drop)
            }
            PinState::Released => match tracked.mask_after_restore.clone() {
                Some(restored) => self.restore_again(task, &restored, &effective),
                None => Ok(()),
            },
            _ => Ok(()),
        };
        match result {
            Err(PlaceError::Gone { .. }) => Ok(()),
            result => result,
        }
    }

    /// Gives all CPUs of the cpuset to a thread that still has the mask that it was `restored` to.
    fn restore_again(
        &mut self,
        task: &TaskRef,
        restored: &CpuSet,
        effective: &CpuSet,
    ) -> Result<(), PlaceError> {
        let current = affinity::get(task.tid).map_err(|error| refusal(task, error))?;
        if current == *effective {
            // It has followed its cpuset by itself (Linux 6.2). From now on the mask that it had before
            // is one that its user sets.
            self.note_mask_after_restore(task);
            return Ok(());
        }
        let is_stale = current == *restored && current.is_subset(effective);
        if is_stale {
            task.check().map_err(|error| refusal(task, error))?;
            stranger::give_back(&self.state, task, &Original::All)
                .map_err(|error| refusal(task, error))?;
            self.note_mask_after_restore(task);
        }
        Ok(())
    }

    /// The CPUs that a thread may be placed on now: those of its cpuset that its user allowed, or with
    /// `override_user` all of its cpuset. A pin of ours does not restrict them.
    ///
    /// # Errors
    /// [`PlaceError::Gone`], [`PlaceError::Affinity`].
    pub fn allowed_cpus(&self, task: &TaskRef) -> Result<CpuSet, PlaceError> {
        let look = self.look(task)?;
        Ok(match look.claim {
            _ if self.override_user => look.cpuset_of(task),
            Claim::Ours(ref original) => original.shown_in(&look.cpuset_of(task)),
            _ => look.current,
        })
    }

    /// Whether threads that their user pinned are placed, too.
    pub fn overrides_user(&self) -> bool {
        self.override_user
    }

    /// Whether any thread was ever placed: if not, none can have inherited a pin.
    pub fn has_placed(&self) -> bool {
        self.state.has_set_any_mask()
    }

    /// The CPU that this session pinned a thread to, if it still holds the thread.
    pub fn pinned_cpu(&self, task: &TaskRef) -> Option<u32> {
        let tracked = self.state.tracked(task)?;
        (tracked.pin_state == PinState::Pinned).then(|| tracked.pin.set.iter().next())?
    }

    /// Of the `usable` CPUs, those that the user of a thread allows which this session has pinned;
    /// `None`: it is not pinned. What the journal knows, without a look at the thread.
    pub fn allowed_while_pinned(&self, task: &TaskRef, usable: &CpuSet) -> Option<CpuSet> {
        let tracked = self.state.tracked(task)?;
        let is_pinned = tracked.pin_state == PinState::Pinned;
        is_pinned.then(|| tracked.pin.original.shown_in(usable))
    }

    /// Whether the thread was let go because its user chose CPUs for it.
    pub fn has_yielded(&self, task: &TaskRef) -> bool {
        let tracked = self.state.tracked(task);
        tracked.is_some_and(|tracked| tracked.pin_state == PinState::Yielded)
    }

    fn original_of(&self, task: &TaskRef) -> Original {
        self.state.tracked(task).map_or(Original::All, |tracked| tracked.pin.original.clone())
    }

    fn look(&self, task: &TaskRef) -> Result<Look, PlaceError> {
        let mut look = self.look_once(task)?;
        if look.claim == Claim::Foreign {
            // The cpuset that was read may be older than the mask: that must not be taken for a user's
            // change.
            look = self.look_once(task)?;
        }
        Ok(look)
    }

    fn look_once(&self, task: &TaskRef) -> Result<Look, PlaceError> {
        let current = affinity::get(task.tid).map_err(|error| refusal(task, error))?;
        let (current, effective, claim) = match self.state.claim_by_mask(task, &current) {
            Some(claim) => (current, None, claim),
            None => {
                let (current, effective) =
                    mask_in_cpuset(task.tid).map_err(|error| refusal(task, error))?;
                let claim = self.state.claim(task, &current, &effective, &mut Processes::default());
                (current, Some(effective), claim)
            }
        };
        // Last: if the thread is still the same now, what was read was its own.
        task.check().map_err(|error| refusal(task, error))?;
        Ok(Look { current, effective, claim })
    }

    fn write_restored(&mut self, task: &TaskRef, id: u64) {
        self.write_or_warn(Entry::Restored(PinEnd { id, time_ns: now_ns() }));
        self.note_mask_after_restore(task);
    }

    /// So that a mask that lacks CPUs which came later is not taken for a user's.
    fn note_mask_after_restore(&mut self, task: &TaskRef) {
        let Some(tracked) = self.state.tracked(task) else { return };
        if tracked.pin.original != Original::All {
            return;
        }
        let id = tracked.pin.id;
        // A thread that has ended needs nothing.
        let Ok(mask) = affinity::get(task.tid) else { return };
        if tracked.mask_after_restore.as_ref() == Some(&mask) {
            return;
        }
        // Its user may have set another mask since it was restored.
        if let Ok((mask, effective)) = mask_in_cpuset(task.tid)
            && effective.is_subset(&mask)
        {
            self.state.note_mask_after_restore(id, mask);
        }
    }

    fn yield_to_user(&mut self, task: &TaskRef, found: CpuSet) -> Placed {
        tracing::info!(%task, %found, "its user chose its CPUs: letting it go");
        if let Some(id) = self.state.tracked(task).map(|tracked| tracked.pin.id) {
            self.write_or_warn(Entry::Yielded(PinEnd { id, time_ns: now_ns() }));
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
        let known = self.state.tracked(task).map(|tracked| (tracked.pin.id, tracked.pin.process));
        let (id, process) = match known {
            Some(known) => known,
            None => {
                let process = task.process();
                let process =
                    process.map_err(|why| refusal(task, why.for_affinity_of(task.tid)))?;
                (self.next_id, process)
            }
        };
        let time_ns = now_ns();
        self.write(Entry::Pin(Pin { id, task: *task, process, original, replaces, set, time_ns }))?;
        self.next_id = self.next_id.max(id + 1);
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::session::SessionOptions;

    fn sleeper() -> (Child, TaskRef) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let task = TaskRef::of(child.id() as i32).unwrap();
        (child, task)
    }

    /// The first and the last CPU of this process; where they are one, or it may not use all of its
    /// cpuset, `test` is skipped.
    fn two_cpus(test: &str) -> Option<(u32, u32)> {
        let (own, effective) = mask_in_cpuset(crate::task::own_pid()).unwrap();
        let (first, last) = (own.iter().min()?, own.iter().max()?);
        if own != effective || first == last {
            evenkeel_skip::skip(test, "this process may not use all of a cpuset of two CPUs");
            return None;
        }
        Some((first, last))
    }

    #[test]
    fn a_mask_that_its_user_sets_right_after_the_release_wins() {
        let test = "a_mask_that_its_user_sets_right_after_the_release_wins";
        let Some((first, last)) = two_cpus(test) else { return };
        let folder = tempfile::tempdir().unwrap();
        let mut session = Session::open(folder.path(), SessionOptions::default()).unwrap();
        let (mut child, task) = sleeper();
        session.place(&task, first).unwrap();
        let id = session.state.tracked(&task).unwrap().pin.id;
        // As `release` does, with a user that is faster than its entry.
        Original::All.give_back(task.tid).unwrap();
        affinity::set(task.tid, &single_cpu(last)).unwrap();
        session.write_restored(&task, id);
        let placed = session.place(&task, first).unwrap();
        assert_eq!(placed, Placed::Yielded { found: single_cpu(last), newly: true });
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_mask_that_was_shown_before_the_cpuset_grew_is_its_users_if_it_returns() {
        let test = "a_mask_that_was_shown_before_the_cpuset_grew_is_its_users_if_it_returns";
        let Some((first, last)) = two_cpus(test) else { return };
        let folder = tempfile::tempdir().unwrap();
        let mut session = Session::open(folder.path(), SessionOptions::default()).unwrap();
        let (mut child, task) = sleeper();
        session.place(&task, first).unwrap();
        assert_eq!(session.release(&task).unwrap(), Released::Restored);
        // As if its cpuset had only this CPU then. It has followed since.
        let id = session.state.tracked(&task).unwrap().pin.id;
        session.state.note_mask_after_restore(id, single_cpu(first));
        session.follow_cpus(&task).unwrap();
        affinity::set(task.tid, &single_cpu(first)).unwrap();
        session.follow_cpus(&task).unwrap();
        assert_eq!(affinity::get(task.tid).unwrap(), single_cpu(first));
        let placed = session.place(&task, last).unwrap();
        assert_eq!(placed, Placed::Yielded { found: single_cpu(first), newly: true });
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
