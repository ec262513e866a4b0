//! A model of a machine that is small enough to reason about: CPUs with noise, a fair scheduler with
//! slices on each, and a parallel program with a barrier at the end of each phase.
//!
//! The moves of a plan are made at the end of each interval. Nothing else moves a task, as with hard
//! placement on the host.

use std::collections::BTreeMap;

use evenkeel_capability::{CpuView, Plan, Policy, Seen, Snapshot, State, TaskView};

use super::{MS, cpu, decide, id, task};

/// Step of the model.
const TICK_NS: u64 = MS / 2;
/// Slice of the kernel's fair scheduler.
const SLICE_NS: u64 = 3 * MS;
/// Cost of a move: the caches are cold.
const MOVE_NS: u64 = MS / 10;

/// A CPU of the model.
#[derive(Debug, Clone, Copy)]
pub struct Core {
    /// Speed, 1..=1024.
    pub speed: u32,
    /// The share that noise leaves, in parts per million.
    pub left_ppm: u64,
    /// Hogs of another program, pinned to it.
    pub hogs: usize,
}

/// The parallel program.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its tasks.
    pub tasks: usize,
    /// Work of each task in each phase, in time on the fastest CPU without disturbance.
    pub work_ns: u64,
    /// Number of phases, each with a barrier at its end.
    pub phases: u32,
    /// Tasks that wait at the barrier sleep (otherwise they spin).
    pub sleeps: bool,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Time that the program took.
    pub elapsed_ns: u64,
    /// Every plan, with the time at which it was made.
    pub plans: Vec<(u64, Plan)>,
    /// When each barrier was reached by all tasks.
    pub barriers_ns: Vec<u64>,
}

impl Outcome {
    /// Moves in all.
    pub fn moves(&self) -> usize {
        self.plans.iter().map(|(_, plan)| plan.moves.len()).sum()
    }
}

struct Runner {
    cpu: usize,
    vruntime_ns: u64,
    done_ns: u64,
    debt_ns: u64,
    hog: bool,
    waits: bool,
    view: TaskView,
}

struct Queue {
    current: Option<usize>,
    slice_ns: u64,
    noise_ns: u64,
    idle_ns: u64,
}

/// The time of the best possible schedule. No task uses two CPUs at once, so the program can use as
/// many of the best CPUs as it has tasks.
pub fn best_ns(cores: &[Core], program: &Program) -> u64 {
    let mut rates: Vec<f64> = cores.iter().map(share).collect();
    rates.sort_by(|a, b| b.total_cmp(a));
    let usable: f64 = rates.iter().take(program.tasks).sum();
    let work = program.work_ns as f64 * f64::from(program.phases) * program.tasks as f64;
    (work / usable) as u64
}

fn share(core: &Core) -> f64 {
    core.left_ppm as f64 / 1e6 * f64::from(core.speed) / 1024.0 / (core.hogs as f64 + 1.0)
}

/// Runs the program with its tasks placed in turn on the CPUs, the best CPU first, as `chcb` does.
/// Without a policy they stay there. `change` may change the machine at each tick.
pub fn run(
    cores: &[Core],
    program: &Program,
    policy: Option<Policy>,
    change: impl FnMut(u64, &mut [Core]),
) -> Outcome {
    let mut order: Vec<usize> = (0..cores.len()).collect();
    order.sort_by(|a, b| share(&cores[*b]).total_cmp(&share(&cores[*a])));
    let placed: Vec<usize> = (0..program.tasks).map(|index| order[index % order.len()]).collect();
    run_from(cores, program, &placed, policy, change)
}

/// The same with the tasks placed on the CPUs `placed`.
pub fn run_from(
    cores: &[Core],
    program: &Program,
    placed: &[usize],
    policy: Option<Policy>,
    mut change: impl FnMut(u64, &mut [Core]),
) -> Outcome {
    let mut cores = cores.to_vec();
    let mut runners: Vec<Runner> = Vec::new();
    for (index, cpu) in placed.iter().enumerate() {
        runners.push(runner(*cpu, index as u32 + 100, false));
    }
    for (index, core) in cores.iter().enumerate() {
        runners.extend((0..core.hogs).map(|_| runner(index, 0, true)));
    }
    let mut queues: Vec<Queue> = cores
        .iter()
        .map(|_| Queue { current: None, slice_ns: 0, noise_ns: 0, idle_ns: 0 })
        .collect();
    let mut state = policy.map(State::new);
    let mut next_ns = state.as_ref().map_or(u64::MAX, State::first_interval_ns);
    let (mut now_ns, mut since_ns) = (0, 0);
    let (mut plans, mut barriers_ns) = (Vec::new(), Vec::new());
    while barriers_ns.len() < program.phases as usize {
        change(now_ns, &mut cores);
        for (index, queue) in queues.iter_mut().enumerate() {
            step(index, &cores[index], queue, &mut runners, program);
        }
        now_ns += TICK_NS;
        assert!(now_ns < 600_000 * MS, "the program never ends");
        let mut own = runners.iter_mut().filter(|runner| !runner.hog);
        if own.all(|runner| runner.done_ns >= program.work_ns) {
            barriers_ns.push(now_ns);
            for runner in runners.iter_mut().filter(|runner| !runner.hog) {
                runner.done_ns = 0;
                if runner.waits {
                    wake(runner);
                }
            }
            for index in 0..cores.len() {
                level(index, &mut runners);
            }
        }
        if now_ns >= next_ns {
            let snapshot = observe(now_ns - since_ns, &cores, &mut queues, &mut runners);
            if let Some(state) = &mut state {
                let plan = decide(&snapshot, state);
                make_moves(&plan, &mut runners, &mut queues);
                next_ns = now_ns + plan.interval_ns;
                plans.push((now_ns, plan));
            }
            since_ns = now_ns;
        }
    }
    Outcome { elapsed_ns: now_ns, plans, barriers_ns }
}

