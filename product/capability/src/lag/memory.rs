//! What the `lag` policy remembers: smoothed figures of each CPU, and how far each task is ahead of
//! the middle of the program, in effective capability received in this phase.
//!
//! The middle, and neither the first nor the last: a task that can never be helped (bound to a slow
//! CPU) or held back (bound to a fast one) runs away from the others for ever, and whatever is
//! measured against it becomes meaningless.

use std::collections::BTreeMap;

use super::active::{Active, TaskMemory};
use super::barrier::{Woken, begin_expected_phase, begin_phase, counted_ago_ns};
use super::loads::{Beat, Load, Looks};
use super::parameters::LagParameters;
use super::phases::Phases;
use super::spells::{self, Spells};
use super::turns::Turns;
use crate::figures::part;
use crate::snapshot::{Snapshot, TaskId, TaskView};

/// Share of the interval that a task must sleep or spin to have waited for others: 1/4.
const WAIT_SHARE: u64 = 4;
/// Share of the interval that a task must sleep to have paused at all: 1/50.
const PAUSE_SHARE: u64 = 50;
/// A phase must last this many of the shortest intervals to be worth balancing in.
const MIN_PHASE_INTERVALS: u64 = 2;
/// Times that a newcomer must have slept in an interval, if it sleeps at its end.
const MIN_SLEEPS: u32 = 2;
/// A task that slept for long is remembered for this time.
const SLEPT_NS: u64 = 5_000_000_000;
const ALL_PPM: u64 = 1_000_000;
/// What an SMT sibling that is busy takes of a CPU's pace: two together get about 1.2 cores' worth.
pub(crate) const SMT_LOSS_PPM: u64 = 400_000;
/// A lead or lag of ten seconds says all: beyond that it is only history.
const MAX_LEAD_NS: i64 = 10_000_000_000;

/// All that the policy carries from interval to interval.
#[derive(Debug, Clone)]
pub(crate) struct LagState {
    pub(super) parameters: LagParameters,
    /// By CPU number.
    cpus: Vec<CpuMemory>,
    /// By task.
    tasks: Vec<(TaskId, TaskMemory)>,
    /// The same for tasks that wait for others all the time, where waiting is seen.
    waiting: Vec<(TaskId, TaskMemory)>,
    pub(super) interval_ns: u64,
    pub(super) asymmetric_rounds: u32,
    pub(super) phases: Phases,
    beat: Beat,
    /// Spinning could be told from work in the last interval.
    sees_spinning: bool,
    /// Time since a compute task last slept for long; none: none did.
    slept_since_ns: Option<u64>,
    /// Time since most tasks slept often and for long; none: they did not.
    waited_often_since_ns: Option<u64>,
    pub(super) turns: Turns,
    /// Time since the last barrier at which the tasks began level; none before the first one.
    level_since_ns: Option<u64>,
}

/// Figures of a CPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuMemory {
    pub(super) cpu: u32,
    pub(super) core: u32,
    pub(super) node: u32,
    pub(super) energy_rank: Option<u32>,
    /// Real-time tasks had it in the last interval.
    pub(super) is_starved: bool,
    /// What was left of its pace in the last interval while SMT siblings were busy.
    pace_ppm: u64,
    /// Its supply in the last interval alone.
    pub(super) latest: Supply,
    /// Its supply, smoothed over some intervals.
    pub(super) smoothed: Supply,
}

/// What there is of a CPU for the program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Supply {
    /// Share of the fastest CPU undisturbed that is there for fair-class tasks.
    pub(super) effective_ppm: u64,
    /// Tasks of other programs, in thousandths.
    pub(super) foreign_milli: u64,
}

impl Supply {
    fn middle(self, other: Self) -> Self {
        Self {
            effective_ppm: (self.effective_ppm + other.effective_ppm) / 2,
            foreign_milli: (self.foreign_milli + other.foreign_milli) / 2,
        }
    }
}

impl LagState {
    pub(crate) fn new(parameters: LagParameters) -> Self {
        // The clock stands still in an interval of nothing, and a range must not be empty.
        let min_interval_ns = parameters.min_interval_ns.max(1);
        let max_interval_ns = parameters.max_interval_ns.max(min_interval_ns);
        Self {
            parameters: LagParameters {
                min_interval_ns,
                max_interval_ns,
                // No rate is above another by more than the whole.
                tolerance_ppm: parameters.tolerance_ppm.min(1_000_000),
                remote_loss_ppm: parameters.remote_loss_ppm.min(1_000_000),
                ..parameters
            },
            cpus: Vec::new(),
            tasks: Vec::new(),
            waiting: Vec::new(),
            interval_ns: min_interval_ns,
            asymmetric_rounds: 0,
            phases: Phases::default(),
            beat: Beat::default(),
            sees_spinning: false,
            slept_since_ns: None,
            waited_often_since_ns: None,
            turns: Turns::default(),
            level_since_ns: None,
        }
    }

