//! Step 3 of the `lag` policy for a split: tasks of unequal work change places, so that the work on each
//! CPU is what the CPU is worth.
//!
//! A split gives each CPU its number of tasks, as if all had the same work. Often they have not: 22
//! iterations on 8 threads are three for six of them and two for the others, and which threads share a
//! CPU is chance. In many short phases a task receives, in the long run, as much as its share of a phase
//! is. So a CPU takes `work of its tasks / what it gives` for a phase, and all wait for the slowest of
//! them: one of its tasks changes places with a task of less work elsewhere, if that makes phases
//! clearly shorter. The numbers of tasks stay.
//!
//! It is not for tasks that spin: they take time from others on their CPU, and work does not tell how
//! long the CPU takes then. The one with the most work counts no more than the next one: it may work
//! alone between two phases, and that part takes as long whatever its neighbours do.

use super::slots::{Deal, Dealt, Slot, above};
use crate::plan::{Move, Reason};

/// An exchange is made once for many phases, so it pays if phases become shorter by this much.
const WORTHWHILE_PPM: u64 = 40_000;

/// In longer phases, the one that an interval cuts is too much of what is known of the work.
const MOST_PHASE_NS: u64 = 20_000_000;

/// A CPU and the work of its tasks.
struct Laden<'d> {
    slot: &'d Slot,
    work_ppm: u64,
    /// What it gives to the program.
    gives_ppm: u64,
}

impl Laden<'_> {
    /// How long it takes for a phase with so much work, in millionths of the time for as much work as
    /// it gives.
    fn takes(&self, work_ppm: u64) -> u64 {
        work_ppm.saturating_mul(1_000_000) / self.gives_ppm.max(1)
    }
}

/// A task and its work.
struct Worker<'d, 'a> {
    task: &'d Dealt<'a>,
    work_ppm: u64,
    slot: usize,
    has_moved: bool,
}

impl Worker<'_, '_> {
    fn may_go_to(&self, slot: &Slot) -> bool {
        !self.has_moved
            && !slot.is_starved
            && !self.task.is_remote_on(slot.node)
            && self.task.view.may_go_to(slot.cpu)
    }
}

/// Lets tasks change places where no other move is due, the work of each is known, and phases (of this
/// length now) become clearly shorter.
pub(super) fn change_places(deal: &Deal<'_>, phase_ns: u64, moves: &mut Vec<Move>) {
    // What a shared core gives is a guess, which matters beside cores that are not shared.
    let is_mixed = deal.slots.iter().any(|slot| slot.is_shared != deal.slots[0].is_shared);
    if !moves.is_empty() || phase_ns > MOST_PHASE_NS || is_mixed {
        return;
    }
    let work = |task| {
        let task: &Dealt<'_> = task;
        let (work_ppm, slot) = (task.counted_work_ppm?, task.slot?);
        Some(Worker { task, work_ppm, slot, has_moved: false })
    };
    let Some(mut workers) = deal.tasks.iter().map(work).collect::<Option<Vec<_>>>() else { return };
    let mut works: Vec<u64> = workers.iter().map(|worker| worker.work_ppm).collect();
    works.sort_unstable();
    let [.., next_ppm, _] = works[..] else { return };
    for worker in &mut workers {
        worker.work_ppm = worker.work_ppm.min(next_ppm);
    }
    let mut laden: Vec<Laden<'_>> = deal
        .slots
        .iter()
        .map(|slot| Laden { slot, work_ppm: 0, gives_ppm: slot.total_ppm(slot.count) })
        .collect();
    for worker in &workers {
        laden[worker.slot].work_ppm += worker.work_ppm;
    }
    let longest = |laden: &[Laden<'_>]| {
        (0..laden.len()).map(|slot| (laden[slot].takes(laden[slot].work_ppm), slot)).max()
    };
    let Some((before, _)) = longest(&laden) else { return };
    let gives_ppm: u64 = laden.iter().map(|one| one.gives_ppm).sum();
    let work_ppm: u64 = laden.iter().map(|one| one.work_ppm).sum();
    let level = work_ppm.saturating_mul(1_000_000) / gives_ppm.max(1);
    let mut exchanges = Vec::new();
    // In each round the CPU that takes longest gets less to do.
    for _ in 0..laden.len() {
        let Some((takes, slot)) = longest(&laden) else { break };
        let Some((takes_then, one, other)) = best_exchange(&laden, &workers, slot) else { break };
        if takes_then >= takes || !above(takes, level, WORTHWHILE_PPM) {
            break;
        }
        let (from, to) = (workers[one].slot, workers[other].slot);
        let (most_ppm, least_ppm) = (workers[one].work_ppm, workers[other].work_ppm);
        let moved = |task: &Worker<'_, '_>, to: usize, partner_ppm| Move {
            task: task.task.id(),
            from: laden[task.slot].slot.cpu,
            to: laden[to].slot.cpu,
            reason: Reason::Uneven { work_ppm: task.work_ppm, partner_ppm },
        };
        exchanges.push(moved(&workers[one], to, least_ppm));
        exchanges.push(moved(&workers[other], from, most_ppm));
        for (worker, slot) in [(one, to), (other, from)] {
            (workers[worker].slot, workers[worker].has_moved) = (slot, true);
        }
        laden[from].work_ppm -= most_ppm - least_ppm;
        laden[to].work_ppm += most_ppm - least_ppm;
    }
    // Where two CPUs take as long, less work on one of them gains nothing.
    if longest(&laden).is_some_and(|(after, _)| above(before, after, WORTHWHILE_PPM)) {
        moves.append(&mut exchanges);
    }
}

/// The exchange of a task of CPU `slot` with one of less work elsewhere after which the two CPUs take
/// the least time, and how long that is.
fn best_exchange(
    laden: &[Laden<'_>],
    workers: &[Worker<'_, '_>],
    slot: usize,
) -> Option<(u64, usize, usize)> {
    let here = (0..workers.len()).filter(|one| workers[*one].slot == slot);
    let exchanges = here.flat_map(|one| (0..workers.len()).map(move |other| (one, other)));
    exchanges
        .filter(|(one, other)| {
            let (one, other) = (&workers[*one], &workers[*other]);
            one.slot != other.slot
                && one.work_ppm > other.work_ppm
                && one.may_go_to(laden[other.slot].slot)
                && other.may_go_to(laden[one.slot].slot)
        })
        .map(|(one, other)| {
            let more_ppm = workers[one].work_ppm - workers[other].work_ppm;
            let (here, there) = (&laden[slot], &laden[workers[other].slot]);
            let left = here.takes(here.work_ppm - more_ppm);
            (left.max(there.takes(there.work_ppm + more_ppm)), one, other)
        })
        .min()
}
