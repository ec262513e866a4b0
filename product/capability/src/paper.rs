//! The paper's balancer, step for step (000, section 3.2).
//!
//! Departures from the paper, each forced:
//!
//! - The ECPT of every CPU is published before the first decision. Read literally, the "go to 8" paths
//!   skip step 7, so that only CPUs that swap would ever publish.
//! - The per-CPU balancers run in ascending order of CPUs. The paper serialises them by one lock, in no
//!   given order.
//! - A CPU was "recently" part of a migration if that was after the deciding balancer's own last turn.
//! - Where the local CPU has no task, the swap becomes a one-sided pull.
//! - `chcb` (section 3.3) places each task at its fork. Here a task is placed in the first plan that
//!   sees it want a CPU, and takes part in the eight steps from the next plan on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::figures::{ecpt, part};
use crate::plan::{Move, Plan, Reason};
use crate::snapshot::{CpuView, Snapshot, TaskId, TaskView};

/// Which task of a CPU migrates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// The first in runqueue order: the moves go through all tasks, which avoids ping-pong.
    Fifo,
    /// The task with the smallest working set. Tasks with an unknown working set come last; tasks
    /// with the same working set (the threads of one process share one) go by runqueue order.
    Cache,
}

impl Selection {
    /// The working set of a task, where it is known and this selection uses it.
    fn working_set_bytes(self, task: &TaskView) -> Option<u64> {
        match self {
            Self::Fifo => None,
            Self::Cache => task.working_set_bytes,
        }
    }
}

/// The parameters that the paper leaves to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaperParameters {
    /// The balance interval; the paper settles on one second.
    pub interval_ns: u64,
    /// The task selection policy.
    pub selection: Selection,
    /// New tasks are placed on the CPUs in the order of ECPT, as `chcb` does (section 3.3); otherwise
    /// they stay where the kernel started them until one of the eight steps moves them.
    pub placed_at_start: bool,
}

impl Default for PaperParameters {
    fn default() -> Self {
        Self { interval_ns: 1_000_000_000, selection: Selection::Fifo, placed_at_start: false }
    }
}

/// What the first tasks of a program are placed by: ECPT over so long.
const START_NS: u64 = 100_000_000;

#[derive(Debug, Clone)]
pub(crate) struct PaperState {
    parameters: PaperParameters,
    /// Turns taken by all balancers so far: the time scale of "recently".
    turn: u64,
    /// Turn of each CPU's last migration.
    migrated: BTreeMap<u32, u64>,
    /// The tasks that are placed, or need not be any more.
    placed: BTreeSet<TaskId>,
}

impl PaperState {
    pub(crate) fn new(parameters: PaperParameters) -> Self {
        Self { parameters, turn: 0, migrated: BTreeMap::new(), placed: BTreeSet::new() }
    }

    pub(crate) fn first_interval_ns(&self) -> u64 {
        let PaperParameters { interval_ns, placed_at_start, .. } = self.parameters;
        if placed_at_start { interval_ns.min(START_NS) } else { interval_ns }
    }
}

/// A CPU while the balancers take their turns.
struct Queue<'a> {
    view: &'a CpuView,
    /// The program's tasks, movable or not, in the order of selection. A task that arrived in this
    /// round is not among them, so that it does not migrate twice.
    tasks: Vec<&'a TaskView>,
    arrived: u64,
    effective_ns: u64,
    /// Turn of its last migration.
    migrated: Option<u64>,
}

impl Queue<'_> {
    fn ecpt(&self) -> u64 {
        let others = u64::from(self.view.foreign_milli) + u64::from(self.view.rt_milli);
        ecpt(self.effective_ns, (self.tasks.len() as u64 + self.arrived) * 1000 + others)
    }

    fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.arrived == 0
    }

    /// The CPUs with the smallest values get new tasks first.
    fn order(&self) -> (u64, Reverse<u64>, u32) {
        (self.tasks.len() as u64 + self.arrived, Reverse(self.ecpt()), self.view.cpu)
    }

    fn select(&self, to: u32) -> Option<usize> {
        self.tasks.iter().position(|task| task.may_go_to(to))
    }
}

