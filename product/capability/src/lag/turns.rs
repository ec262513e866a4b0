//! Taking turns on the fast CPUs, in phases of some 50 to 800 ms at the end of which tasks spin.
//!
//! Such phases cannot be followed from barrier to barrier: samples tell when a task began to spin to
//! some ms only. So barriers count for nothing here. The tasks change places again and again, several
//! times in each phase, so that they always have received the same, or in the ratio of what each has to
//! do; and whenever a phase ends, they are as near each other as the last exchange left them.
//!
//! Samples show where that is due (`lag/spells.rs`): where tasks spin in spells so far apart. An error
//! of theirs does no lasting harm: a task that received too little has the others wait for it, and they
//! receive more while they spin.

use super::active::Active;
use super::loads::{EQUAL_SHARE, Load};
use super::parameters::LagParameters;
use super::spells::Division;
use crate::figures::part;
use crate::plan::{Move, Reason};

/// So many intervals in a phase.
const INTERVALS: u64 = 8;
/// They are this share of the shortest interval otherwise, at least and at most.
const LEAST_SHARE: u64 = 4;
const MOST_SHARE: u64 = 2;
/// Phases of so many of the shortest intervals or more are followed from barrier to barrier, ...
const MANY_INTERVALS: u64 = 16;
/// ... and where turns are taken already, of so many times more.
const STILL: u64 = 2;
/// No task has so many times more or less to do than the others in the mean.
const MOST_UNEQUAL: u64 = 4;
const ALL_PPM: u64 = 1_000_000;

/// Whether the tasks take turns, and the length of the phases as samples tell it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Turns {
    /// Length of a phase in which they take turns, in ns.
    phase_ns: Option<u64>,
    /// Length of a phase that is too short for that, in ns.
    short_ns: Option<u64>,
    /// What a task receives for work a second, as a mean of all, where that is known of all.
    mean_work_ppm: Option<u64>,
}

impl Turns {
    /// Sees what samples told of the tasks until now. Returns whether turns begin or end: leads mean
    /// nothing then.
    pub(super) fn pass(
        &mut self,
        active: &[Active<'_>],
        sees_spinning: bool,
        parameters: &LagParameters,
    ) -> bool {
        let LagParameters { min_interval_ns, max_interval_ns, .. } = *parameters;
        let were_taken = self.are_taken();
        self.mean_work_ppm = mean_work_ppm(active);
        let is_fixed = min_interval_ns >= max_interval_ns;
        if !sees_spinning || is_fixed {
            *self = Self::default();
            return were_taken;
        }
        // The task that begins to spin most often: others may be late in each phase.
        let divisions = active.iter().filter_map(|task| task.memory.spells.division());
        let Some(division) = divisions.min_by_key(|division| division.length_ns()) else {
            // Hardly any task spins: turns go on, since that may be due to them.
            self.short_ns = None;
            return false;
        };
        let still = if were_taken { STILL } else { 1 };
        let most_ns = min_interval_ns.saturating_mul(MANY_INTERVALS * still);
        (self.phase_ns, self.short_ns) = match division {
            Division::Short(length_ns) => (None, Some(length_ns)),
            Division::Long(length_ns) if length_ns < min_interval_ns => (None, Some(length_ns)),
            Division::Long(length_ns) => ((length_ns <= most_ns).then_some(length_ns), None),
        };
        self.are_taken() != were_taken
    }

    /// How much of what a task received counts in its lead: less where it has more to do than others.
    /// In phases that all tasks pass together, the work of each is its share of a phase, whatever it
    /// received.
    pub(super) fn counted_ns(&self, received_ns: u64, load: &Load) -> u64 {
        let (Some(mean_ppm), Some(work_ppm)) = (self.mean_work_ppm, load.work_ppm()) else {
            return received_ns;
        };
        let is_equal = work_ppm.abs_diff(mean_ppm) <= mean_ppm / EQUAL_SHARE;
        if is_equal || !self.are_taken() {
            return received_ns;
        }
        let (least_ppm, most_ppm) =
            (mean_ppm / MOST_UNEQUAL, mean_ppm.saturating_mul(MOST_UNEQUAL));
        part(received_ns, mean_ppm, work_ppm.clamp(least_ppm, most_ppm))
    }

    /// Whether tasks take turns.
    pub(super) fn are_taken(&self) -> bool {
        self.phase_ns.is_some()
    }

    /// Length of a phase in which nothing can be balanced, as samples show it.
    pub(super) fn short_phase_ns(&self) -> Option<u64> {
        self.short_ns
    }

    /// The shortest phase that is worth balancing in, where turns can be taken.
    pub(super) fn long_ns(&self, min_interval_ns: u64) -> Option<u64> {
        self.are_taken().then_some(min_interval_ns)
    }

    /// A lead of more than this is of phases that are over; none where turns are not taken.
    pub(super) fn most_lead_ns(&self) -> Option<i64> {
        self.phase_ns.map(|phase_ns| i64::try_from(phase_ns / 2).unwrap_or(i64::MAX))
    }

    /// Time after which the tasks of the largest exchange are to change places again: they catch up, and
    /// then go as far ahead as in half of an interval. So leads swing evenly to both sides, and a phase
    /// that ends at any moment finds the tasks half as far apart as if they changed places when they
    /// are level.
    pub(super) fn swing_ns(&self, moves: &[Move], min_interval_ns: u64) -> Option<u64> {
        let interval_ns = self.interval_ns(min_interval_ns)?;
        let catches_up_ns = |made: &Move| match made.reason {
            Reason::Behind { lag_ns, from_ppm, to_ppm } => {
                Some(part(lag_ns, ALL_PPM, to_ppm.saturating_sub(from_ppm)))
            }
            _ => None,
        };
        let catches_up_ns = moves.iter().filter_map(catches_up_ns).max().unwrap_or(interval_ns / 2);
        Some(catches_up_ns.saturating_add(interval_ns / 2).min(interval_ns.saturating_mul(2)))
    }

    /// Length of the next interval; none where turns are not taken.
    pub(super) fn interval_ns(&self, min_interval_ns: u64) -> Option<u64> {
        let (least_ns, most_ns) = (min_interval_ns / LEAST_SHARE, min_interval_ns / MOST_SHARE);
        let interval_ns = |phase_ns: u64| (phase_ns / INTERVALS).clamp(least_ns, most_ns).max(1);
        self.phase_ns.map(interval_ns)
    }
}

fn mean_work_ppm(active: &[Active<'_>]) -> Option<u64> {
    let works = active.iter().map(|task| task.memory.load.work_ppm());
    let sum_ppm = works.sum::<Option<u64>>()?;
    sum_ppm.checked_div(active.len() as u64)
}
