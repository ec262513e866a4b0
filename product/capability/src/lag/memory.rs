//! What the `lag` policy remembers: smoothed figures of each CPU, and how far each task is ahead of
//! the middle of the program, in effective capability received in this phase.
//!
//! The middle, and neither the first nor the last: a task that can never be helped (bound to a slow
//! CPU) or held back (bound to a fast one) runs away from the others for ever, and whatever is
//! measured against it becomes meaningless.

use std::collections::BTreeMap;

use super::parameters::LagParameters;
use super::phases::Phases;
use crate::figures::part;
use crate::snapshot::{Snapshot, TaskId, TaskView};

/// Share of the interval that a task must want a CPU to count as a compute task: 1/10.
const ACTIVE_SHARE: u64 = 10;
/// Share of the interval that a task must sleep to have waited for others: 1/4.
const SLEEP_SHARE: u64 = 4;
/// Share of the interval that a task must sleep to have paused at all: 1/50.
const PAUSE_SHARE: u64 = 50;
/// A phase must last this many of the shortest intervals to be worth balancing in.
const MIN_PHASE_INTERVALS: u64 = 2;
/// Times that a task must have been switched in for its phases to show.
const MIN_SWITCHES: u32 = 2;
const ALL_PPM: u64 = 1_000_000;
/// What an SMT sibling that is busy takes of a CPU's pace: two together get about 1.2 cores' worth.
pub(super) const SMT_LOSS_PPM: u64 = 400_000;
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
    pub(super) interval_ns: u64,
    pub(super) asymmetric_rounds: u32,
    pub(super) phases: Phases,
}

/// Figures of a CPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct CpuMemory {
    pub(super) cpu: u32,
    pub(super) core: u32,
    pub(super) node: u32,
    /// What was left of its pace in the last interval while SMT siblings were busy.
    pace_ppm: u64,
    /// Of the last interval alone.
    pub(super) latest: Supply,
    /// Smoothed over some.
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

/// What is known of a task beyond one interval.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TaskMemory {
    /// Effective capability received in this phase, less what the middle task received.
    pub(super) lead_ns: i64,
    /// Slept for a good part of the last interval.
    pub(super) slept: bool,
    /// Was asleep at the last look.
    is_asleep: bool,
    /// The node where it was first seen: its memory is taken to be there.
    pub(super) home: Option<u32>,
}

