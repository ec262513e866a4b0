//! How the compute tasks are dealt to the CPUs, and what each gets where.

use std::collections::BTreeMap;

use super::active::Active;
use super::memory::{CpuMemory, SMT_LOSS_PPM, Supply};
use crate::plan::{Move, Pin};
use crate::snapshot::{TaskId, TaskView};

/// With this many tasks of other programs, in thousandths, a CPU counts as busy.
const BUSY_MILLI: u64 = 500;

/// A CPU while tasks are dealt out.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) cpu: u32,
    pub(super) node: u32,
    /// Its place by the energy that its work needs, where known.
    pub(super) energy_rank: Option<u32>,
    /// Real-time tasks had it in the last interval: no task is moved there, however much there was
    /// before.
    pub(super) is_starved: bool,
    latest: Supply,
    supply: Supply,
    /// SMT siblings, as indices into [`Deal::slots`].
    pub(super) siblings: Vec<usize>,
    /// One of them is busy, so that the core is shared.
    pub(super) is_shared: bool,
    /// Tasks of the program here.
    pub(super) count: u64,
    /// Those of them that may leave, as indices into [`Deal::tasks`]: the one furthest behind is
    /// the last.
    pub(super) free: Vec<usize>,
}

/// A compute task, and where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dealt<'a> {
    pub(super) view: &'a TaskView,
    /// How far it is ahead of the middle of the program.
    pub(super) lead_ns: i64,
    pub(super) waited: bool,
    /// The node where its memory is taken to be.
    pub(super) home: Option<u32>,
    pub(super) phase_ns: Option<u64>,
    /// What it receives for work, where that is known.
    pub(super) work_ppm: Option<u64>,
    /// The same, known sooner, where it was never seen to spin.
    pub(super) counted_work_ppm: Option<u64>,
    /// Index into [`Deal::slots`]; none on a CPU that is not the program's (any more).
    pub(super) slot: Option<usize>,
    /// No other CPU may be given to it.
    pub(super) is_bound: bool,
    pub(super) has_moved: bool,
}

/// All CPUs by number, and all compute tasks, the one furthest behind first.
#[derive(Debug, Clone)]
pub(super) struct Deal<'a> {
    pub(super) slots: Vec<Slot>,
    pub(super) tasks: Vec<Dealt<'a>>,
    /// There are more tasks than CPUs, and the CPUs are unequal: they are to have unequal numbers of
    /// tasks, and to keep them.
    pub(super) is_split: bool,
}

impl Supply {
    /// What each of `tasks` tasks gets of it.
    fn rate_ppm(self, tasks: u64) -> u64 {
        self.effective_ppm * 1000 / (tasks * 1000 + self.foreign_milli).max(1)
    }
}

impl Slot {
    /// What each task gets when there are `tasks` of the program here.
    pub(super) fn rate_ppm(&self, tasks: u64) -> u64 {
        self.paced(self.supply.rate_ppm(tasks))
    }

    /// What the program gets of this CPU with `tasks` tasks here.
    pub(super) fn total_ppm(&self, tasks: u64) -> u64 {
        let Supply { effective_ppm, foreign_milli } = self.supply;
        self.paced(effective_ppm * tasks * 1000 / (tasks * 1000 + foreign_milli).max(1))
    }

    /// What is left of it while the core is shared.
    fn paced(&self, ppm: u64) -> u64 {
        if self.is_shared { ppm * (1_000_000 - SMT_LOSS_PPM) / 1_000_000 } else { ppm }
    }

    fn is_busy(&self) -> bool {
        self.count > 0 || self.foreign_milli() >= BUSY_MILLI
    }

    /// Tasks of other programs, in thousandths.
    pub(super) fn foreign_milli(&self) -> u64 {
        self.supply.foreign_milli
    }

    /// What a task here gets; of a CPU without tasks, what a first one would get.
    pub(super) fn current_ppm(&self) -> u64 {
        self.rate_ppm(self.count.max(1))
    }
}

