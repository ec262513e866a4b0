//! The stranger: a thread that has the number of a thread that has just ended. The kernel is given a
//! number and not a start time, so a thread that ends between the last look at it and the system call
//! may have left its number to another thread, which then gets a mask that was not meant for it. The
//! kernel offers no call that prevents this. So the thread is looked at again after each call, and a
//! stranger is given the mask that it was born with.

use evenkeel_machine::CpuSet;

use crate::affinity::{AffinityError, Original};
use crate::claim::Claim;
use crate::cpuset::mask_in_cpuset;
use crate::state::JournalState;
use crate::task::{Processes, TaskRef};

/// Restores the mask that `task` had before it was placed.
///
/// # Errors
/// As [`Original::give_back`]. `Gone` also if the thread ended before the call; a stranger that has its
/// number has its own mask then.
pub(crate) fn give_back(
    state: &JournalState,
    task: &TaskRef,
    original: &Original,
) -> Result<(), AffinityError> {
    original.give_back(task.tid)?;
    if task.is_alive() {
        return Ok(());
    }
    free_stranger(state, task, &original.to_set());
    Err(AffinityError::Gone { tid: task.tid })
}

/// Call after `set` was written to the mask of a thread that has ended meanwhile. The thread that has
/// its number now is given the mask that it was born with, if it has the mask that was written.
pub(crate) fn free_stranger(state: &JournalState, task: &TaskRef, set: &CpuSet) {
    let Ok(stranger) = TaskRef::of(task.tid) else { return };
    // The thread itself, as a zombie.
    if stranger.start_time_ticks == task.start_time_ticks {
        return;
    }
    let Ok((current, effective)) = mask_in_cpuset(stranger.tid) else { return };
    let written = Original::Mask(set.clone()).shown_in(&effective);
    let birth = find_birth_mask(state, &stranger);
    if current != written || birth.shown_in(&effective) == current || !stranger.is_alive() {
        return;
    }
    match birth.give_back(stranger.tid) {
        Ok(()) => {
            tracing::info!("{task} ended as it was placed: {stranger} has its own mask again")
        }
        Err(AffinityError::Gone { .. }) => {}
        Err(why) => tracing::warn!("{stranger} got a mask that was meant for {task}: {why}"),
    }
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