/// A compute task in the interval that just ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Active<'a> {
    pub(super) view: &'a TaskView,
    pub(super) memory: TaskMemory,
    /// Time from one of its sleeps to the next, when that is too short to balance in.
    pub(super) phase_ns: Option<u64>,
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
            interval_ns: min_interval_ns,
            asymmetric_rounds: 0,
            phases: Phases::default(),
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
        let mut views: Vec<&TaskView> =
            snapshot.tasks.iter().filter(|view| view.wanted_some(interval_ns)).collect();
        views.sort_unstable_by_key(|view| view.id);

        let mut active: Vec<Active<'a>> = Vec::with_capacity(views.len());
        let mut woken = Vec::new();
        let mut abreast = Vec::new();
        let mut woke_ago_ns = Vec::new();
        let mut before = self.tasks.iter().peekable();
        for view in views {
            while before.next_if(|(id, _)| *id < view.id).is_some() {}
            let known = before.next_if(|(id, _)| *id == view.id).map(|(_, memory)| *memory);
            let slept = view.slept(interval_ns);
            let phase_ns = self.short_phase_ns(view, slept, interval_ns);
            let wanted_nearly_all = view.wanted_nearly_all(interval_ns);
            // A newcomer must want a CPU now, or for nearly the whole interval, or again and again.
            // Who is known and only began to wait is still there: his place is his when he wakes.
            if known.is_none() && !view.runnable && phase_ns.is_none() && !wanted_nearly_all {
                continue;
            }
            if known.is_some_and(|memory| memory.slept) && !slept {
                woken.push(active.len());
            } else if known.is_none() && !wanted_nearly_all {
                // Began within the interval: has missed nothing of it.
                abreast.push(active.len());
            }
            let was_asleep = known.is_some_and(|memory| memory.is_asleep);
            woke_ago_ns.extend(view.woke_ago_ns(was_asleep, interval_ns));
            // Not even a clock that ran ahead makes more than twice the interval of it.
            let received_ns = view.received_ns.min(most_ns);
            let received_ns = received_ns.saturating_mul(self.pace_ppm_of(view.cpu)) / ALL_PPM;
            let received_ns = i64::try_from(received_ns).unwrap_or(i64::MAX);
            let lead_ns = known.map_or(0, |memory| memory.lead_ns).saturating_add(received_ns);
            let home = known.map_or_else(|| self.node_of(view.cpu), |memory| memory.home);
            let memory = TaskMemory { lead_ns, slept, is_asleep: !view.runnable, home };
            active.push(Active { view, memory, phase_ns });
        }

        // When half of them wake at once, that was a barrier, and all begin again.
        let is_barrier = |woken: usize| woken > 0 && woken * 2 >= active.len();
        // Tasks that are well balanced wait there for a moment only: that is nothing for their
        // leads, which are level then, but it tells when the barrier was.
        let barrier_ago_ns = woke_ago_ns.iter().min().filter(|_| is_barrier(woke_ago_ns.len()));
        self.phases.pass(interval_ns, barrier_ago_ns.copied());
        if is_barrier(woken.len()) {
            begin_phase(&mut active, &woken, interval_ns);
        } else {
            abreast.extend(woken);
        }
        abreast.sort_unstable();
        let late = |index: &usize| abreast.binary_search(index).is_ok();
        let middle_ns = middle_ns(&active, |index| !late(index));
        for index in abreast {
            active[index].memory.lead_ns = middle_ns;
        }
        for task in &mut active {
            let mut lead_ns = task.memory.lead_ns.saturating_sub(middle_ns);
            if task.memory.slept {
                // Whoever sleeps waits for the others, not they for him: he is not behind.
                lead_ns = lead_ns.max(0);
            }
            task.memory.lead_ns = lead_ns.clamp(-MAX_LEAD_NS, MAX_LEAD_NS);
        }
        self.tasks = active.iter().map(|task| (task.view.id, task.memory)).collect();
        active
    }

    /// Mean time from one sleep to the next, when that is too short to balance in.
    fn short_phase_ns(&self, view: &TaskView, slept: bool, interval_ns: u64) -> Option<u64> {
        let long_ns = self.parameters.min_interval_ns.saturating_mul(MIN_PHASE_INTERVALS);
        let phase_ns = interval_ns / u64::from(view.switches.max(1));
        (slept && view.switches >= MIN_SWITCHES && phase_ns < long_ns).then_some(phase_ns)
    }
}

/// Leaves each task what it received since the barrier: all of it for those that slept until then,
/// for the others their share of that time.
fn begin_phase(active: &mut [Active<'_>], woken: &[usize], interval_ns: u64) {
    let demand_ns = |index: &usize| active[*index].view.demand_ns().min(interval_ns);
    let since_ns = woken.iter().map(demand_ns).max().unwrap_or(0);
    for (index, task) in active.iter_mut().enumerate() {
        let received_ns = task.view.received_ns.min(interval_ns);
        let share_ns = if woken.binary_search(&index).is_ok() {
            received_ns
        } else {
            part(received_ns, since_ns, interval_ns)
        };
        task.memory.lead_ns = i64::try_from(share_ns).unwrap_or(i64::MAX);
    }
}

/// The (lower) middle of the leads of those that computed all the time and can be moved; of all of
/// them where none can be.
fn middle_ns(active: &[Active<'_>], counts: impl Fn(&usize) -> bool) -> i64 {
    let leads = |free: bool| -> Vec<i64> {
        (0..active.len())
            .filter(&counts)
            .map(|index| &active[index])
            .filter(|task| !task.memory.slept && (!free || !task.view.fixed))
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
    /// Wanted a CPU often enough to be a compute task.
    fn wanted_some(&self, interval_ns: u64) -> bool {
        self.demand_ns().saturating_mul(ACTIVE_SHARE) >= interval_ns
    }

    /// Wanted a CPU for at least three quarters of the interval.
    fn wanted_nearly_all(&self, interval_ns: u64) -> bool {
        self.demand_ns() >= interval_ns - interval_ns / 4
    }

    /// Slept long enough to have waited for others.
    fn slept(&self, interval_ns: u64) -> bool {
        let slept_ns = interval_ns.saturating_sub(self.demand_ns());
        slept_ns.saturating_mul(SLEEP_SHARE) >= interval_ns
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
