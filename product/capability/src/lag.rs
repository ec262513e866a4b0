//! The default policy: each task carries the work that it has received, in effective capability; the
//! task furthest behind changes places with a task that is ahead on a faster CPU.
//!
//! Four steps an interval. The first three move tasks, each as few as it can; the last one decides when
//! to look again:
//!
//! 1. *Room* (`lag/room.rs`): a task moves to another CPU when the program gets clearly more of
//!    the machine that way (a CPU shared with a hog is better than an idle half), or as much while
//!    the task gets clearly more. CPUs get unequal numbers of tasks when that equalises ECPT (3:1,
//!    not only 2:2).
//! 2. *Lag* (`lag/exchange.rs`): a task that is behind changes places with one that is ahead on a
//!    faster CPU, when the lag is worth the two moves.
//! 3. *Criticality* (`lag/critical.rs`): in phases that are too short for step 2, the task that the
//!    others wait for gets a faster CPU, once. In a split, tasks change places so that the work on each
//!    CPU is what the CPU is worth (`lag/even.rs`).
//! 4. *Interval*: the faster the lag grows, the nearer the end of a long phase (`lag/phases.rs`), and
//!    the shorter the phases (`lag/turns.rs`), the sooner the next look; at rest one second. Where tasks
//!    wait for each other too often for any move, looks become rare.
//!
//! Where less energy is preferred (`lag/efficient.rs`) and a program needs only some of the CPUs, it is
//! kept on those that need the least, and only step 2 moves tasks among them.
//!
//! Steps 1 and 2 look within a NUMA node first. On another node a task keeps less of its pace, so a move
//! there must gain so much more.
//!
//! All that a task received counts in its lead, also what it spent on spinning: in a phase, tasks that
//! received the same have done the same work, and time is counted exactly, while spinning is told from
//! work (`Seen`) by samples. A lag is made up for only within a phase (`lag/memory.rs`): when tasks have
//! waited and go on (a barrier), all start level. In phases too short to follow from barrier to barrier,
//! tasks that spin take turns (`lag/turns.rs`). A task that waits more often than it could be moved
//! gains nothing from steps 1 and 2: they leave it where it is, and it counts as load on its CPU. Where
//! at least half of the tasks are of that kind, step 2 exchanges none.
//!
//! A *split* (`is_split` in `lag/slots.rs`) is another matter: with more tasks than unequal CPUs, each
//! CPU gets as many as its capability is worth, and all of them are kept there (`Plan::pins`), also in
//! the shortest phases. It is made only where the waiting of tasks is seen: without that, its gain could
//! not be measured.

mod active;
mod barrier;
mod critical;
mod efficient;
mod even;
mod exchange;
mod loads;
mod memory;
mod parameters;
mod phases;
mod room;
mod sleeps;
mod slots;
mod spells;
mod turns;

pub(crate) use memory::{LagState, SMT_LOSS_PPM};
pub use parameters::{LagParameters, Preference};

use crate::plan::{Move, Plan, Reason};
use crate::snapshot::Snapshot;
use efficient::Gathering;
use slots::Deal;
pub(crate) use slots::above;

/// A lag may grow to this much in one interval: with two CPUs at 100 % and 50 % that is the
/// shortest interval.
const LAG_PER_INTERVAL_NS: u64 = 25_000_000;
/// Intervals in which an asymmetry must be seen before it is acted upon: small ones are often bursts
/// that are over at the next look.
pub(crate) const CONFIRMATIONS: u32 = 3;
/// An asymmetry of this many times the tolerance needs one interval less.
pub(crate) const LARGE_FACTOR: u64 = 3;
/// An asymmetry once acted upon counts as gone when it is below this share (in percent) of the
/// tolerance, or one at its edge would be found, confirmed and forgotten for ever.
pub(crate) const HYSTERESIS_PERCENT: u64 = 75;
/// While tasks wait for others on unequal CPUs, the next look is this many of the shortest intervals
/// away at most.
const SOON_INTERVALS: u64 = 2;
/// While a split is held in short phases, the next look is this many of the shortest intervals away at
/// most.
const HELD_INTERVALS: u64 = 4;

