//! Step 3 of the `lag` policy: the critical task gets a faster CPU, where phases are too short for lags.
//!
//! In many short phases each task receives, in the long run, as much work as its share of a phase is,
//! whatever CPU it is on: the rest of its time it waits. So a task takes `work / rate of its CPU` for a
//! phase, and the task that takes longest is the critical one: the others wait for it. (Of tasks on
//! equal CPUs that is the one that waits least.) An exchange pays if both tasks then take clearly less
//! than that (and there are samples enough to know). Tasks of equal work are therefore never exchanged,
//! since the slow CPU would only hold up another task.

use super::slots::{Deal, Dealt, Slot, above};
use crate::plan::{Move, Reason};

/// Exchanges in one plan.
const MAX_EXCHANGES: usize = 4;
/// An exchange must make phases shorter by this many times the tolerance: work is told from spinning by
/// samples.
const SURE_FACTOR: u64 = 2;
const ALL_PPM: u64 = 1_000_000;

/// A task that is alone on its CPU.
struct Placed<'d, 'a> {
    task: &'d Dealt<'a>,
    /// What it receives for work.
    work_ppm: u64,
    cpu: u32,
    /// What its CPU gives to it.
    rate_ppm: u64,
    has_moved: bool,
}

impl Placed<'_, '_> {
    fn takes(&self) -> u64 {
        time_for(self.work_ppm, self.rate_ppm)
    }

    /// How long the slower of the two takes once they have changed places.
    fn takes_with(&self, other: &Self) -> u64 {
        time_for(self.work_ppm, other.rate_ppm).max(time_for(other.work_ppm, self.rate_ppm))
    }

    fn may_change_places(&self, other: &Self) -> bool {
        let is_free = |placed: &Self| !placed.task.is_bound && !placed.has_moved;
        is_free(self)
            && is_free(other)
            && self.task.view.may_go_to(other.cpu)
            && other.task.view.may_go_to(self.cpu)
    }
}

/// Time for a share of a phase, in thousandths of an interval.
fn time_for(work_ppm: u64, rate_ppm: u64) -> u64 {
    work_ppm.saturating_mul(1000) / rate_ppm.max(1)
}

/// Lets the critical tasks change places with tasks on faster CPUs, if phases become clearly shorter.
/// It needs the work of each task, and at most one task on each CPU.
pub(super) fn change_places(deal: &Deal<'_>, tolerance_ppm: u64, moves: &mut Vec<Move>) {
    // Which task the others wait for is no question where one does not run at all.
    let is_unfit = |slot: &Slot| slot.count > 1 || (slot.count > 0 && slot.is_starved);
    if !moves.is_empty() || deal.slots.iter().any(is_unfit) {
        return;
    }
    let place = |task| {
        let task: &Dealt<'_> = task;
        let slot = &deal.slots[task.slot?];
        let rate_ppm = slot.current_ppm();
        Some(Placed { work_ppm: task.work_ppm?, task, cpu: slot.cpu, rate_ppm, has_moved: false })
    };
    let Some(mut placed) = deal.tasks.iter().map(place).collect::<Option<Vec<_>>>() else { return };
    let longest = |placed: &[Placed<'_, '_>]| placed.iter().map(Placed::takes).max().unwrap_or(0);
    let (before, gain_ppm) = (longest(&placed), tolerance_ppm.saturating_mul(SURE_FACTOR));
    let mut exchanges = Vec::new();
    while exchanges.len() < MAX_EXCHANGES {
        let order = |index: &usize| (placed[*index].takes(), *index);
        let Some(critical) = (0..placed.len()).max_by_key(order) else { break };
        let one = &placed[critical];
        let partners: Vec<usize> = (0..placed.len())
            .filter(|other| above(placed[*other].rate_ppm, one.rate_ppm, tolerance_ppm))
            .filter(|other| one.may_change_places(&placed[*other]))
            .collect();
        let takes_with = |other: &usize| one.takes_with(&placed[*other]);
        let Some(shortest) = partners.iter().map(takes_with).min() else { break };
        // Of those that are as good, the one on the fastest CPU.
        let as_good = |other: &&usize| !above(takes_with(other), shortest, tolerance_ppm);
        let best = partners.iter().filter(as_good).max_by_key(|other| placed[**other].rate_ppm);
        let Some(partner) = best.copied() else { break };
        if !above(one.takes(), one.takes_with(&placed[partner]), gain_ppm) {
            break;
        }
        let (one, other) = (&placed[critical], &placed[partner]);
        let (from_ppm, to_ppm) = (one.rate_ppm, other.rate_ppm);
        let reason = Reason::Critical { work_ppm: one.work_ppm.min(ALL_PPM), from_ppm, to_ppm };
        let back = Reason::Slack {
            work_ppm: other.work_ppm.min(ALL_PPM),
            from_ppm: to_ppm,
            to_ppm: from_ppm,
        };
        exchanges.push([
            Move { task: one.task.id(), from: one.cpu, to: other.cpu, reason },
            Move { task: other.task.id(), from: other.cpu, to: one.cpu, reason: back },
        ]);
        let (cpu, rate_ppm) = (one.cpu, one.rate_ppm);
        (placed[critical].cpu, placed[critical].rate_ppm) = (other.cpu, other.rate_ppm);
        (placed[partner].cpu, placed[partner].rate_ppm) = (cpu, rate_ppm);
        placed[critical].has_moved = true;
        placed[partner].has_moved = true;
    }
    // Where two tasks are critical, helping one of them gains nothing.
    if above(before, longest(&placed), gain_ppm) {
        moves.extend(exchanges.into_iter().flatten());
    }
}
