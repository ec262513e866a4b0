//! The default policy: every task carries the effective capability it has received; the one
//! furthest behind gets the most capable CPU next.
//!
//! Three steps an interval, each of which moves as little as it can:
//!
//! 1. *Room*: a task moves to another CPU when the program gets clearly more of the machine that way
//!    (a CPU shared with a hog is better than an idle half), or as much while the task gets clearly
//!    more. CPUs get unequal numbers of tasks when that equalises ECPT (3:1, not only 2:2).
//! 2. *Lag*: a task that is behind changes places with one that is ahead on a faster CPU, when the
//!    lag is worth the two moves.
//! 3. *Interval*: the faster the lag grows, the sooner the next look; at rest one second.
//!
//! A lag is made up for only within a phase: when tasks have slept and wake again (a barrier), all
//! start level. Where tasks wait for each other more often than an interval, nothing can be gained
//! by moving them, and nothing is done.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::{Move, Plan, Reason};
use crate::snapshot::{Snapshot, TaskId, TaskView};

/// What can be tuned. Every default is from measurements on the host (docs/benchmarks.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LagParameters {
    /// Shortest interval.
    pub min_interval_ns: u64,
    /// Longest interval, used at rest.
    pub max_interval_ns: u64,
    /// Differences in rate below this do not count as asymmetry, in parts per million.
    pub tolerance_ppm: u64,
    /// What one move costs the task that is moved.
    pub move_cost_ns: u64,
}

impl Default for LagParameters {
    fn default() -> Self {
        Self {
            min_interval_ns: 50_000_000,
            max_interval_ns: 1_000_000_000,
            tolerance_ppm: 60_000,
            move_cost_ns: 100_000,
        }
    }
}

impl LagParameters {
    /// The same for figures that come in clock ticks: intervals long enough, and differences large
    /// enough, to mean something at 10 ms a tick.
    pub fn for_ticks(&self) -> Self {
        Self {
            min_interval_ns: self.min_interval_ns.max(400_000_000),
            max_interval_ns: self.max_interval_ns.max(400_000_000),
            tolerance_ppm: self.tolerance_ppm.max(120_000),
            ..*self
        }
    }

    /// A fixed interval instead of the dynamic one.
    pub fn fixed(interval_ns: u64) -> Self {
        Self { min_interval_ns: interval_ns, max_interval_ns: interval_ns, ..Self::default() }
    }
}

/// A lag may grow to this much in one interval: with two CPUs at 100 % and 50 % that is the
/// shortest interval.
const LAG_PER_INTERVAL_NS: u64 = 25_000_000;
/// A predicted gain must be this many times the cost.
const GAIN_FACTOR: u64 = 4;
/// Lags below this are noise of the accounting.
const MIN_LAG_NS: u64 = 1_000_000;
/// Rounds in which an asymmetry must be seen before it is acted upon.
const CONFIRMATIONS: u32 = 2;
/// Share of the interval that a task must want a CPU to count as a compute task: 1/10.
const ACTIVE_SHARE: u64 = 10;
/// Share of the interval that a task must sleep to have waited for others: 1/4.
const SLEEP_SHARE: u64 = 4;
/// A change of what the program gets in all that is lost in the noise of the figures.
const TOTAL_NOISE_PPM: u64 = 20_000;
/// Destinations that are tried for a task that may not go everywhere.
const MAX_TAKERS: usize = 8;
/// A phase must last this many intervals to be worth balancing in.
const MIN_PHASE_INTERVALS: u64 = 2;

#[derive(Debug, Clone)]
pub(crate) struct LagState {
    parameters: LagParameters,
    /// Smoothed figures of each CPU.
    cpus: BTreeMap<u32, CpuMemory>,
    tasks: BTreeMap<TaskId, TaskMemory>,
    interval_ns: u64,
    asymmetric_rounds: u32,
}