pub(crate) fn plan(snapshot: &Snapshot, state: &mut LagState) -> Plan {
    state.smooth(snapshot);
    let active = state.account(snapshot);
    let parameters = state.parameters;
    let tolerance_ppm = tolerance_ppm(state);
    let short = active.iter().filter(|task| task.phase_ns.is_some()).count();
    let is_long = short * 2 < active.len();
    // Where tasks sleep at the end of long phases, CPUs that have none left pull others that are free,
    // which evens out more than a split does: unless there are so many tasks for the sake of a split.
    let is_pulled = is_long && state.slept_lately() && !snapshot.seen.asked;
    let may_split = (state.sees_waiting() && !is_pulled).then_some(tolerance_ppm);
    let mut deal = Deal::new(state.cpus(), active, may_split);
    if let Some(gathering) = efficient::gather(&mut deal, &parameters) {
        return gathered(state, &deal, gathering, tolerance_ppm);
    }
    let spread = Spread::of(&deal, tolerance_ppm);
    let moves = room::make_room(&mut deal, &parameters);
    let (worst_cpu_ppm, best_cpu_ppm) = deal.worst_and_best_cpu_ppm();
    let is_even = !above(best_cpu_ppm, worst_cpu_ppm, tolerance_ppm);
    let is_level = is_even || state.nothing_waits();
    if let Some(reason) = why_at_rest(&deal, &moves, spread) {
        rest(state, is_level);
        return nothing(reason, state.interval_ns, spread.tasks_ppm);
    }
    if !confirm(state, spread, tolerance_ppm) {
        return nothing(spread.unconfirmed(), state.interval_ns, spread.tasks_ppm);
    }
    // The length of the next interval is not known yet.
    let (pins, reasons) = (Vec::new(), Vec::new());
    let room = Plan { moves, pins, reasons, interval_ns: 0, spread_ppm: spread.tasks_ppm };
    act(state, &deal, room, tolerance_ppm, Waits { is_level, is_long })
}

/// By how much CPUs may differ and still count as alike: by less, once an asymmetry was acted upon.
fn tolerance_ppm(state: &LagState) -> u64 {
    let tolerance_ppm = state.parameters.tolerance_ppm;
    if state.asymmetric_rounds >= CONFIRMATIONS {
        tolerance_ppm.saturating_mul(HYSTERESIS_PERCENT) / 100
    } else {
        tolerance_ppm
    }
}

/// How far the CPUs are apart before anything moves.
#[derive(Debug, Clone, Copy)]
struct Spread {
    /// Between the best and the worst CPU's rate per task.
    tasks_ppm: u64,
    /// What decides: the rates per task or, where there is a split, those of the CPUs.
    worst_ppm: u64,
    best_ppm: u64,
    /// They differ by more than the tolerance ...
    is_spread: bool,
    /// ... and did so in the latest interval, too.
    is_recent: bool,
}

impl Spread {
    fn of(deal: &Deal<'_>, tolerance_ppm: u64) -> Self {
        let (worst_ppm, best_ppm) = deal.worst_and_best_ppm();
        let tasks_ppm = best_ppm.saturating_sub(worst_ppm);
        // Whether a split is due depends on the CPUs alone, or the split that is held would undo itself.
        let (worst_ppm, best_ppm) =
            if deal.is_split { deal.worst_and_best_cpu_ppm() } else { (worst_ppm, best_ppm) };
        let is_spread = above(best_ppm, worst_ppm, tolerance_ppm);
        // What is smoothed keeps a burst for some intervals after it is gone.
        let (latest_worst_ppm, latest_best_ppm) = deal.latest_worst_and_best_ppm();
        let is_recent = !is_spread || above(latest_best_ppm, latest_worst_ppm, tolerance_ppm);
        Self { tasks_ppm, worst_ppm, best_ppm, is_spread, is_recent }
    }

    fn unconfirmed(self) -> Reason {
        Reason::Unconfirmed {
            spread_ppm: self.best_ppm.saturating_sub(self.worst_ppm),
            is_for_room: !self.is_spread,
        }
    }
}