    pub(crate) fn first_interval_ns(&self) -> u64 {
        self.parameters.min_interval_ns
    }

    pub(crate) fn lags_ns(&self) -> BTreeMap<TaskId, u64> {
        let most = self.most_ns();
        self.tasks.iter().map(|(id, task)| (*id, most.abs_diff(task.lead_ns))).collect()
    }

    pub(super) fn most_lag_ns(&self) -> u64 {
        let least = self.tasks.iter().map(|(_, task)| task.lead_ns).min().unwrap_or(0);
        self.most_ns().abs_diff(least)
    }

    fn most_ns(&self) -> i64 {
        self.tasks.iter().map(|(_, task)| task.lead_ns).max().unwrap_or(0)
    }

    pub(super) fn cpus(&self) -> &[CpuMemory] {
        &self.cpus
    }

    /// None of a CPU that the program may not use.
    fn cpu(&self, cpu: u32) -> Option<&CpuMemory> {
        let place = self.cpus.binary_search_by_key(&cpu, |memory| memory.cpu).ok()?;
        self.cpus.get(place)
    }

    fn node_of(&self, cpu: u32) -> Option<u32> {
        self.cpu(cpu).map(|memory| memory.node)
    }

    fn pace_ppm_of(&self, cpu: u32) -> u64 {
        self.cpu(cpu).map_or(ALL_PPM, |memory| memory.pace_ppm)
    }

    /// Whether anything can be seen of how the tasks wait, besides their sleep.
    pub(super) fn sees_waiting(&self) -> bool {
        self.sees_spinning || self.beat.is_seen()
    }

    /// Whether no compute task waits for others all the time, as far as waiting is seen.
    pub(super) fn nothing_waits(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a compute task slept for long a short time ago.
    pub(super) fn slept_lately(&self) -> bool {
        self.slept_since_ns.is_some_and(|since_ns| since_ns < SLEPT_NS)
    }

    /// Whether the tasks waited for each other too often a short time ago. The one with the most work,
    /// or one that has the CPU that suits its work, sleeps as often, but for a moment.
    fn waited_often_lately(&self) -> bool {
        self.waited_often_since_ns.is_some_and(|since_ns| since_ns < SLEPT_NS)
    }

    /// Forgets how much each task works: some have other CPUs from now on.
    pub(super) fn forget_loads(&mut self) {
        self.tasks.iter_mut().for_each(|(_, task)| task.load.forget());
    }

    /// Takes in the figures of the CPUs; those that are gone are forgotten.
    pub(super) fn smooth(&mut self, snapshot: &Snapshot) {
        let mut cpus: Vec<CpuMemory> = snapshot
            .cpus
            .iter()
            .map(|view| {
                let effective_ns = u128::from(view.effective_ns(snapshot.interval_ns));
                let latest = Supply {
                    // Not more than a million: the quotient of a part and its whole.
                    effective_ppm: (effective_ns * 1_000_000 / u128::from(snapshot.interval_ns))
                        as u64,
                    foreign_milli: u64::from(view.foreign_milli),
                };
                CpuMemory {
                    cpu: view.cpu,
                    core: view.core,
                    node: view.node,
                    energy_rank: view.energy_rank,
                    is_starved: view.is_starved(snapshot.interval_ns),
                    pace_ppm: ALL_PPM,
                    latest,
                    smoothed: latest,
                }
            })
            .collect();
        cpus.sort_unstable_by_key(|memory| memory.cpu);
        let mut before = self.cpus.iter().peekable();
        for memory in &mut cpus {
            while before.next_if(|old| old.cpu < memory.cpu).is_some() {}
            if let Some(old) = before.next_if(|old| old.cpu == memory.cpu) {
                memory.smoothed = memory.latest.middle(old.smoothed);
            }
        }
        self.cpus = cpus;
        self.share_cores(snapshot);
    }

    /// A core that several CPUs share gives less to each while others are busy.
    fn share_cores(&mut self, snapshot: &Snapshot) {
        let mut busy: Vec<(u32, u32, u64)> = snapshot
            .cpus
            .iter()
            .map(|view| {
                let busy_ns = snapshot.interval_ns.saturating_sub(view.idle_ns);
                (view.core, view.cpu, ppm_of(busy_ns, snapshot.interval_ns))
            })
            .collect();
        busy.sort_unstable();
        for siblings in busy.chunk_by(|a, b| a.0 == b.0).filter(|siblings| siblings.len() > 1) {
            for (_, cpu, _) in siblings {
                let others = siblings.iter().filter(|(_, other, _)| other != cpu);
                let busy_ppm = others.map(|(_, _, busy_ppm)| *busy_ppm).max().unwrap_or(0);
                let place = self.cpus.binary_search_by_key(cpu, |memory| memory.cpu);
                if let Ok(place) = place {
                    self.cpus[place].pace_ppm = ALL_PPM - busy_ppm * SMT_LOSS_PPM / ALL_PPM;
                }
            }
        }
    }

    /// Adds what each compute task received, and starts a new phase where one has begun. Returns
    /// the compute tasks by id; the others are forgotten.
    pub(super) fn account<'a>(&mut self, snapshot: &'a Snapshot) -> Vec<Active<'a>> {
        let interval_ns = snapshot.interval_ns;
        let most_ns = interval_ns.saturating_mul(2);
        self.sees_spinning = snapshot.seen.spinning;
        if snapshot.seen.asked {
            // None of them spins.
            self.turns = Turns::default();
        }
        let takes_turns = self.turns.are_taken();
        let looks = if takes_turns {
            Looks::Often
        } else if self.phases.are_known() {
            Looks::ByPhase
        } else {
            Looks::Usual
        };
        self.beat.pass(interval_ns, snapshot.seen.barriers, looks);
        let short_ns = self.beat.short_period_ns(self.long_ns()).or(self.turns.short_phase_ns());
        let (mut views, others): (Vec<&TaskView>, Vec<&TaskView>) =
            snapshot.tasks.iter().partition(|view| view.computes(interval_ns));
        views.sort_unstable_by_key(|view| view.id);
        let mut known = self.take_known();
        if snapshot.seen.redefined {
            // What was taken for work may have been waiting, and a barrier may have been missed.
            for (_, memory) in &mut known {
                *memory = TaskMemory {
                    lead_ns: 0,
                    load: Load::default(),
                    spells: Spells::default(),
                    ..*memory
                };
            }
        }

