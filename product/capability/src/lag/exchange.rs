//! Step 2 of the `lag` policy: which tasks change places.
//!
//! The task furthest behind chooses first. It wants a partner that is both far ahead and on a much
//! faster CPU: by one interval on that CPU it makes up for `min(lead of the partner, what the
//! difference in rate is worth)`, so the largest of these wins. (The speed of the partner's CPU alone is
//! the wrong guide: two tasks that are both behind would ping-pong on the fastest CPU, while the tasks
//! that are ahead run further ahead.) Only a few of the furthest ahead and a few on the fastest CPUs are
//! looked at: otherwise the search would grow with the square of the number of tasks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::parameters::LagParameters;
use super::slots::{Deal, Dealt, above};
use crate::plan::{Move, Reason};

/// Lags below this are noise of the accounting.
const MIN_LAG_NS: u64 = 1_000_000;
/// A task must be behind by this share of what the lag grows by in an interval: 1/4.
const GROWTH_SHARE: u64 = 4;
/// Partners that are looked at, of the furthest ahead and of those on the fastest CPUs.
const MAX_PARTNERS: usize = 8;

/// What an exchange is measured against.
pub(super) struct Terms<'a> {
    pub(super) parameters: &'a LagParameters,
    pub(super) tolerance_ppm: u64,
    /// Length of the interval that begins.
    pub(super) next_ns: u64,
}

/// A task that may be moved, and the rate that it gets where it is.
struct Placed<'d, 'a> {
    task: &'d Dealt<'a>,
    cpu: u32,
    node: u32,
    ppm: u64,
}

/// What an exchange with a partner is worth to a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Offer {
    made_up_ns: u64,
    ppm: u64,
    partner: usize,
    lag_ns: u64,
    /// What both together lose in the interval because one or both leave their node.
    remote_ns: u64,
}

impl Terms<'_> {
    /// Lets the tasks that are behind change places with those that are ahead, the furthest behind
    /// first, as long as it is worth its cost.
    pub(super) fn change_places(
        &self,
        deal: &Deal<'_>,
        moves: &mut Vec<Move>,
        reasons: &mut Vec<Reason>,
    ) {
        let ppm: Vec<u64> = deal.slots.iter().map(|slot| slot.current_ppm()).collect();
        // The furthest behind first, as in the deal.
        let placed: Vec<Placed<'_, '_>> = deal
            .tasks
            .iter()
            .filter(|task| task.is_free())
            .filter_map(|task| {
                let slot = task.slot?;
                let at = &deal.slots[slot];
                // Its partner would not run there.
                (!at.is_starved).then_some(Placed {
                    task,
                    cpu: at.cpu,
                    node: at.node,
                    ppm: ppm[slot],
                })
            })
            .collect();
        let mut fastest: Vec<usize> = (0..placed.len()).collect();
        fastest.sort_unstable_by_key(|index| Reverse((placed[*index].ppm, *index)));
        let mut near = lines_by_node(&placed, &fastest);
        let mut fastest = Line::new(fastest);
        let mut furthest_ahead = Line::new((0..placed.len()).rev().collect());

        let cost_ns = self.parameters.exchange_cost_ns();
        let mut best_refused_ns = None;
        let mut taken = vec![false; placed.len()];
        for (index, behind) in placed.iter().enumerate() {
            if taken[index] || behind.task.waited {
                continue;
            }
            // Partners on the same node first: both stay near their memory then.
            let nearest = near.get_mut(&behind.node).and_then(|line| {
                let offers = line
                    .first(MAX_PARTNERS, &taken)
                    .filter_map(|partner| self.offer(behind, partner, &placed[partner]));
                offers.filter(|offer| self.is_worth(offer)).max()
            });
            // Each line ends where no later task is a partner any more.
            let by_speed = fastest
                .first(MAX_PARTNERS, &taken)
                .take_while(|partner| above(placed[*partner].ppm, behind.ppm, self.tolerance_ppm))
                .filter_map(|partner| self.offer(behind, partner, &placed[partner]))
                .max();
            let by_lead = furthest_ahead
                .first(MAX_PARTNERS, &taken)
                .take_while(|partner| placed[*partner].ahead_of_ns(behind) >= MIN_LAG_NS)
                .filter_map(|partner| self.offer(behind, partner, &placed[partner]))
                .max();
            let Some(offer) = nearest.or(by_speed.max(by_lead)) else { continue };
            if !self.is_worth(&offer) {
                best_refused_ns = best_refused_ns.max(Some(offer.gain_ns()));
                continue;
            }
            taken[index] = true;
            taken[offer.partner] = true;
            let ahead = &placed[offer.partner];
            let (lag_ns, from_ppm, to_ppm) = (offer.lag_ns, behind.ppm, ahead.ppm);
            moves.push(Move {
                task: behind.task.view.id,
                from: behind.cpu,
                to: ahead.cpu,
                reason: Reason::Behind { lag_ns, from_ppm, to_ppm },
            });
            moves.push(Move {
                task: ahead.task.view.id,
                from: ahead.cpu,
                to: behind.cpu,
                reason: Reason::Ahead { lead_ns: lag_ns, from_ppm: to_ppm, to_ppm: from_ppm },
            });
        }
        if let Some(gain_ns) = best_refused_ns {
            reasons.push(Reason::NotWorthIt { gain_ns, cost_ns });
        }
    }

    fn is_worth(&self, offer: &Offer) -> bool {
        offer.gain_ns() >= self.parameters.worthwhile_ns().saturating_add(offer.remote_ns)
    }

    fn offer(
        &self,
        behind: &Placed<'_, '_>,
        partner: usize,
        ahead: &Placed<'_, '_>,
    ) -> Option<Offer> {
        let lag_ns = ahead.ahead_of_ns(behind);
        let (now_ppm, then_ppm) = (self.rate_ppm(behind, behind), self.rate_ppm(behind, ahead));
        if lag_ns < MIN_LAG_NS || !above(then_ppm, now_ppm, self.tolerance_ppm) {
            return None;
        }
        let in_interval_ns = |ppm: u64| self.next_ns.saturating_mul(ppm) / 1_000_000;
        let grows_ns = in_interval_ns(then_ppm - now_ppm);
        let before_ppm = now_ppm + self.rate_ppm(ahead, ahead);
        let after_ppm = then_ppm + self.rate_ppm(ahead, behind);
        let remote_ns = in_interval_ns(before_ppm.saturating_sub(after_ppm));
        let counts = lag_ns >= grows_ns / GROWTH_SHARE;
        let fits = || behind.may_go_to(ahead.cpu) && ahead.may_go_to(behind.cpu);
        (counts && fits()).then(|| Offer {
            made_up_ns: lag_ns.min(grows_ns),
            ppm: ahead.ppm,
            partner,
            lag_ns,
            remote_ns,
        })
    }

    /// What a task gets in its own place or in that of another task.
    fn rate_ppm(&self, placed: &Placed<'_, '_>, place: &Placed<'_, '_>) -> u64 {
        if placed.task.is_remote_on(place.node) {
            self.parameters.remote_ppm(place.ppm)
        } else {
            place.ppm
        }
    }
}

