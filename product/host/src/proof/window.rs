//! A window: what a program did in some intervals in a row, and its pace in it.

use evenkeel_capability::{Snapshot, TaskView};
use serde::{Deserialize, Serialize};

/// Loops in a window that tell a pace.
pub(super) const MIN_LOOPS: f64 = 4.0;

/// What the pace of a program is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// Loops that the program begins a second, as its preloaded library counts them.
    Loops,
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
    /// Loops begun, where they are counted.
    loops: Option<f64>,
}

impl Window {
    pub(super) fn add(&mut self, snapshot: &Snapshot, loops: Option<f64>) {
        self.is_seen = snapshot.seen.spinning && (self.is_seen || self.elapsed_ns == 0);
        self.elapsed_ns += snapshot.interval_ns;
        if let Some(loops) = loops {
            *self.loops.get_or_insert(0.0) += loops;
        }
        self.work_ns += snapshot.tasks.iter().map(TaskView::work_ns).sum::<u64>();
    }

    /// What the pace of both windows can be compared by; none: by nothing that was seen.
    pub(super) fn pace_with(&self, other: &Self) -> Option<Pace> {
        if let (Some(loops), Some(others)) = (self.loops, other.loops) {
            return (loops.min(others) >= MIN_LOOPS).then_some(Pace::Loops);
        }
        (self.is_seen && other.is_seen).then_some(Pace::Work)
    }

    /// Its pace, in any unit.
    pub(super) fn pace(&self, pace: Pace) -> f64 {
        let elapsed_ns = self.elapsed_ns as f64;
        match pace {
            Pace::Loops => self.loops.unwrap_or(0.0) / elapsed_ns,
            Pace::Work | Pace::CpuRates => self.work_ns as f64 / elapsed_ns,
        }
    }
}