pub(crate) fn plan(snapshot: &Snapshot, state: &mut PaperState) -> Plan {
    let mut queues = queues(snapshot, state);
    let mut moves = if state.parameters.placed_at_start {
        place_new_tasks(&mut queues, snapshot, &mut state.placed)
    } else {
        Vec::new()
    };
    let turns = queues.len() as u64;
    // Steps 1 and 2.
    let mut vector: Vec<u64> = queues.iter().map(Queue::ecpt).collect();
    let (least, most) =
        (vector.iter().min().copied().unwrap_or(0), vector.iter().max().copied().unwrap_or(0));
    let spread_ppm = part(most - least, 1_000_000, snapshot.interval_ns);

    let mut sum: u128 = vector.iter().map(|ecpt| u128::from(*ecpt)).sum();
    for local in 0..queues.len() {
        state.turn += 1;
        // Step 3, without a division: own > mean.
        if u128::from(vector[local]) * u128::from(turns) <= sum {
            continue;
        }
        // Step 4.
        let turn = state.turn;
        let recently = |queue: &Queue<'_>| queue.migrated.is_some_and(|then| turn - then < turns);
        let remote = (0..queues.len())
            .filter(|remote| *remote != local && !recently(&queues[*remote]))
            .min_by_key(|remote| (vector[*remote], queues[*remote].view.cpu));
        let Some(remote) = remote else { continue };
        // Step 5.
        let (here, there) = (queues[local].view.cpu, queues[remote].view.cpu);
        let Some(theirs) = queues[remote].select(here) else { continue };
        let ours = queues[local].select(there);
        // A pull needs an empty CPU. A CPU with a task that has just arrived is not empty.
        if ours.is_none() && !queues[local].is_empty() {
            continue;
        }
        // Step 6.
        let (local_ecpt_ns, remote_ecpt_ns) = (vector[local], vector[remote]);
        let is_swap = ours.is_some();
        let mut migrate = |from: usize, index: usize, to: usize| {
            let task = queues[from].tasks.remove(index);
            queues[to].arrived += 1;
            let (from, to) = (queues[from].view.cpu, queues[to].view.cpu);
            let working_set_bytes = state.parameters.selection.working_set_bytes(task);
            let reason = if is_swap {
                Reason::Swap { local_ecpt_ns, remote_ecpt_ns, working_set_bytes }
            } else {
                Reason::Pull { local_ecpt_ns, remote_ecpt_ns, working_set_bytes }
            };
            moves.push(Move { task: task.id, from, to, reason });
        };
        migrate(remote, theirs, local);
        if let Some(ours) = ours {
            migrate(local, ours, remote);
        }
        queues[local].migrated = Some(turn);
        queues[remote].migrated = Some(turn);
        // Step 7.
        sum -= u128::from(vector[local]);
        vector[local] = queues[local].ecpt();
        sum += u128::from(vector[local]);
    }
    // Forget CPUs that are gone.
    let migrated = |queue: &Queue<'_>| Some((queue.view.cpu, queue.migrated?));
    state.migrated = queues.iter().filter_map(migrated).collect();

    let reasons = match (moves.is_empty(), snapshot.cpus.len()) {
        (false, _) => Vec::new(),
        (true, 0 | 1) => vec![Reason::OneCpu],
        (true, _) if snapshot.tasks.iter().all(|task| !task.runnable) => vec![Reason::NoActiveTask],
        (true, _) => vec![Reason::Balanced { spread_ppm }],
    };
    let interval_ns = state.parameters.interval_ns;
    Plan { moves, pins: Vec::new(), reasons, interval_ns, spread_ppm }
}