#[derive(Debug, Clone, Copy)]
struct CpuMemory {
    /// Share of the fastest CPU undisturbed that is there for fair-class tasks.
    effective_ppm: u64,
    foreign_milli: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct TaskMemory {
    /// Effective capability received in this phase.
    received_ns: u64,
    /// Slept for a good part of the last interval.
    slept: bool,
}

impl LagState {
    pub(crate) fn new(parameters: LagParameters) -> Self {
        Self {
            parameters,
            cpus: BTreeMap::new(),
            tasks: BTreeMap::new(),
            interval_ns: parameters.min_interval_ns,
            asymmetric_rounds: 0,
        }
    }

    pub(crate) fn first_interval_ns(&self) -> u64 {
        self.parameters.min_interval_ns
    }

    pub(crate) fn lags_ns(&self) -> BTreeMap<TaskId, u64> {
        let most = self.tasks.values().map(|task| task.received_ns).max().unwrap_or(0);
        self.tasks.iter().map(|(id, task)| (*id, most - task.received_ns)).collect()
    }

    fn smooth(&mut self, snapshot: &Snapshot) {
        let seen: BTreeSet<u32> = snapshot.cpus.iter().map(|view| view.cpu).collect();
        self.cpus.retain(|cpu, _| seen.contains(cpu));
        for view in &snapshot.cpus {
            let effective_ns = view.effective_ns(snapshot.interval_ns);
            let effective_ppm =
                (u128::from(effective_ns) * 1_000_000 / u128::from(snapshot.interval_ns)) as u64;
            let foreign_milli = u64::from(view.foreign_milli);
            self.cpus
                .entry(view.cpu)
                .and_modify(|memory| {
                    memory.effective_ppm = (memory.effective_ppm + effective_ppm) / 2;
                    memory.foreign_milli = (memory.foreign_milli + foreign_milli) / 2;
                })
                .or_insert(CpuMemory { effective_ppm, foreign_milli });
        }
    }

    /// Adds what each task received, and starts a new phase where one has begun. Returns the mean
    /// time from one wait to the next when that is too short to balance in.
    fn account(&mut self, snapshot: &Snapshot) -> Option<u64> {
        let mut tasks = BTreeMap::new();
        let mut new_phase = false;
        let mut phase_ns = u64::MAX;
        let most = self.tasks.values().map(|task| task.received_ns).max().unwrap_or(0);
        for view in snapshot.tasks.iter().filter(|view| is_active(view, snapshot.interval_ns)) {
            let sleep_ns = snapshot.interval_ns.saturating_sub(view.demand_ns());
            let slept = sleep_ns * SLEEP_SHARE >= snapshot.interval_ns;
            let mut memory = match self.tasks.get(&view.id) {
                Some(memory) => *memory,
                // A newcomer starts level with the most advanced: it has missed nothing.
                None => TaskMemory { received_ns: most, slept: false },
            };
            new_phase |= memory.slept && !slept;
            memory.slept = slept;
            memory.received_ns += view.received_ns;
            tasks.insert(view.id, memory);
            if slept && view.switches > 0 {
                phase_ns = phase_ns.min(snapshot.interval_ns / u64::from(view.switches));
            }
        }
        // Whoever sleeps waits for the others, not they for him: he is not behind.
        let most = tasks.values().map(|task: &TaskMemory| task.received_ns).max().unwrap_or(0);
        let least = tasks.values().map(|task| task.received_ns).min().unwrap_or(0);
        for memory in tasks.values_mut() {
            if new_phase {
                memory.received_ns = 0;
            } else if memory.slept {
                memory.received_ns = most;
            }
            // Only differences matter; keeping them small keeps the sums from growing for ever.
            memory.received_ns =
                memory.received_ns.saturating_sub(if new_phase { 0 } else { least });
        }
        self.tasks = tasks;
        (phase_ns < snapshot.interval_ns / MIN_PHASE_INTERVALS).then_some(phase_ns)
    }