fn runner(cpu: usize, tid: u32, hog: bool) -> Runner {
    let view = TaskView { switches: 0, ..cleared(task(tid, cpu as u32)) };
    Runner { cpu, vruntime_ns: 0, done_ns: 0, debt_ns: 0, hog, waits: false, view }
}

fn cleared(view: TaskView) -> TaskView {
    TaskView { run_ns: 0, received_ns: 0, stolen_ns: 0, wait_ns: 0, switches: 0, ..view }
}

fn wake(runner: &mut Runner) {
    runner.waits = false;
}

/// Gives all tasks of a CPU the same vruntime, so that a task that slept does not catch up.
fn level(cpu: usize, runners: &mut [Runner]) {
    let here = |runner: &&mut Runner| runner.cpu == cpu && !runner.waits;
    let most = runners.iter_mut().filter(here).map(|runner| runner.vruntime_ns).max().unwrap_or(0);
    for runner in runners.iter_mut().filter(here) {
        runner.vruntime_ns = most;
    }
}

/// Advances one CPU by a tick.
fn step(index: usize, core: &Core, queue: &mut Queue, runners: &mut [Runner], program: &Program) {
    let noise_ns = TICK_NS * (1_000_000 - core.left_ppm) / 1_000_000;
    queue.noise_ns += noise_ns;
    let wants = |runner: &Runner| runner.cpu == index && !runner.waits;
    let expired = queue.slice_ns == 0;
    if expired || queue.current.is_none_or(|current| !wants(&runners[current])) {
        let next = (0..runners.len())
            .filter(|candidate| wants(&runners[*candidate]))
            .min_by_key(|candidate| (runners[*candidate].vruntime_ns, *candidate));
        if let (Some(next), true) = (next, next != queue.current) {
            runners[next].view.switches += 1;
        }
        queue.current = next;
        queue.slice_ns = SLICE_NS;
    }
    queue.slice_ns -= TICK_NS;
    let Some(current) = queue.current else {
        queue.idle_ns += TICK_NS - noise_ns;
        return;
    };
    for (other, runner) in runners.iter_mut().enumerate() {
        if other != current && runner.cpu == index && !runner.waits {
            runner.view.wait_ns += TICK_NS;
        }
    }
    let runner = &mut runners[current];
    let run_ns = TICK_NS - noise_ns;
    let received_ns = run_ns * u64::from(core.speed) / 1024;
    runner.vruntime_ns += TICK_NS;
    runner.view.run_ns += run_ns;
    runner.view.stolen_ns += noise_ns;
    runner.view.received_ns += received_ns;
    let wasted_ns = received_ns.min(runner.debt_ns);
    runner.debt_ns -= wasted_ns;
    runner.done_ns += received_ns - wasted_ns;
    runner.waits = !runner.hog && program.sleeps && runner.done_ns >= program.work_ns;
}

fn observe(
    interval_ns: u64,
    cores: &[Core],
    queues: &mut [Queue],
    runners: &mut [Runner],
) -> Snapshot {
    let cpus = cores
        .iter()
        .zip(queues.iter_mut())
        .enumerate()
        .map(|(index, (core, queue))| CpuView {
            speed: core.speed,
            noise_ns: std::mem::take(&mut queue.noise_ns),
            idle_ns: std::mem::take(&mut queue.idle_ns),
            foreign_milli: core.hogs as u32 * 1000,
            ..cpu(index as u32)
        })
        .collect();
    let tasks = runners
        .iter_mut()
        .filter(|runner| !runner.hog)
        .map(|runner| {
            let view = TaskView {
                cpu: runner.cpu as u32,
                queue: runner.vruntime_ns,
                runnable: !runner.waits,
                ..runner.view.clone()
            };
            runner.view = cleared(view.clone());
            view
        })
        .collect();
    Snapshot { interval_ns, cpus, tasks, seen: Seen::default() }
}

fn make_moves(plan: &Plan, runners: &mut [Runner], queues: &mut [Queue]) {
    let index_of: BTreeMap<_, _> = runners
        .iter()
        .enumerate()
        .filter(|(_, runner)| !runner.hog)
        .map(|(index, runner)| (runner.view.id, index))
        .collect();
    for made in &plan.moves {
        let index = index_of[&made.task];
        let to = made.to as usize;
        let least = runners
            .iter()
            .filter(|runner| runner.cpu == to && !runner.waits)
            .map(|runner| runner.vruntime_ns)
            .min();
        for queue in queues.iter_mut().filter(|queue| queue.current == Some(index)) {
            queue.current = None;
        }
        let runner = &mut runners[index];
        assert_eq!(runner.cpu as u32, made.from);
        assert_eq!(runner.view.id, id(made.task.tid));
        runner.cpu = to;
        runner.vruntime_ns = least.unwrap_or(runner.vruntime_ns);
        runner.debt_ns += MOVE_NS;
    }
}
