//! The claim: is the mask that a thread has now ours? A mask is ours only if it still is what the
//! journal says we wrote. This rule decides what an undo restores (*Undo*), and which threads are let go
//! because their user chose other CPUs (*Yield*).

use evenkeel_machine::CpuSet;

use crate::affinity::Original;
use crate::entry::Pin;
use crate::state::{JournalState, PinState};
use crate::task::{Processes, TaskRef};

/// Which process set the mask that a task has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Ours; this is what to give back.
    Ours(Original),
    /// The task was placed, and has what it had before.
    AsBefore,
    /// The task was placed, and another process has changed its mask since.
    Foreign,
    /// The task was never placed, and inherited no mask of ours.
    Unknown,
}

impl JournalState {
    /// What the mask `current` alone says: that it is what was written last, or what was given back.
    /// Nearly every mask is, and its cpuset, which takes longer to read, says nothing more.
    pub(crate) fn claim_by_mask(&self, task: &TaskRef, current: &CpuSet) -> Option<Claim> {
        let tracked = self.tracked(task)?;
        let pin = &tracked.pin;
        match tracked.pin_state {
            PinState::Pinned if is_written(pin, current) => Some(Claim::Ours(pin.original.clone())),
            PinState::Released
                if tracked.mask_after_restore.as_ref() == Some(current)
                    && self.find_inherited_by_exec(task, current).is_none() =>
            {
                Some(Claim::AsBefore)
            }
            _ => None,
        }
    }

    /// The claim on the mask `current` of `task`, while its cpuset is `effective`.
    pub(crate) fn claim(
        &self,
        task: &TaskRef,
        current: &CpuSet,
        effective: &CpuSet,
        processes: &mut Processes,
    ) -> Claim {
        let Some(tracked) = self.tracked(task) else {
            return match self.find_inherited(task, current, processes) {
                Some(original) => Claim::Ours(original),
                None => Claim::Unknown,
            };
        };
        let pin = &tracked.pin;
        match tracked.pin_state {
            PinState::Yielded => return Claim::Foreign,
            PinState::Pinned if is_ours(pin, current, effective) => {
                return Claim::Ours(pin.original.clone());
            }
            PinState::Pinned | PinState::Released => {}
        }
        if let Some(original) = self.find_inherited_by_exec(task, current) {
            return Claim::Ours(original);
        }
        // A CPU that comes online is in the mask before it is in the cpuset.
        let has_all = pin.original == Original::All && effective.is_subset(current);
        let is_as_restored = tracked.pin_state == PinState::Released
            && tracked.mask_after_restore.as_ref() == Some(current);
        if has_all || is_as_restored || pin.original.shown_in(effective) == *current {
            Claim::AsBefore
        } else {
            Claim::Foreign
        }
    }
}

/// Whether a mask is what was written, or what that replaced.
fn is_written(pin: &Pin, current: &CpuSet) -> bool {
    *current == pin.set || pin.replaces.as_ref() == Some(current)
}

/// Whether a pinned task still has the mask that was written.
fn is_ours(pin: &Pin, current: &CpuSet, effective: &CpuSet) -> bool {
    is_written(pin, current)
        // The pin's CPU left the cpuset or went offline, and only the kernel widened the mask. It
        // widens the mask of a sleeping task late: until then the mask shows no CPU at all.
        || (pin.set.intersection(effective).is_empty()
            && (effective.is_subset(current) || current.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::single_cpu;
    use crate::entry::{Entry, PinEnd};

    fn task(tid: i32) -> TaskRef {
        // Far above any real number: nothing of the host is touched by these tests.
        TaskRef { tid: 2_000_000_000 + tid, tgid: 2_000_000_000, start_time_ticks: 500 }
    }

    fn pin(id: u64, replaces: Option<u32>, set: u32, time_ns: u64) -> Entry {
        Entry::Pin(Pin {
            id,
            task: task(id as i32),
            process: task(0),
            original: Original::All,
            replaces: replaces.map(single_cpu),
            set: single_cpu(set),
            time_ns,
        })
    }

    fn claim(state: &JournalState, id: i32, current: &str, effective: &str) -> Claim {
        let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
        state.claim(&task(id), &cpus(current), &cpus(effective), &mut Processes::default())
    }

    #[test]
    fn only_what_we_wrote_is_ours() {
        let mut state = JournalState::default();
        state.apply(&pin(1, None, 2, 10));
        assert_eq!(claim(&state, 1, "2", "0-3"), Claim::Ours(Original::All));
        assert_eq!(claim(&state, 1, "0-3", "0-3"), Claim::AsBefore);
        assert_eq!(claim(&state, 1, "1", "0-3"), Claim::Foreign);
        assert_eq!(claim(&state, 9, "1", "0-3"), Claim::Unknown);
        // The CPU left the cpuset: the kernel widened the mask, not the user.
        assert_eq!(claim(&state, 1, "0-1", "0-1"), Claim::Ours(Original::All));
        // The CPU went offline, and the task has slept since.
        assert_eq!(claim(&state, 1, "", "0-1"), Claim::Ours(Original::All));
        assert_eq!(claim(&state, 1, "", "0-2"), Claim::Foreign);

        // Killed between the entry and the call: the task has our previous mask.
        state.apply(&pin(1, Some(2), 3, 20));
        assert_eq!(claim(&state, 1, "2", "0-3"), Claim::Ours(Original::All));
        assert_eq!(claim(&state, 1, "3", "0-3"), Claim::Ours(Original::All));

        state.apply(&Entry::Restored(PinEnd { id: 1, time_ns: 30 }));
        assert_eq!(claim(&state, 1, "3", "0-3"), Claim::Foreign);
        assert_eq!(claim(&state, 1, "0-3", "0-3"), Claim::AsBefore);
        assert_eq!(state.pinned().count(), 0);
        // A CPU was offline when the task was given back all CPUs, and has come since.
        assert_eq!(claim(&state, 1, "0-2", "0-3"), Claim::Foreign);
        state.note_mask_after_restore(1, "0-2".parse().unwrap());
        assert_eq!(claim(&state, 1, "0-2", "0-3"), Claim::AsBefore);
        assert_eq!(claim(&state, 1, "0-1", "0-3"), Claim::Foreign);

        state.apply(&Entry::Yielded(PinEnd { id: 1, time_ns: 30 }));
        assert_eq!(claim(&state, 1, "0-3", "0-3"), Claim::Foreign);
        // Entries about unknown ids change nothing.
        state.apply(&Entry::Restored(PinEnd { id: 77, time_ns: 30 }));
    }
}