    fn next_interval(&self, spread_ppm: u64, calm: bool) -> u64 {
        let LagParameters { min_interval_ns, max_interval_ns, .. } = self.parameters;
        let wanted_ns = if calm {
            self.interval_ns.saturating_mul(2)
        } else {
            LAG_PER_INTERVAL_NS * 1_000_000 / spread_ppm.max(1)
        };
        wanted_ns.clamp(min_interval_ns, max_interval_ns)
    }
}

/// A compute task: it wants a CPU now, or wanted one for nearly the whole interval.
fn is_active(task: &TaskView, interval_ns: u64) -> bool {
    let demand_ns = task.demand_ns();
    demand_ns * ACTIVE_SHARE >= interval_ns && (task.runnable || demand_ns * 4 >= interval_ns * 3)
}

/// A CPU while tasks are dealt out.
struct Slot<'a> {
    cpu: u32,
    memory: CpuMemory,
    tasks: Vec<&'a TaskView>,
}

impl Slot<'_> {
    /// What each task gets when there are `tasks` of the program here.
    fn rate_ppm(&self, tasks: usize) -> u64 {
        self.memory.effective_ppm * 1000 / (tasks as u64 * 1000 + self.memory.foreign_milli).max(1)
    }

    /// What the program gets of this CPU with `tasks` tasks here.
    fn total_ppm(&self, tasks: usize) -> u64 {
        self.rate_ppm(tasks) * tasks as u64
    }

    /// What the program would lose without one of its tasks here, and what each gets now: who
    /// loses the least gives first.
    fn giving(&self, index: usize) -> (u64, u64, usize) {
        let tasks = self.tasks.len();
        let loss = self.total_ppm(tasks).saturating_sub(self.total_ppm(tasks.saturating_sub(1)));
        (loss, self.rate_ppm(tasks), index)
    }

    /// What the program would win with one more task here, and what each would get: who wins the
    /// most takes first.
    fn taking(&self, index: usize) -> (u64, u64, usize) {
        let tasks = self.tasks.len();
        let gain = self.total_ppm(tasks + 1).saturating_sub(self.total_ppm(tasks));
        (gain, self.rate_ppm(tasks + 1), index)
    }

    /// What a task here gets; of a CPU without tasks, what a first one would get.
    fn current_ppm(&self) -> u64 {
        self.rate_ppm(self.tasks.len().max(1))
    }
}

pub(crate) fn plan(snapshot: &Snapshot, state: &mut LagState) -> Plan {
    state.smooth(snapshot);
    let too_short_ns = state.account(snapshot);
    let mut slots = slots(snapshot, state);
    let spread_ppm = spread_ppm(&slots);
    let is_active = slots.iter().any(|slot| !slot.tasks.is_empty());
    let mut moves = make_room(&mut slots, state);

    let rest = if slots.len() < 2 {
        Some(Reason::OneCpu)
    } else if !is_active {
        Some(Reason::NoActiveTask)
    } else if moves.is_empty() && spread_ppm <= state.parameters.tolerance_ppm {
        Some(Reason::Balanced { spread_ppm })
    } else {
        None
    };
    if let Some(reason) = rest {
        state.asymmetric_rounds = 0;
        state.interval_ns = state.next_interval(spread_ppm, true);
        return nothing(reason, state, spread_ppm);
    }

    state.asymmetric_rounds = state.asymmetric_rounds.saturating_add(1);
    state.interval_ns = state.next_interval(spread_ppm, false);
    if state.asymmetric_rounds < CONFIRMATIONS {
        // Look again soon: it decides whether to act.
        state.interval_ns = state.parameters.min_interval_ns;
        return nothing(Reason::Unconfirmed { spread_ppm }, state, spread_ppm);
    }
    if let Some(phase_ns) = too_short_ns {
        return nothing(Reason::PhasesTooShort { phase_ns }, state, spread_ppm);
    }

    let mut reasons = Vec::new();
    change_places(&slots, state, &mut moves, &mut reasons);
    if moves.is_empty() && reasons.is_empty() {
        let lag_ns = state.lags_ns().into_values().max().unwrap_or(0);
        reasons.push(Reason::Level { lag_ns });
    }
    Plan { moves, reasons, interval_ns: state.interval_ns, spread_ppm }
}

