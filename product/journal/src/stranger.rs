//! The stranger: a thread that has the number of a thread that has just ended. The kernel is given a
//! number and not a start time, so a thread that ends between the last look at it and the system call
//! may have left its number to another thread, which then gets a mask that was not meant for it. The
//! kernel offers no call that prevents this. So the thread is looked at again after each call, and a
//! stranger is given the mask that it was born with. A writer that is killed before it can look has
//! named the thread, with its start time, in its journal's last pin: the undo looks then.

use evenkeel_machine::CpuSet;

use crate::affinity::{AffinityError, Original};
use crate::claim::Claim;
use crate::cpuset::mask_in_cpuset;
use crate::entry::Pin;
use crate::state::JournalState;
use crate::task::{Processes, TaskRef, tick_ns};

/// How long after its entry a call may still have been made, by a writer that waited for a CPU in
/// between. A thread that is younger was not there.
const CALL_WITHIN_NS: u64 = 2_000_000_000;

/// Restores the mask that `task` had before it was placed.
///
/// # Errors
/// As [`Original::give_back`]. `Gone` also if the thread ended before the call; a stranger that has its
/// number has its own mask then. `Transient` also if it cannot be read in time whether it is the thread:
/// then it is still pinned as far as the journal says, and is asked again.
pub(crate) fn give_back(
    state: &JournalState,
    task: &TaskRef,
    original: &Original,
) -> Result<(), AffinityError> {
    original.give_back(task.tid)?;
    task.check().inspect_err(|why| {
        if matches!(why, AffinityError::Gone { .. }) {
            // It has logged what it did.
            let _ = free_stranger(state, task, &original.to_set());
        }
    })
}

/// Call after `set` was written to the mask of a thread that has ended meanwhile. The thread that has
/// its number now is given the mask that it was born with, if it has the mask that was written. Returns
/// that thread then.
pub(crate) fn free_stranger(state: &JournalState, task: &TaskRef, set: &CpuSet) -> Option<TaskRef> {
    let stranger = TaskRef::of(task.tid).ok()?;
    // The thread itself, as a zombie.
    if stranger.start_time_ticks == task.start_time_ticks {
        return None;
    }
    let (current, effective) = mask_in_cpuset(stranger.tid).ok()?;
    let written = Original::Mask(set.clone()).shown_in(&effective);
    let birth = find_birth_mask(state, &stranger);
    if current != written || birth.shown_in(&effective) == current || stranger.check().is_err() {
        return None;
    }
    match birth.give_back(stranger.tid) {
        Ok(()) => {
            tracing::info!("{task} ended as it was placed: {stranger} has its own mask again");
            return Some(stranger);
        }
        Err(AffinityError::Gone { .. }) => {}
        Err(why) => tracing::warn!("{stranger} got a mask that was meant for {task}: {why}"),
    }
    None
}

/// The same for a thread that has ended and was the last pin of a dead writer: it is unknown whether the
/// mask was set, and whether it was given back. Only a thread that was there at that time is touched.
pub(crate) fn free_stranger_of_dead_writer(state: &JournalState, pin: &Pin) -> Option<TaskRef> {
    let stranger = TaskRef::of(pin.task.tid).ok()?;
    let born_ns = stranger.start_time_ticks.saturating_mul(tick_ns());
    if born_ns > pin.time_ns.saturating_add(CALL_WITHIN_NS) {
        return None;
    }
    free_stranger(state, &pin.task, &pin.set)
        .or_else(|| free_stranger(state, &pin.task, &pin.original.to_set()))
}

/// The mask that a thread was born with: that of the process that created it. All CPUs if that process
/// has ended.
fn find_birth_mask(state: &JournalState, stranger: &TaskRef) -> Original {
    let parent = if stranger.tid == stranger.tgid {
        stranger.stat().map_or(0, |stat| stat.ppid)
    } else {
        stranger.tgid
    };
    let Ok(parent) = TaskRef::of(parent) else { return Original::All };
    let Ok((mask, effective)) = mask_in_cpuset(parent.tid) else { return Original::All };
    match state.claim(&parent, &mask, &effective, &mut Processes::default()) {
        Claim::Ours(original) => original,
        _ => Original::of(&mask, &effective),
    }
}
