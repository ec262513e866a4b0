//! What a barrier means for the leads: all tasks begin level there, or as far behind as they have more
//! to do.

use super::active::Active;
use super::loads::{Load, handicaps_ns, is_whole};
use crate::figures::part;
use crate::snapshot::{Barriers, Snapshot};

/// When the one barrier was that was counted in an interval: in the middle of what is possible.
pub(super) fn counted_ago_ns(snapshot: &Snapshot) -> Option<u64> {
    let Barriers { count, observed_ns } = snapshot.seen.barriers?;
    let is_all = is_whole(observed_ns, snapshot.interval_ns);
    (count > 0 && is_all).then_some(snapshot.interval_ns / 2)
}

/// A task that waited and runs again.
pub(super) struct Woken {
    pub(super) index: usize,
    /// How long ago it woke.
    pub(super) ago_ns: u64,
    /// All that it did in the interval, it did since then.
    pub(super) is_exact: bool,
}

/// Leaves each task what it received since the barrier: its share of that time. Tasks that are known to
/// have more to do than others begin that much behind. `phases` have passed since the tasks last began
/// level, where they did and it is known when.
pub(super) fn begin_phase(
    active: &mut [Active<'_>],
    woken: &[Woken],
    interval_ns: u64,
    phases: Option<u64>,
) {
    let since_ns = woken.iter().map(|task| task.ago_ns).max().unwrap_or(0);
    for (index, task) in active.iter_mut().enumerate() {
        let work_ns = task.view.work_ns().min(interval_ns);
        let awake_ns = task.view.demand_ns().min(interval_ns);
        let (share_ns, phases) = match woken.binary_search_by_key(&index, |task| task.index) {
            Ok(place) if woken[place].is_exact => (work_ns, phases),
            // Nothing is learned from what is guessed.
            Ok(place) => (part(work_ns, woken[place].ago_ns, awake_ns), None),
            Err(_) => (part(work_ns, since_ns, interval_ns), phases),
        };
        task.memory.lead_ns = i64::try_from(share_ns).unwrap_or(i64::MAX);
        task.memory.load.end_phase(share_ns, phases);
    }
    if let Some(handicaps_ns) = handicaps_ns(&loads_of(active)) {
        set_back(active, &handicaps_ns);
    }
}

/// Begins a phase at a barrier that stayed unseen because no task waited there: tasks of unequal shares
/// have all done theirs. Returns whether that is so.
pub(super) fn begin_expected_phase(active: &mut [Active<'_>]) -> bool {
    let Some(handicaps_ns) = handicaps_ns(&loads_of(active)) else { return false };
    if !active.iter().all(|task| task.memory.load.is_done()) {
        return false;
    }
    for task in active.iter_mut() {
        let more_ns = task.memory.load.begin_next_phase();
        task.memory.lead_ns = i64::try_from(more_ns).unwrap_or(i64::MAX);
    }
    set_back(active, &handicaps_ns);
    true
}

fn loads_of(active: &[Active<'_>]) -> Vec<Load> {
    active.iter().map(|task| task.memory.load).collect()
}

fn set_back(active: &mut [Active<'_>], handicaps_ns: &[i64]) {
    for (task, handicap_ns) in active.iter_mut().zip(handicaps_ns) {
        task.memory.lead_ns = task.memory.lead_ns.saturating_sub(*handicap_ns);
    }
}