        let mut active: Vec<Active<'a>> = Vec::with_capacity(views.len());
        let mut woken = Vec::new();
        let mut abreast = Vec::new();
        let mut woke_ago_ns = Vec::new();
        let mut before = known.iter().peekable();
        for view in views {
            while before.next_if(|(id, _)| *id < view.id).is_some() {}
            let known = before.next_if(|(id, _)| *id == view.id).map(|(_, memory)| *memory);
            let waited =
                if takes_turns { view.slept(interval_ns) } else { view.waited(interval_ns) };
            let mut sleeps = known.map(|memory| memory.sleeps).unwrap_or_default();
            sleeps.add(view.sleeps, interval_ns, self.long_ns());
            let waits_often =
                short_ns.is_some() || view.slept(interval_ns) || self.waited_often_lately();
            let short_ns = short_ns.or(sleeps.short_phase_ns(self.long_ns()));
            let phase_ns = short_ns.filter(|_| waits_often);
            let wanted_nearly_all = view.wanted_nearly_all(interval_ns);
            // A newcomer must want a CPU now, or for nearly the whole interval, or again and again.
            // A known one that only began to wait is still there: it keeps its place.
            let came_again =
                view.sleeps >= MIN_SLEEPS && interval_ns / u64::from(view.sleeps) < self.long_ns();
            if known.is_none() && !view.runnable && !came_again && !wanted_nearly_all {
                continue;
            }
            let was_asleep = known.is_some_and(|memory| memory.is_asleep);
            let woke = view.woke_ago_ns(was_asleep, interval_ns);
            woke_ago_ns.extend(woke);
            let had_waited = known.is_some_and(|memory| memory.waited);
            let woken_ago_ns = match woke {
                // In short phases it wakes in each interval, and nothing begins there.
                Some(ago_ns) if (waited || had_waited) && short_ns.is_none() => Some(ago_ns),
                _ if had_waited && !waited => Some(view.busy_ns().min(interval_ns)),
                _ => None,
            };
            if let Some(ago_ns) = woken_ago_ns {
                // A task that went to sleep within the interval may have done much of its work before.
                let is_exact = woke.is_none() || was_asleep && view.sleeps == 0;
                woken.push(Woken { index: active.len(), ago_ns, is_exact });
            } else if known.is_none() && !wanted_nearly_all {
                // Began within the interval: has missed nothing of it.
                abreast.push(active.len());
            }
            // Not even a clock that ran ahead makes more than twice the interval of it.
            let work_ns = view.work_ns().min(most_ns);
            let pace_ppm = self.pace_ppm_of(view.cpu);
            let work_ns = work_ns.saturating_mul(pace_ppm) / ALL_PPM;
            let mut spells = known.map(|memory| memory.spells).unwrap_or_default();
            // Tasks that take turns spin for a moment, which samples that come seldom hit by chance.
            if !takes_turns || spells::are_frequent(view) {
                spells.add(view);
            }
            let mut load = known.map(|memory| memory.load).unwrap_or_default();
            if self.sees_spinning {
                load.add(work_ns, view.spun_ns, interval_ns);
            } else {
                load = Load::default();
            }
            let received_ns = part(view.received_ns.min(most_ns), pace_ppm, ALL_PPM);
            let counts_ns = self.turns.counted_ns(received_ns, &load);
            let counts_ns = i64::try_from(counts_ns).unwrap_or(i64::MAX);
            let lead_ns = known.map_or(0, |memory| memory.lead_ns).saturating_add(counts_ns);
            let home = known.map_or_else(|| self.node_of(view.cpu), |memory| memory.home);
            let is_asleep = !view.runnable;
            let waited = waited && woken_ago_ns.is_none();
            let memory = TaskMemory { lead_ns, waited, is_asleep, home, load, sleeps, spells };
            active.push(Active { view, memory, phase_ns });
        }