fn nothing(reason: Reason, state: &LagState, spread_ppm: u64) -> Plan {
    Plan { moves: vec![], reasons: vec![reason], interval_ns: state.interval_ns, spread_ppm }
}

fn slots<'a>(snapshot: &'a Snapshot, state: &LagState) -> Vec<Slot<'a>> {
    let mut slots: BTreeMap<u32, Slot<'a>> = state
        .cpus
        .iter()
        .map(|(cpu, memory)| (*cpu, Slot { cpu: *cpu, memory: *memory, tasks: Vec::new() }))
        .collect();
    for task in &snapshot.tasks {
        if let (true, Some(slot)) = (state.tasks.contains_key(&task.id), slots.get_mut(&task.cpu)) {
            slot.tasks.push(task);
        }
    }
    slots.into_values().collect()
}

/// How unequal the rates are that tasks get or could get: an idle CPU counts with what it has to
/// give to one more task.
fn spread_ppm(slots: &[Slot<'_>]) -> u64 {
    let busy = || slots.iter().filter(|slot| !slot.tasks.is_empty());
    let worst = busy().map(Slot::current_ppm).min().unwrap_or(0);
    slots.iter().map(Slot::current_ppm).max().unwrap_or(0).saturating_sub(worst)
}

/// Step 1: a task goes to another CPU when the program as a whole gets clearly more that way
/// (step 2 then shares it fairly), or as much while the task itself gets clearly more. A task moves
/// at most once.
fn make_room(slots: &mut [Slot<'_>], state: &LagState) -> Vec<Move> {
    let tolerance_ppm = state.parameters.tolerance_ppm;
    let mut moves: Vec<Move> = Vec::new();
    let mut moved: BTreeSet<TaskId> = BTreeSet::new();
    let mut givers: BTreeSet<(u64, u64, usize)> = BTreeSet::new();
    let mut takers: BTreeSet<(u64, u64, usize)> = BTreeSet::new();
    for (index, slot) in slots.iter().enumerate() {
        if !slot.tasks.is_empty() {
            givers.insert(slot.giving(index));
        }
        takers.insert(slot.taking(index));
    }
    while let Some((loss_ppm, from_ppm, from)) = givers.pop_first() {
        let pays = |gain_ppm: u64, to_ppm: u64| {
            gain_ppm > loss_ppm + tolerance_ppm
                || gain_ppm + TOTAL_NOISE_PPM >= loss_ppm
                    && to_ppm > from_ppm + from_ppm / 10 + tolerance_ppm / 2
        };
        // Most tasks may go anywhere: the first taker fits. A few restricted ones must not make
        // the search long.
        let fit = takers
            .iter()
            .rev()
            .take(MAX_TAKERS)
            .filter(|(gain_ppm, to_ppm, to)| *to != from && pays(*gain_ppm, *to_ppm))
            .find_map(|(_, to_ppm, to)| {
                let task = furthest_behind(&slots[from], slots[*to].cpu, state, &moved)?;
                Some((*to_ppm, *to, task))
            });
        let Some((to_ppm, to, task)) = fit else { continue };
        for index in [from, to] {
            givers.remove(&slots[index].giving(index));
            takers.remove(&slots[index].taking(index));
        }
        slots[from].tasks.retain(|other| other.id != task.id);
        slots[to].tasks.push(task);
        for index in [from, to] {
            if !slots[index].tasks.is_empty() {
                givers.insert(slots[index].giving(index));
            }
            takers.insert(slots[index].taking(index));
        }
        moved.insert(task.id);
        moves.push(Move {
            task: task.id,
            from: slots[from].cpu,
            to: slots[to].cpu,
            reason: Reason::MoreRoom { from_ppm, to_ppm },
        });
    }
    moves
}

fn furthest_behind<'a>(
    slot: &Slot<'a>,
    to: u32,
    state: &LagState,
    moved: &BTreeSet<TaskId>,
) -> Option<&'a TaskView> {
    slot.tasks
        .iter()
        .filter(|task| !moved.contains(&task.id) && task.may_go_to(to))
        .min_by_key(|task| (state.tasks.get(&task.id).map(|memory| memory.received_ns), task.id))
        .copied()
}