impl Offer {
    /// The task that is behind makes up for so much, and its partner runs less far ahead by as much.
    fn gain_ns(&self) -> u64 {
        self.made_up_ns.saturating_mul(2)
    }
}

/// The tasks of each node, those on the fastest CPUs first; none where there is one node only.
fn lines_by_node(placed: &[Placed<'_, '_>], fastest: &[usize]) -> BTreeMap<u32, Line> {
    let mut orders: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for index in fastest {
        orders.entry(placed[*index].node).or_default().push(*index);
    }
    if orders.len() < 2 {
        return BTreeMap::new();
    }
    orders.into_iter().map(|(node, order)| (node, Line::new(order))).collect()
}

impl Placed<'_, '_> {
    fn ahead_of_ns(&self, other: &Self) -> u64 {
        self.task.lead_ns.saturating_sub(other.task.lead_ns).max(0).unsigned_abs()
    }

    fn may_go_to(&self, cpu: u32) -> bool {
        self.task.view.may_go_to(cpu)
    }
}

/// Partners in an order. Taken ones are skipped at once: otherwise, where a few at the front fit no
/// task, each search would walk over all taken ones behind them.
struct Line {
    order: Vec<usize>,
    /// For each place the first one from there that may be left.
    skip: Vec<usize>,
}

impl Line {
    fn new(order: Vec<usize>) -> Self {
        Self { skip: (0..=order.len()).collect(), order }
    }

    /// The first `count` that are not taken.
    fn first<'l>(
        &'l mut self,
        count: usize,
        taken: &'l [bool],
    ) -> impl Iterator<Item = usize> + use<'l> {
        let mut place = 0;
        std::iter::from_fn(move || {
            loop {
                place = self.left_from(place);
                let partner = *self.order.get(place)?;
                if !taken[partner] {
                    place += 1;
                    return Some(partner);
                }
                self.skip[place] = place + 1;
            }
        })
        .take(count)
    }

    fn left_from(&mut self, mut place: usize) -> usize {
        while self.skip[place] != place {
            // Halve the path for those that come after.
            self.skip[place] = self.skip[self.skip[place]];
            place = self.skip[place];
        }
        place
    }
}