        // When half of them wake at once, that was a barrier, and all begin again.
        let is_barrier = |woken: usize| woken > 0 && woken * 2 >= active.len();
        // Tasks that are well balanced wait there for a moment only: that is nothing for their
        // leads, which are level then, but it tells when the barrier was.
        let barrier_ago_ns = woke_ago_ns.iter().min().filter(|_| is_barrier(woke_ago_ns.len()));
        let barrier_ago_ns = barrier_ago_ns.copied().or_else(|| counted_ago_ns(snapshot));
        self.phases.pass(interval_ns, barrier_ago_ns);
        let level_since_ns =
            self.level_since_ns.map(|since_ns| since_ns.saturating_add(interval_ns));
        self.level_since_ns = level_since_ns;
        if takes_turns {
            // A barrier changes nothing, and a task that slept counts from when it woke.
            abreast.extend(woken.iter().map(|task| task.index));
        } else if is_barrier(woken.len()) {
            let phases = level_since_ns.map(|since_ns| self.phases.passed_in(since_ns));
            let is_exact = woken.iter().filter(|task| task.is_exact).count() * 2 >= woken.len();
            begin_phase(&mut active, &woken, interval_ns, phases.filter(|_| is_exact));
            self.level_since_ns = is_exact.then_some(0);
        } else {
            abreast.extend(woken.iter().map(|task| task.index));
            if begin_expected_phase(&mut active) {
                self.level_since_ns = Some(0);
            }
        }
        abreast.sort_unstable();
        let late = |index: &usize| abreast.binary_search(index).is_ok();
        let middle_ns = middle_ns(&active, |index| !late(index));
        for index in abreast {
            active[index].memory.lead_ns = middle_ns;
        }
        let most_lead_ns = self.turns.most_lead_ns().unwrap_or(MAX_LEAD_NS);
        for task in &mut active {
            let mut lead_ns = task.memory.lead_ns.saturating_sub(middle_ns);
            if task.memory.waited {
                // It waits for the others, not they for it: it is not behind.
                lead_ns = lead_ns.max(0);
            }
            task.memory.lead_ns = lead_ns.clamp(-most_lead_ns, most_lead_ns);
        }
        if self.turns.pass(&active, self.sees_spinning, &self.parameters) {
            active.iter_mut().for_each(|task| task.memory.lead_ns = 0);
        }
        self.tasks = active.iter().map(|task| (task.view.id, task.memory)).collect();
        let is_known = |id: TaskId| known.binary_search_by_key(&id, |(id, _)| *id).is_ok();
        let slept = |view: &TaskView| is_known(view.id) && view.slept(interval_ns);
        let sleeps =
            active.iter().any(|task| slept(task.view)) || others.iter().any(|view| slept(view));
        let since_ns = self.slept_since_ns.map(|since_ns| since_ns.saturating_add(interval_ns));
        self.slept_since_ns = if sleeps { Some(0) } else { since_ns };
        let is_short = |task: &&Active<'_>| task.phase_ns.is_some() && task.view.slept(interval_ns);
        let waits_often = active.iter().filter(is_short).count() * 2 >= active.len().max(1);
        let since_ns =
            self.waited_often_since_ns.map(|since_ns| since_ns.saturating_add(interval_ns));
        self.waited_often_since_ns = if waits_often { Some(0) } else { since_ns };
        self.waiting = if self.sees_waiting() {
            waiting(&known, &others, interval_ns, self.long_ns())
        } else {
            Vec::new()
        };
        active
    }

    /// All tasks that are remembered, by id.
    fn take_known(&mut self) -> Vec<(TaskId, TaskMemory)> {
        let mut known = std::mem::take(&mut self.tasks);
        known.append(&mut self.waiting);
        known.sort_unstable_by_key(|(id, _)| *id);
        known
    }

    /// A phase of this length is worth balancing in.
    fn long_ns(&self) -> u64 {
        let min_interval_ns = self.parameters.min_interval_ns;
        let usual_ns = min_interval_ns.saturating_mul(MIN_PHASE_INTERVALS);
        self.turns.long_ns(min_interval_ns).unwrap_or(usual_ns)
    }
}

