//! Step 1 of the `lag` policy: which tasks go to CPUs that have more to give.

use std::collections::{BTreeMap, BTreeSet};

use super::parameters::LagParameters;
use super::slots::{Deal, above};
use crate::plan::{Move, Reason};

/// A smaller change of the program's total is noise of the figures.
const TOTAL_NOISE_PPM: u64 = 20_000;
/// Destinations, and tasks of one CPU, that are tried where not every task may go everywhere.
const MAX_TRIES: usize = 8;

/// How much less or more the program gets of a CPU with a task less or more there (in units of the
/// noise: otherwise rounding would decide the order), the rate per task, and the CPU's index.
type Rank = (u64, u64, usize);

/// CPUs in the order in which they give and take.
struct Market<'d, 'a> {
    deal: &'d mut Deal<'a>,
    /// The CPU that loses the least gives first.
    givers: BTreeSet<Rank>,
    takers: Takers,
    /// The same by node; none where there is one node only.
    near: BTreeMap<u32, Takers>,
    parameters: &'d LagParameters,
}

/// CPUs that could take a task.
#[derive(Debug, Default)]
struct Takers {
    /// The CPU that wins the most in all takes first ...
    by_gain: BTreeSet<Rank>,
    /// ... or, where nothing can be won in all, the one that gives the most to the task.
    by_rate: BTreeSet<(u64, usize)>,
}

impl Takers {
    fn enter(&mut self, taker: Rank) {
        self.by_gain.insert(taker);
        self.by_rate.insert((taker.1, taker.2));
    }

    fn leave(&mut self, taker: Rank) {
        self.by_gain.remove(&taker);
        self.by_rate.remove(&(taker.1, taker.2));
    }

    /// The best few.
    fn best(&self) -> impl Iterator<Item = usize> {
        let by_gain = self.by_gain.iter().rev().take(MAX_TRIES).map(|(_, _, to)| *to);
        by_gain.chain(self.by_rate.iter().rev().take(MAX_TRIES).map(|(_, to)| *to))
    }
}

/// One possible move.
struct Offer {
    to: usize,
    to_ppm: u64,
    task: usize,
}

/// A task goes to another CPU when the program as a whole gets clearly more that way (step 2 then
/// shares it fairly), or as much while the task itself gets clearly more. A task moves at most once.
pub(super) fn make_room(deal: &mut Deal<'_>, parameters: &LagParameters) -> Vec<Move> {
    let nodes: BTreeSet<u32> = deal.slots.iter().map(|slot| slot.node).collect();
    let near = nodes.into_iter().map(|node| (node, Takers::default()));
    let near: BTreeMap<u32, Takers> = near.collect();
    let near = if near.len() < 2 { BTreeMap::new() } else { near };
    let mut market =
        Market { deal, givers: BTreeSet::new(), takers: Takers::default(), near, parameters };
    for index in 0..market.deal.slots.len() {
        market.enter(index);
    }
    let mut moves: Vec<Move> = Vec::new();
    while let Some((_, from_ppm, from)) = market.givers.pop_first() {
        let Some(Offer { to, to_ppm, task }) = market.best_offer(from) else { continue };
        let changed = market.changed_by(from, to);
        changed.iter().for_each(|slot| market.leave(*slot));
        market.deal.put(task, from, to);
        changed.iter().for_each(|slot| market.enter(*slot));
        moves.push(Move {
            task: market.deal.tasks[task].id(),
            from: market.deal.slots[from].cpu,
            to: market.deal.slots[to].cpu,
            reason: Reason::MoreRoom { from_ppm, to_ppm },
        });
    }
    moves
}

impl Market<'_, '_> {
    /// Both ends of a move, and the CPUs that share a core with them.
    fn changed_by(&self, from: usize, to: usize) -> BTreeSet<usize> {
        let siblings = [from, to].into_iter().flat_map(|end| &self.deal.slots[end].siblings);
        siblings.copied().chain([from, to]).collect()
    }