impl<'a> Deal<'a> {
    /// `may_split` is the tolerance above which CPUs are unequal enough to be split; none: never.
    pub(super) fn new(
        cpus: &[CpuMemory],
        mut active: Vec<Active<'a>>,
        may_split: Option<u64>,
    ) -> Self {
        let mut slots: Vec<Slot> = cpus
            .iter()
            .map(|memory| Slot {
                cpu: memory.cpu,
                node: memory.node,
                energy_rank: memory.energy_rank,
                is_starved: memory.is_starved,
                latest: memory.latest,
                supply: memory.smoothed,
                siblings: Vec::new(),
                is_shared: false,
                count: 0,
                free: Vec::new(),
            })
            .collect();
        let usable = words_of(cpus.iter().map(|memory| memory.cpu));
        active.sort_unstable_by_key(|task| (task.memory.lead_ns, task.view.id));
        let tasks: Vec<Dealt<'a>> = active
            .into_iter()
            .map(|Active { view, memory, phase_ns }| {
                let slot = cpus.binary_search_by_key(&view.cpu, |memory| memory.cpu).ok();
                if let Some(slot) = slot {
                    slots[slot].count += 1;
                }
                Dealt {
                    view,
                    lead_ns: memory.lead_ns,
                    waited: memory.waited,
                    home: memory.home,
                    phase_ns,
                    work_ppm: memory.load.work_ppm(),
                    counted_work_ppm: memory.load.counted_work_ppm(),
                    slot,
                    is_bound: slot.is_none() || view.fixed || !has_choice(view, &usable),
                    has_moved: false,
                }
            })
            .collect();
        let mut deal = Self { slots, tasks, is_split: false };
        deal.find_siblings(cpus);
        let (worst_ppm, best_ppm) = deal.worst_and_best_cpu_ppm();
        deal.is_split = deal.tasks.len() > deal.slots.len()
            && may_split.is_some_and(|tolerance_ppm| above(best_ppm, worst_ppm, tolerance_ppm));
        for (index, task) in deal.tasks.iter().enumerate().rev() {
            let Some(slot) = task.slot else { continue };
            // In short phases a task gains nothing by moving to and fro, but a split is made once, and a
            // task that does not run is in no phase.
            let moves_once = deal.is_split || deal.slots[slot].is_starved;
            if !task.is_bound && (task.phase_ns.is_none() || moves_once) {
                deal.slots[slot].free.push(index);
            }
        }
        deal
    }

    fn find_siblings(&mut self, cpus: &[CpuMemory]) {
        let mut by_core: Vec<(u32, usize)> =
            cpus.iter().enumerate().map(|(index, memory)| (memory.core, index)).collect();
        by_core.sort_unstable();
        for core in by_core.chunk_by(|a, b| a.0 == b.0).filter(|core| core.len() > 1) {
            for (_, index) in core {
                let others = core.iter().map(|(_, other)| *other).filter(|other| other != index);
                self.slots[*index].siblings = others.collect();
            }
            for (_, index) in core {
                self.share(*index);
            }
        }
    }

    /// Sees whether a slot's core is shared now.
    fn share(&mut self, index: usize) {
        let slots = &self.slots;
        let is_shared = slots[index].siblings.iter().any(|other| slots[*other].is_busy());
        self.slots[index].is_shared = is_shared;
    }

    /// The worst rate that a task gets, and the best that one gets or could get: an idle CPU counts
    /// with what it has to give.
    pub(super) fn worst_and_best_ppm(&self) -> (u64, u64) {
        self.worst_and_best(Slot::current_ppm)
    }

    /// The same by the figures of the last interval alone; for a split, of the CPUs.
    pub(super) fn latest_worst_and_best_ppm(&self) -> (u64, u64) {
        if self.is_split {
            return self.worst_and_best_cpu(|slot| slot.paced(slot.latest.rate_ppm(1)));
        }
        self.worst_and_best(|slot| slot.paced(slot.latest.rate_ppm(slot.count.max(1))))
    }

    /// What the worst and the best CPU give to a task that is there alone.
    pub(super) fn worst_and_best_cpu_ppm(&self) -> (u64, u64) {
        self.worst_and_best_cpu(|slot| slot.rate_ppm(1))
    }