/// The known tasks among those that hardly wanted a CPU.
fn waiting(
    known: &[(TaskId, TaskMemory)],
    others: &[&TaskView],
    interval_ns: u64,
    long_ns: u64,
) -> Vec<(TaskId, TaskMemory)> {
    let remembered = |view: &&TaskView| {
        let place = known.binary_search_by_key(&view.id, |(id, _)| *id).ok()?;
        let before = known.get(place)?.1;
        let mut memory = TaskMemory { waited: true, is_asleep: !view.runnable, ..before };
        memory.sleeps.add(view.sleeps, interval_ns, long_ns);
        Some((view.id, memory))
    };
    others.iter().filter_map(remembered).collect()
}

/// The (lower) middle of the leads of those that computed all the time and can be moved; of all of
/// them where none can be.
fn middle_ns(active: &[Active<'_>], counts: impl Fn(&usize) -> bool) -> i64 {
    let leads = |free: bool| -> Vec<i64> {
        (0..active.len())
            .filter(&counts)
            .map(|index| &active[index])
            .filter(|task| !task.memory.waited && (!free || !task.view.fixed))
            .map(|task| task.memory.lead_ns)
            .collect()
    };
    let mut leads = match leads(true) {
        none if none.is_empty() => leads(false),
        some => some,
    };
    if leads.is_empty() {
        return active.iter().map(|task| task.memory.lead_ns).min().unwrap_or(0);
    }
    let middle = (leads.len() - 1) / 2;
    *leads.select_nth_unstable(middle).1
}

impl TaskView {
    /// Wanted a CPU for at least three quarters of the interval.
    fn wanted_nearly_all(&self, interval_ns: u64) -> bool {
        self.demand_ns() >= interval_ns - interval_ns / 4
    }

    /// Slept or spun long enough to have waited for others.
    fn waited(&self, interval_ns: u64) -> bool {
        let waited_ns = interval_ns.saturating_sub(self.busy_ns());
        waited_ns.saturating_mul(WAIT_SHARE) >= interval_ns
    }

    /// Slept for that long.
    fn slept(&self, interval_ns: u64) -> bool {
        let slept_ns = interval_ns.saturating_sub(self.demand_ns());
        slept_ns.saturating_mul(WAIT_SHARE) >= interval_ns
    }

    /// How long ago it woke, if it did so in the interval. Exact where it slept when that began;
    /// where it slept somewhere within, the middle of what is possible.
    fn woke_ago_ns(&self, was_asleep: bool, interval_ns: u64) -> Option<u64> {
        let awake_ns = self.demand_ns().min(interval_ns);
        let paused = (interval_ns - awake_ns).saturating_mul(PAUSE_SHARE) >= interval_ns;
        match (self.runnable, was_asleep) {
            (true, true) => Some(awake_ns),
            (true, false) if paused => Some(awake_ns / 2),
            _ => None,
        }
    }
}

/// A part of a whole, at most all of it.
fn ppm_of(part_ns: u64, whole_ns: u64) -> u64 {
    let ppm = u128::from(part_ns) * u128::from(ALL_PPM) / u128::from(whole_ns.max(1));
    u64::try_from(ppm).unwrap_or(ALL_PPM).min(ALL_PPM)
}