/// Step 2: pairs the task furthest behind with the one on the fastest CPU that is ahead of it, and
/// so on, as long as the exchange is worth its cost.
fn change_places(
    slots: &[Slot<'_>],
    state: &LagState,
    moves: &mut Vec<Move>,
    reasons: &mut Vec<Reason>,
) {
    struct Placed<'a> {
        task: &'a TaskView,
        received_ns: u64,
        cpu: u32,
        ppm: u64,
    }
    let moved: BTreeSet<TaskId> = moves.iter().map(|made| made.task).collect();
    let mut placed: Vec<Placed<'_>> = slots
        .iter()
        .flat_map(|slot| slot.tasks.iter().map(move |task| (slot, task)))
        .filter(|(_, task)| !task.fixed && !moved.contains(&task.id))
        .filter_map(|(slot, task)| {
            let received_ns = state.tasks.get(&task.id)?.received_ns;
            Some(Placed { task, received_ns, cpu: slot.cpu, ppm: slot.current_ppm() })
        })
        .collect();
    placed.sort_by_key(|placed| (placed.received_ns, placed.task.id));
    let mut fastest: Vec<usize> = (0..placed.len()).collect();
    fastest.sort_by_key(|index| std::cmp::Reverse((placed[*index].ppm, *index)));

    let cost_ns = 2 * state.parameters.move_cost_ns;
    let mut taken = vec![false; placed.len()];
    let mut partners = fastest.into_iter().peekable();
    for (index, behind) in placed.iter().enumerate() {
        if taken[index] {
            continue;
        }
        while let Some(partner) = partners.peek().copied() {
            let ahead = &placed[partner];
            if ahead.ppm <= behind.ppm + state.parameters.tolerance_ppm {
                // No faster CPU is left for this one; for others there may be.
                break;
            }
            let lag_ns = ahead.received_ns.saturating_sub(behind.received_ns);
            let grows_ns = (ahead.ppm - behind.ppm) * state.interval_ns / 1_000_000;
            let gain_ns = 2 * lag_ns.min(grows_ns);
            let fits =
                behind.task.allowed.contains(ahead.cpu) && ahead.task.allowed.contains(behind.cpu);
            if taken[partner] || !fits || lag_ns < MIN_LAG_NS.max(grows_ns / 4) {
                // Itself behind, or not to be had: whoever is next on a fast CPU.
                partners.next();
                continue;
            }
            if gain_ns < GAIN_FACTOR * cost_ns {
                reasons.push(Reason::NotWorthIt { gain_ns, cost_ns });
                return;
            }
            partners.next();
            taken[index] = true;
            taken[partner] = true;
            let (from_ppm, to_ppm) = (behind.ppm, ahead.ppm);
            moves.push(Move {
                task: behind.task.id,
                from: behind.cpu,
                to: ahead.cpu,
                reason: Reason::Behind { lag_ns, from_ppm, to_ppm },
            });
            moves.push(Move {
                task: ahead.task.id,
                from: ahead.cpu,
                to: behind.cpu,
                reason: Reason::Ahead { lead_ns: lag_ns, from_ppm: to_ppm, to_ppm: from_ppm },
            });
            break;
        }
    }
}