    fn worst_and_best_cpu(&self, rate_ppm: impl Fn(&Slot) -> u64) -> (u64, u64) {
        let rates = || self.slots.iter().map(&rate_ppm);
        (rates().min().unwrap_or(0), rates().max().unwrap_or(0))
    }

    /// Keeps each task that could move where it is after the moves, unless it cannot run there.
    pub(super) fn pins(&self, moves: &[Move]) -> Vec<Pin> {
        let moved: BTreeMap<TaskId, u32> = moves.iter().map(|made| (made.task, made.to)).collect();
        let pin = |task: &Dealt<'_>| {
            let slot = &self.slots[task.slot?];
            let cpu = moved.get(&task.id()).copied().unwrap_or(slot.cpu);
            let is_stuck = cpu == slot.cpu && slot.is_starved;
            let is_free = !task.view.fixed && task.view.allowed.contains(cpu) && !is_stuck;
            is_free.then_some(Pin { task: task.id(), cpu })
        };
        let mut pins: Vec<Pin> = self.tasks.iter().filter_map(pin).collect();
        pins.sort_unstable_by_key(|pin| (pin.cpu, pin.task));
        pins
    }

    fn worst_and_best(&self, rate_ppm: impl Fn(&Slot) -> u64) -> (u64, u64) {
        let busy = self.slots.iter().filter(|slot| slot.count > 0);
        let worst_ppm = busy.map(&rate_ppm).min().unwrap_or(0);
        (worst_ppm, self.slots.iter().map(&rate_ppm).max().unwrap_or(0))
    }

    /// Mean time from one wait of the tasks for each other to the next, when at least half of them
    /// wait more often than they could be moved.
    pub(super) fn phase_ns(&self) -> Option<u64> {
        let short = || self.tasks.iter().filter_map(|task| task.phase_ns);
        if short().count() * 2 < self.tasks.len() { None } else { short().min() }
    }

    /// Puts a task that has not been moved yet elsewhere.
    pub(super) fn put(&mut self, task: usize, from: usize, to: usize) {
        self.slots[from].count -= 1;
        self.slots[to].count += 1;
        for place in [from, to] {
            for index in 0..self.slots[place].siblings.len() {
                self.share(self.slots[place].siblings[index]);
            }
        }
        let free = &mut self.slots[from].free;
        // Nearly always the last one or the first one.
        if let Some(place) = free.iter().rposition(|other| *other == task) {
            free.remove(place);
        }
        self.tasks[task].slot = Some(to);
        self.tasks[task].has_moved = true;
    }
}

impl Dealt<'_> {
    /// May change places now.
    pub(super) fn is_free(&self) -> bool {
        !self.is_bound && !self.has_moved && self.phase_ns.is_none()
    }

    /// Whether its memory is elsewhere when it is on this node.
    pub(super) fn is_remote_on(&self, node: u32) -> bool {
        self.home.is_some_and(|home| home != node)
    }

    pub(super) fn id(&self) -> TaskId {
        self.view.id
    }
}

/// `better` is above `worse` by more than the tolerance, as a share of itself.
pub(crate) fn above(better_ppm: u64, worse_ppm: u64, tolerance_ppm: u64) -> bool {
    let more_ppm = better_ppm.saturating_sub(worse_ppm);
    more_ppm.saturating_mul(1_000_000) > better_ppm.saturating_mul(tolerance_ppm)
}

/// A bit mask of CPUs, lowest first.
fn words_of(cpus: impl Iterator<Item = u32>) -> Vec<u64> {
    let mut words = Vec::new();
    for cpu in cpus {
        let word = cpu as usize / 64;
        if word >= words.len() {
            words.resize(word + 1, 0);
        }
        words[word] |= 1u64 << (cpu % 64);
    }
    words
}

/// Whether there is a usable CPU besides its own that the task may go to.
fn has_choice(view: &TaskView, usable: &[u64]) -> bool {
    let own = view.cpu as usize / 64;
    view.allowed.as_words().iter().zip(usable).enumerate().any(|(index, (allowed, usable))| {
        let others = if index == own { !(1u64 << (view.cpu % 64)) } else { u64::MAX };
        allowed & usable & others != 0
    })
}