    fn giver(&self, index: usize) -> Rank {
        let slot = &self.deal.slots[index];
        (self.loss_ppm(index) / TOTAL_NOISE_PPM, slot.rate_ppm(slot.count), index)
    }

    fn taker(&self, index: usize) -> Rank {
        let slot = &self.deal.slots[index];
        (self.gain_ppm(index) / TOTAL_NOISE_PPM, slot.rate_ppm(slot.count + 1), index)
    }

    /// What the program would lose without one of its tasks there.
    fn loss_ppm(&self, index: usize) -> u64 {
        let slot = &self.deal.slots[index];
        slot.total_ppm(slot.count).saturating_sub(slot.total_ppm(slot.count.saturating_sub(1)))
    }

    /// What the program would win with one more task there.
    fn gain_ppm(&self, index: usize) -> u64 {
        let slot = &self.deal.slots[index];
        slot.total_ppm(slot.count + 1).saturating_sub(slot.total_ppm(slot.count))
    }

    fn enter(&mut self, index: usize) {
        if !self.deal.slots[index].free.is_empty() {
            self.givers.insert(self.giver(index));
        }
        let taker = self.taker(index);
        self.takers.enter(taker);
        if let Some(near) = self.near.get_mut(&self.deal.slots[index].node) {
            near.enter(taker);
        }
    }

    fn leave(&mut self, index: usize) {
        self.givers.remove(&self.giver(index));
        let taker = self.taker(index);
        self.takers.leave(taker);
        if let Some(near) = self.near.get_mut(&self.deal.slots[index].node) {
            near.leave(taker);
        }
    }

    /// On the same node first. Most tasks may go anywhere: the first taker fits. A few restricted
    /// ones must not make the search long.
    fn best_offer(&self, from: usize) -> Option<Offer> {
        let near = self.near.get(&self.deal.slots[from].node).into_iter().flat_map(Takers::best);
        let all = near.chain(self.takers.best());
        all.filter(|to| self.pays(from, *to)).find_map(|to| self.offer(from, to))
    }

    fn pays(&self, from: usize, to: usize) -> bool {
        let (giver, taker) = (&self.deal.slots[from], &self.deal.slots[to]);
        if from == to || taker.is_starved {
            return false;
        }
        let tolerance_ppm = self.parameters.tolerance_ppm;
        // Which task goes is not known yet: most tasks are at home where they are.
        let there = |ppm: u64| {
            if giver.node == taker.node { ppm } else { self.parameters.remote_ppm(ppm) }
        };
        let (loss_ppm, gain_ppm) = (self.loss_ppm(from), there(self.gain_ppm(to)));
        let from_ppm = giver.rate_ppm(giver.count);
        let to_ppm = there(taker.rate_ppm(taker.count + 1));
        // A CPU that was not used at all is always worth a task. On one that is used already, such as
        // between hogs, the task must not get clearly less than before: the kernel would undo that
        // imbalance at once.
        let holds = taker.count == 0 || !above(from_ppm, to_ppm, tolerance_ppm);
        let noise_ppm = TOTAL_NOISE_PPM.min(tolerance_ppm);
        (gain_ppm > loss_ppm.saturating_add(tolerance_ppm) && holds)
            || (gain_ppm + noise_ppm >= loss_ppm && above(to_ppm, from_ppm, tolerance_ppm))
    }

    /// The task to move: the one furthest behind, or the one furthest ahead when it gets less than
    /// it had.
    fn offer(&self, from: usize, to: usize) -> Option<Offer> {
        let (giver, taker) = (&self.deal.slots[from], &self.deal.slots[to]);
        let to_ppm = taker.rate_ppm(taker.count + 1);
        let fits = |task: &&usize| self.deal.tasks[**task].view.may_go_to(taker.cpu);
        let task = if to_ppm < giver.rate_ppm(giver.count) {
            giver.free.iter().take(MAX_TRIES).find(fits)
        } else {
            giver.free.iter().rev().take(MAX_TRIES).find(fits)
        };
        task.map(|task| Offer { to, to_ppm, task: *task })
    }
}
