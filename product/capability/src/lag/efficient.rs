//! `--prefer efficient` of the `lag` policy: a program with fewer compute tasks than CPUs gets the CPUs
//! that need the least energy for their work (paper 000, section 6, names a power-aware selection of
//! tasks as future work).
//!
//! As many CPUs are taken as there are tasks, since a second task on a CPU would double the time of
//! both. CPUs that other programs keep busy come last, for the same reason. The tasks are kept there:
//! the kernel would take them back to the fastest CPUs. A lone task is left alone, since it may be about
//! to start a pool of threads: kept on a CPU, it would count one.

use std::cmp::Reverse;

use super::parameters::{LagParameters, Preference};
use super::slots::{Deal, Dealt, Slot};
use crate::plan::{Move, Reason};
use crate::snapshot::TaskId;

/// A CPU without a task of ours is entered only if other programs have fewer tasks there, in
/// thousandths; one with a task is left if they have more than the second. What competes shows larger
/// than what is alone, so one limit would have tasks go to and fro.
const ENTERED_MILLI: u64 = 300;
const LEFT_MILLI: u64 = 700;

/// What is gathered.
pub(super) struct Gathering {
    /// The moves to the chosen CPUs.
    pub(super) moves: Vec<Move>,
    /// The tasks that are on chosen CPUs after that, one on each.
    pub(super) kept: Vec<TaskId>,
}

/// Brings each task to one of the CPUs that need the least energy; `None` where the preference decides
/// nothing: all CPUs are needed, nothing is known of their energy, or no task may go to a chosen one.
pub(super) fn gather(deal: &mut Deal<'_>, parameters: &LagParameters) -> Option<Gathering> {
    if parameters.prefer != Preference::Efficient || deal.tasks.len() < 2 {
        return None;
    }
    let chosen = chosen(deal)?;
    let mut is_free: Vec<bool> = vec![false; deal.slots.len()];
    chosen.iter().for_each(|slot| is_free[*slot] = true);
    // A task that cannot move has its CPU, and one task may stay on each chosen CPU: of those that may
    // go elsewhere, the one furthest behind.
    let (mut leaving, mut kept) = (Vec::new(), Vec::new());
    let (bound, others): (Vec<usize>, Vec<usize>) =
        (0..deal.tasks.len()).partition(|task| deal.tasks[*task].is_bound);
    for task in bound.into_iter().chain(others) {
        let dealt = &deal.tasks[task];
        match dealt.slot {
            Some(slot) if is_free[slot] => {
                is_free[slot] = false;
                kept.push(dealt.id());
            }
            Some(_) if !dealt.is_bound => leaving.push(task),
            _ => {}
        }
    }
    let mut moves = Vec::new();
    for task in leaving {
        let view = deal.tasks[task].view;
        let to = chosen.iter().find(|to| is_free[**to] && view.may_go_to(deal.slots[**to].cpu));
        let (Some(&to), Some(from)) = (to, deal.tasks[task].slot) else { continue };
        is_free[to] = false;
        let (from_ppm, to_ppm) = (deal.slots[from].current_ppm(), deal.slots[to].rate_ppm(1));
        deal.put(task, from, to);
        kept.push(view.id);
        moves.push(Move {
            task: view.id,
            from: deal.slots[from].cpu,
            to: deal.slots[to].cpu,
            reason: Reason::LessEnergy { from_ppm, to_ppm },
        });
    }
    (!kept.is_empty()).then_some(Gathering { moves, kept })
}

/// As many CPUs as there are tasks, in the order in which they are wanted, of those that any task may
/// use; `None` where all of these are needed, the energy of one is not known, or all are alike.
fn chosen(deal: &Deal<'_>) -> Option<Vec<usize>> {
    let slots = &deal.slots;
    let may_be_used = |slot: &usize| {
        let Slot { cpu, is_starved, .. } = slots[*slot];
        let may_be_there = |task: &Dealt<'_>| task.slot == Some(*slot) || task.view.may_go_to(cpu);
        !is_starved && deal.tasks.iter().any(may_be_there)
    };
    let mut order: Vec<usize> = (0..slots.len()).filter(may_be_used).collect();
    let ranks: Option<Vec<u32>> = order.iter().map(|slot| slots[*slot].energy_rank).collect();
    let ranks = ranks?;
    if deal.tasks.len() >= order.len() || ranks.iter().all(|rank| *rank == ranks[0]) {
        return None;
    }
    order.sort_by_key(|&index| {
        let slot = &slots[index];
        // Whole cores before second siblings; and among equals, CPUs that have a task keep it.
        let siblings = slot.siblings.iter().filter(|other| **other < index).count();
        let is_left_alone = slot.count == 0;
        let most_milli = if is_left_alone { ENTERED_MILLI } else { LEFT_MILLI };
        let is_used_by_others = slot.foreign_milli() >= most_milli;
        let rate_ppm = Reverse(slot.rate_ppm(1));
        (is_used_by_others, slot.energy_rank, siblings, is_left_alone, rate_ppm)
    });
    order.truncate(deal.tasks.len());
    Some(order)
}
