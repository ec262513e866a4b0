//! A window: what a program did in some intervals in a row, and its pace in it.

use std::collections::BTreeMap;

use evenkeel_capability::{Snapshot, TaskId};
use serde::{Deserialize, Serialize};

/// Barriers in a window that tell a pace.
const MIN_BARRIERS: u64 = 8;
/// Tasks that wait for this share of a window wait for each other: 1/50.
const WAIT_SHARE: u64 = 50;
/// A compute task wants a CPU for this share of an interval: 1/10.
const ACTIVE_SHARE: u64 = 10;

/// What the pace of a program is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// Barriers a second.
    Barriers,
    /// Work that all tasks received a second, where they wait for each other within a window.
    Work,
    /// Work that the slowest task received, where no task waits within a window.
    SlowestTask,
    /// Work received, against what a task would have received that stays on the slowest CPU.
    CpuRates,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    pub(super) elapsed_ns: u64,
    barriers: u64,
    observed_ns: u64,
    /// Time in which the compute tasks waited for others, and all of their time.
    waited_ns: u64,
    all_ns: u64,
    /// Spinning was told from work all the time.
    is_seen: bool,
    work_ns: BTreeMap<TaskId, u64>,
}

impl Window {
    pub(super) fn add(&mut self, snapshot: &Snapshot) {
        self.is_seen = snapshot.seen.spinning && (self.is_seen || self.elapsed_ns == 0);
        self.elapsed_ns += snapshot.interval_ns;
        if let Some(barriers) = snapshot.seen.barriers {
            self.barriers += u64::from(barriers.count);
            self.observed_ns += barriers.observed_ns;
        }
        for task in &snapshot.tasks {
            let is_active = task.demand_ns().saturating_mul(ACTIVE_SHARE) >= snapshot.interval_ns;
            if is_active {
                self.all_ns += snapshot.interval_ns;
                self.waited_ns += snapshot.interval_ns.saturating_sub(task.busy_ns());
            }
            if is_active || self.work_ns.contains_key(&task.id) {
                *self.work_ns.entry(task.id).or_default() += task.work_ns();
            }
        }
    }

    fn counts_barriers(&self) -> bool {
        self.barriers >= MIN_BARRIERS && self.observed_ns >= self.elapsed_ns / 2
    }

    fn waits(&self) -> bool {
        self.waited_ns.saturating_mul(WAIT_SHARE) >= self.all_ns
    }

    /// What the pace of both windows can be compared by; none: by nothing that was seen.
    pub(super) fn pace_with(&self, other: &Self) -> Option<Pace> {
        if self.counts_barriers() && other.counts_barriers() {
            return Some(Pace::Barriers);
        }
        if !(self.is_seen && other.is_seen) {
            return None;
        }
        Some(if self.waits() || other.waits() { Pace::Work } else { Pace::SlowestTask })
    }

    /// Its pace, in any unit.
    pub(super) fn pace(&self, pace: Pace) -> f64 {
        let elapsed_ns = self.elapsed_ns as f64;
        match pace {
            Pace::Barriers => self.barriers as f64 / self.observed_ns as f64,
            Pace::Work => self.work_ns.values().sum::<u64>() as f64 / elapsed_ns,
            Pace::SlowestTask | Pace::CpuRates => {
                self.work_ns.values().min().copied().unwrap_or(0) as f64 / elapsed_ns
            }
        }
    }
}