/// Places the tasks that want a CPU and were never placed. Each goes to the CPU that has the fewest
/// tasks; where several CPUs have as few, to the one with the largest ECPT. So CPUs get tasks in the
/// order of ECPT, round after round. Tasks are alike, so a CPU is first given those that are there
/// already.
fn place_new_tasks(
    queues: &mut [Queue<'_>],
    snapshot: &Snapshot,
    placed: &mut BTreeSet<TaskId>,
) -> Vec<Move> {
    let there: BTreeSet<TaskId> = snapshot.tasks.iter().map(|task| task.id).collect();
    placed.retain(|task| there.contains(task));
    let mut new: Vec<&TaskView> = Vec::new();
    for queue in queues.iter_mut() {
        queue.tasks.retain(|task| {
            let is_placed = !placed.insert(task.id) || task.fixed;
            if !is_placed {
                new.push(task);
            }
            is_placed
        });
    }
    // In the order in which they were started, as far as thread ids tell.
    new.sort_by_key(|task| task.id);
    let mut wanted = wanted_counts(queues, new.len());
    let mut moves = Vec::new();
    new.retain(|task| {
        let own = queues.iter_mut().zip(&mut wanted).find(|(queue, _)| queue.view.cpu == task.cpu);
        let Some((own, wanted)) = own.filter(|(_, wanted)| **wanted > 0) else { return true };
        own.arrived += 1;
        *wanted -= 1;
        false
    });
    for task in new {
        let may_be_on =
            |queue: &Queue<'_>| queue.view.cpu == task.cpu || task.allowed.contains(queue.view.cpu);
        // A mask may leave none of the CPUs that want a task.
        let to = (0..queues.len())
            .filter(|to| may_be_on(&queues[*to]))
            .min_by_key(|to| (wanted[*to] == 0, queues[*to].order()));
        let Some(to) = to else { continue };
        let ecpt_ns = queues[to].ecpt();
        queues[to].arrived += 1;
        wanted[to] = wanted[to].saturating_sub(1);
        let cpu = queues[to].view.cpu;
        if cpu != task.cpu {
            let reason = Reason::Placed { ecpt_ns };
            moves.push(Move { task: task.id, from: task.cpu, to: cpu, reason });
        }
    }
    moves
}

/// How many of so many new tasks each CPU gets.
fn wanted_counts(queues: &mut [Queue<'_>], tasks: usize) -> Vec<u64> {
    let before: Vec<u64> = queues.iter().map(|queue| queue.arrived).collect();
    for _ in 0..tasks {
        let next = queues.iter_mut().min_by_key(|queue| queue.order());
        next.into_iter().for_each(|queue| queue.arrived += 1);
    }
    let counts = queues.iter_mut().zip(before).map(|(queue, before)| {
        let after = std::mem::replace(&mut queue.arrived, before);
        after - before
    });
    counts.collect()
}

fn queues<'a>(snapshot: &'a Snapshot, state: &PaperState) -> Vec<Queue<'a>> {
    let mut queues: BTreeMap<u32, Queue<'a>> = snapshot
        .cpus
        .iter()
        .map(|view| {
            let effective_ns = view.paper_effective_ns(snapshot.interval_ns);
            let migrated = state.migrated.get(&view.cpu).copied();
            (view.cpu, Queue { view, tasks: Vec::new(), arrived: 0, effective_ns, migrated })
        })
        .collect();
    for task in snapshot.tasks.iter().filter(|task| task.runnable) {
        if let Some(queue) = queues.get_mut(&task.cpu) {
            queue.tasks.push(task);
        }
    }
    for queue in queues.values_mut() {
        queue.tasks.sort_by_key(|task| {
            let working_set_bytes = state.parameters.selection.working_set_bytes(task);
            (working_set_bytes.unwrap_or(u64::MAX), task.queue, task.id)
        });
    }
    queues.into_values().collect()
}