/// Why nothing is to be done, if so. `moves` are those that make room.
fn why_at_rest(deal: &Deal<'_>, moves: &[Move], spread: Spread) -> Option<Reason> {
    if deal.slots.len() < 2 {
        Some(Reason::OneCpu)
    } else if deal.tasks.is_empty() {
        Some(Reason::NoActiveTask)
    } else if moves.is_empty() && !spread.is_spread {
        Some(Reason::Balanced { spread_ppm: spread.tasks_ppm })
    } else if deal.tasks.iter().all(|task| task.is_bound) {
        Some(Reason::Bound)
    } else {
        None
    }
}

/// Looks less often, where nothing is to be done.
fn rest(state: &mut LagState, is_level: bool) {
    state.interval_ns = calmer(state);
    if is_level {
        state.asymmetric_rounds = 0;
    } else {
        // Tasks that wait will soon be back, on CPUs that others have taken meanwhile.
        state.interval_ns = soon(state);
    }
}

/// Counts the intervals in which an asymmetry was seen: whether they are enough to act upon it.
fn confirm(state: &mut LagState, spread: Spread, tolerance_ppm: u64) -> bool {
    let Spread { worst_ppm, best_ppm, is_spread, is_recent, .. } = spread;
    if !is_recent && state.asymmetric_rounds < CONFIRMATIONS {
        // Gone again.
        state.asymmetric_rounds = 0;
        state.interval_ns = calmer(state);
        return false;
    }
    let is_large =
        !is_spread || above(best_ppm, worst_ppm, tolerance_ppm.saturating_mul(LARGE_FACTOR));
    state.asymmetric_rounds = state.asymmetric_rounds.saturating_add(1);
    if state.asymmetric_rounds < CONFIRMATIONS - u32::from(is_large) {
        // Look again soon: it decides whether to act.
        state.interval_ns = state.parameters.min_interval_ns;
        return false;
    }
    state.asymmetric_rounds = state.asymmetric_rounds.max(CONFIRMATIONS);
    true
}

/// How tasks wait for each other.
#[derive(Debug, Clone, Copy)]
struct Waits {
    /// CPUs are even, or no task waits.
    is_level: bool,
    /// Most tasks are in phases that moves can follow.
    is_long: bool,
}

/// The plan for an asymmetry that is confirmed, or for one that only makes room.
fn act(
    state: &mut LagState,
    deal: &Deal<'_>,
    mut plan: Plan,
    tolerance_ppm: u64,
    waits: Waits,
) -> Plan {
    // The lag that will grow, with every task where it will be.
    let (worst_ppm, best_ppm) = deal.worst_and_best_ppm();
    let grows_ppm = best_ppm.saturating_sub(worst_ppm);
    let calm_ns = calmer(state);
    state.interval_ns = as_urgent_as(grows_ppm, &state.parameters);
    match deal.phase_ns() {
        Some(phase_ns) => {
            plan.reasons.push(Reason::PhasesTooShort { phase_ns });
            if deal.is_split {
                even::change_places(deal, phase_ns, &mut plan.moves);
            } else {
                critical::change_places(deal, tolerance_ppm, &mut plan.moves);
            }
            if plan.moves.is_empty() {
                // Nothing will come of looking more often.
                state.interval_ns = calm_ns;
            }
        }
        None => make_up_for_lag(state, deal, tolerance_ppm, &mut plan),
    }
    if !waits.is_level {
        state.interval_ns = soon(state);
    }
    if deal.is_split {
        plan.pins = deal.pins(&plan.moves);
        plan.reasons.push(Reason::Held { spread_ppm: grows_ppm });
        state.interval_ns = held_interval_ns(state, &plan.moves, waits.is_long);
    }
    let is_by_load =
        |made: &Move| matches!(made.reason, Reason::Critical { .. } | Reason::Uneven { .. });
    if plan.moves.iter().any(is_by_load) {
        state.forget_loads();
    }
    Plan { interval_ns: state.interval_ns, ..plan }
}

