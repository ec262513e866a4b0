//! A window: what a program did in some intervals in a row, and how fast it was against another one.

use evenkeel_capability::{Snapshot, TaskView};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::laps::Laps;

/// Laps in a window that tell a pace.
pub(super) const MIN_LAPS: f64 = 2.0;

/// What the pace of a program is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// The time from each parallel region to the next one, as its preloaded library takes it: each
    /// region is compared with the same one.
    Regions,
    /// Work that all tasks received a second, where they wait for each other within a window.
    Work,
    /// Work received, against what a task would have received that stays on the slowest CPU.
    CpuRates,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    pub(super) elapsed_ns: u64,
    /// Spinning was told from work all the time.
    is_seen: bool,
    work_ns: u64,
    /// Laps that ended, where they are counted.
    laps: Option<Laps>,
}

impl Window {
    pub(super) fn add(&mut self, snapshot: &Snapshot, laps: Option<&Laps>) {
        self.is_seen = snapshot.seen.spinning && (self.is_seen || self.elapsed_ns == 0);
        self.elapsed_ns += snapshot.interval_ns;
        if let Some(laps) = laps {
            self.laps.get_or_insert_default().extend(laps);
        }
        self.work_ns += snapshot.tasks.iter().map(TaskView::work_ns).sum::<u64>();
    }

    /// How many times as fast as in the other window the program ran, and by what that was told; none:
    /// by nothing that was seen.
    pub(super) fn ratio_to(&self, other: &Self) -> Option<(Pace, f64)> {
        if let (Some(laps), Some(others)) = (&self.laps, &other.laps) {
            let are_enough = laps.count().min(others.count()) >= MIN_LAPS;
            let ratio = laps.ratio_to(others).filter(|_| are_enough)?;
            return Some((Pace::Regions, ratio));
        }
        let pace = |window: &Self| window.work_ns as f64 / window.elapsed_ns as f64;
        (self.is_seen && other.is_seen).then(|| (Pace::Work, pace(self) / pace(other)))
    }

    /// Takes in a later window; what was before counts for `share` of what it did.
    pub(super) fn follow(&mut self, later: &Self, share: f64) {
        let fade = |ns: u64| (ns as f64 * share) as u64;
        self.elapsed_ns = fade(self.elapsed_ns) + later.elapsed_ns;
        self.work_ns = fade(self.work_ns) + later.work_ns;
        self.is_seen = later.is_seen;
        match (&mut self.laps, &later.laps) {
            (Some(laps), Some(later)) => {
                laps.fade(share);
                laps.extend(later);
            }
            (laps, later) => laps.clone_from(later),
        }
    }
}