/// In phases that moves can follow: exchanges tasks that are behind, and finds when to look again.
fn make_up_for_lag(state: &mut LagState, deal: &Deal<'_>, tolerance_ppm: u64, plan: &mut Plan) {
    let parameters = state.parameters;
    let min_interval_ns = parameters.min_interval_ns;
    state.interval_ns = state
        .turns
        .interval_ns(min_interval_ns)
        .unwrap_or_else(|| state.phases.towards_the_end(state.interval_ns, min_interval_ns));
    let next_ns = state.interval_ns;
    let exchange = exchange::Terms { parameters: &parameters, tolerance_ppm, next_ns };
    exchange.change_places(deal, &mut plan.moves, &mut plan.reasons);
    if let Some(interval_ns) = state.turns.swing_ns(&plan.moves, min_interval_ns) {
        state.interval_ns = interval_ns;
    }
    if plan.moves.is_empty() && plan.reasons.is_empty() && !deal.is_split {
        plan.reasons.push(Reason::Level { lag_ns: state.most_lag_ns() });
    }
}

/// The plan for tasks that are kept on the CPUs that need the least energy.
fn gathered(
    state: &mut LagState,
    deal: &Deal<'_>,
    gathering: Gathering,
    tolerance_ppm: u64,
) -> Plan {
    let Gathering { mut moves, kept } = gathering;
    let parameters = state.parameters;
    let used = deal.slots.iter().filter(|slot| slot.count > 0);
    let rates: Vec<u64> = used.map(|slot| slot.current_ppm()).collect();
    let worst_ppm = rates.iter().min().copied().unwrap_or(0);
    let best_ppm = rates.iter().max().copied().unwrap_or(0);
    let spread_ppm = best_ppm.saturating_sub(worst_ppm);
    let is_spread = above(best_ppm, worst_ppm, tolerance_ppm);
    let mut reasons = Vec::new();
    state.interval_ns = if moves.is_empty() { calmer(state) } else { parameters.min_interval_ns };
    if moves.is_empty() && is_spread && deal.phase_ns().is_none() {
        state.interval_ns = as_urgent_as(spread_ppm, &parameters);
        let next_ns = state.interval_ns;
        let exchange = exchange::Terms { parameters: &parameters, tolerance_ppm, next_ns };
        exchange.change_places(deal, &mut moves, &mut reasons);
    }
    reasons.push(Reason::Gathered { cpus: kept.len() as u32, spread_ppm });
    let mut pins = deal.pins(&moves);
    pins.retain(|pin| kept.contains(&pin.task));
    Plan { pins, moves, reasons, interval_ns: state.interval_ns, spread_ppm }
}

fn nothing(reason: Reason, interval_ns: u64, spread_ppm: u64) -> Plan {
    Plan { moves: vec![], pins: vec![], reasons: vec![reason], interval_ns, spread_ppm }
}

/// Length of the next interval when there is nothing to do.
fn calmer(state: &LagState) -> u64 {
    let LagParameters { min_interval_ns, max_interval_ns, .. } = state.parameters;
    state.interval_ns.saturating_mul(2).clamp(min_interval_ns, max_interval_ns)
}

/// Length of the next interval when rates differ by `spread_ppm`: the lag that grows in it is the
/// same at any spread, and large enough to pay for an exchange.
fn as_urgent_as(spread_ppm: u64, parameters: &LagParameters) -> u64 {
    let lag_ns = LAG_PER_INTERVAL_NS.max(parameters.worthwhile_ns());
    (lag_ns.saturating_mul(1_000_000) / spread_ppm.max(1))
        .clamp(parameters.min_interval_ns, parameters.max_interval_ns)
}

/// Length of the next interval while tasks wait for others that are still at work.
fn soon(state: &LagState) -> u64 {
    let LagParameters { min_interval_ns, max_interval_ns, .. } = state.parameters;
    state.interval_ns.min(min_interval_ns.saturating_mul(SOON_INTERVALS)).min(max_interval_ns)
}

/// Length of the next interval while a split is held: a change of it is verified as soon as possible,
/// and a CPU that runs out of tasks must not wait for long.
fn held_interval_ns(state: &LagState, moves: &[Move], is_long: bool) -> u64 {
    let LagParameters { min_interval_ns, max_interval_ns, .. } = state.parameters;
    if !moves.is_empty() {
        return min_interval_ns;
    }
    let intervals = if is_long { SOON_INTERVALS } else { HELD_INTERVALS };
    let most_ns = min_interval_ns.saturating_mul(intervals);
    state.interval_ns.clamp(min_interval_ns, most_ns.min(max_interval_ns))
}
