//! A model of a machine that is small enough to reason about: CPUs with noise, a fair scheduler with
//! slices on each, and a parallel program with a barrier at the end of each phase.
//!
//! The moves of a plan are made at the end of each interval. Nothing else moves a task, as with hard
//! placement on the host, unless the program asks for a kernel that balances: it then spreads the tasks
//! that are not pinned by their number, as Linux does.

use std::collections::BTreeMap;

use evenkeel_capability::{
    Barriers, CpuView, ONE_SLEEP_NS, Plan, Policy, Seen, Snapshot, State, TaskView,
};

use evenkeel_machine::CpuSet;

use super::{Dice, MS, cpu, decide, id, task};

/// Step of the model.
const TICK_NS: u64 = MS / 2;
/// Tasks may use CPUs below this number.
const MAX_CPUS: u32 = 256;
/// Slice of the kernel's fair scheduler.
const SLICE_NS: u64 = 3 * MS;
/// Cost of a move: the caches are cold.
const MOVE_NS: u64 = MS / 10;
/// The task that runs on a CPU is sampled this often on average, to tell spinning from work. The host's
/// samples come regularly, but its phases are never as equal as the model's: so these vary by half.
const SAMPLE_NS: u64 = 2 * MS;
/// How often the model's kernel looks for CPUs with unequal numbers of tasks.
const KERNEL_NS: u64 = 8 * MS;

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
    /// The number of the phase from which on each task has so much work.
    pub then: Option<(usize, u64)>,
    /// Tasks that wait at the barrier sleep (otherwise they spin).
    pub sleeps: bool,
    /// Spinning is told from work (by samples, with their error), and barriers are counted.
    pub is_seen: bool,
    /// Where it is seen, its barriers are counted.
    pub has_heartbeat: bool,
    /// What the first tasks have to do more than the others, in percent.
    pub more_percent: u64,
    /// How many of them have more to do.
    pub larger: usize,
    /// Its user asked for so many tasks.
    pub is_asked: bool,
    /// The kernel spreads tasks that are not pinned.
    pub kernel_balances: bool,
}

impl Default for Program {
    fn default() -> Self {
        Self {
            tasks: 2,
            work_ns: 3_000 * MS,
            phases: 1,
            then: None,
            sleeps: true,
            is_seen: false,
            has_heartbeat: true,
            more_percent: 0,
            larger: 1,
            is_asked: false,
            kernel_balances: false,
        }
    }
}

impl Program {
    /// What task `index` has to do in a phase.
    pub fn work_of(&self, index: usize) -> u64 {
        let percent = if index < self.larger { 100 + self.more_percent } else { 100 };
        self.work_ns * percent / 100
    }
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
    work_ns: u64,
    hog: bool,
    waits: bool,
    /// Since its last sleep that counts.
    awake_ns: u64,
    is_pinned: bool,
    /// Its samples: how many found it spinning, and whether the last one did.
    spun: u32,
    spins: bool,
    view: TaskView,
}

struct Queue {
    current: Option<usize>,
    slice_ns: u64,
    noise_ns: u64,
    idle_ns: u64,
    /// Until the next sample.
    sample_in_ns: u64,
    /// Its tasks, as indices.
    tasks: Vec<usize>,
}

/// The time of the best possible schedule. No task uses two CPUs at once, so the program can use as
/// many of the best CPUs as it has tasks.
pub fn best_ns(cores: &[Core], program: &Program) -> u64 {
    let mut rates: Vec<f64> = cores.iter().map(share).collect();
    rates.sort_by(|a, b| b.total_cmp(a));
    let usable: f64 = rates.iter().take(program.tasks).sum();
    let in_phase: u64 = (0..program.tasks).map(|index| program.work_of(index)).sum();
    let longest = program.work_of(0) as f64 / rates[0];
    ((in_phase as f64 / usable).max(longest) * f64::from(program.phases)) as u64
}

/// The same where no task can be moved within a phase: the task with the most work has the best CPU.
pub fn best_placed_ns(cores: &[Core], program: &Program) -> u64 {
    let mut rates: Vec<f64> = cores.iter().map(share).collect();
    rates.sort_by(|a, b| b.total_cmp(a));
    let takes = (0..program.tasks).map(|index| program.work_of(index) as f64 / rates[index]);
    (takes.fold(0.0, f64::max) * f64::from(program.phases)) as u64
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
    change: impl FnMut(u64, &mut [Core]),
) -> Outcome {
    run_judged(cores, program, placed, policy, change, |_, _| {})
}

/// The same where `judge` sees each snapshot and its plan, and may take something out of the plan.
pub fn run_judged(
    cores: &[Core],
    program: &Program,
    placed: &[usize],
    policy: Option<Policy>,
    mut change: impl FnMut(u64, &mut [Core]),
    mut judge: impl FnMut(&Snapshot, &mut Plan),
) -> Outcome {
    let mut cores = cores.to_vec();
    let mut runners: Vec<Runner> = Vec::new();
    for (index, cpu) in placed.iter().enumerate() {
        runners.push(runner(*cpu, index as u32 + 100, program.work_of(index), false));
    }
    for (index, core) in cores.iter().enumerate() {
        runners.extend((0..core.hogs).map(|_| runner(index, 0, 0, true)));
    }
    let mut queues: Vec<Queue> = cores
        .iter()
        .map(|_| Queue {
            current: None,
            slice_ns: 0,
            noise_ns: 0,
            idle_ns: 0,
            sample_in_ns: SAMPLE_NS,
            tasks: vec![],
        })
        .collect();
    for (index, runner) in runners.iter().enumerate() {
        queues[runner.cpu].tasks.push(index);
    }
    let mut state = policy.map(State::new);
    let mut next_ns = state.as_ref().map_or(u64::MAX, State::first_interval_ns);
    let (mut now_ns, mut since_ns) = (0, 0);
    let (mut plans, mut barriers_ns) = (Vec::new(), Vec::new());
    let mut dice = Dice(cores.len() as u64);
    let mut seen_barriers = 0;
    while barriers_ns.len() < program.phases as usize {
        change(now_ns, &mut cores);
        for (index, queue) in queues.iter_mut().enumerate() {
            step(&cores[index], queue, &mut runners, program, &mut dice);
        }
        now_ns += TICK_NS;
        for runner in runners.iter_mut().filter(|runner| !runner.waits) {
            runner.awake_ns += TICK_NS;
        }
        assert!(now_ns < 600_000 * MS, "the program never ends");
        if program.kernel_balances {
            spread(now_ns, &mut runners, &mut queues);
        }
        let mut own = runners.iter_mut().filter(|runner| !runner.hog);
        if own.all(|runner| runner.done_ns >= runner.work_ns) {
            barriers_ns.push(now_ns);
            let new = program.then.filter(|(from, _)| *from == barriers_ns.len());
            for runner in runners.iter_mut().filter(|runner| !runner.hog) {
                runner.done_ns = 0;
                runner.work_ns = new.map_or(runner.work_ns, |(_, work_ns)| work_ns);
                if runner.waits {
                    wake(runner);
                }
            }
            for queue in &queues {
                level(queue, &mut runners);
            }
        }
        if now_ns >= next_ns {
            let mut snapshot = observe(now_ns - since_ns, &cores, &mut queues, &mut runners);
            if program.is_seen {
                let count = (barriers_ns.len() - seen_barriers) as u32;
                let observed_ns = snapshot.interval_ns;
                let barriers = program.has_heartbeat.then_some(Barriers { count, observed_ns });
                let asked = program.is_asked;
                snapshot.seen = Seen { spinning: true, asked, barriers, ..Seen::default() };
            } else {
                for task in &mut snapshot.tasks {
                    (task.spun_ns, task.samples, task.changes) = (0, 0, 0);
                }
            }
            seen_barriers = barriers_ns.len();
            if let Some(state) = &mut state {
                let mut plan = decide(&snapshot, state);
                judge(&snapshot, &mut plan);
                make_moves(&plan, &mut runners, &mut queues);
                next_ns = now_ns + plan.interval_ns;
                plans.push((now_ns, plan));
            }
            since_ns = now_ns;
        }
    }
    Outcome { elapsed_ns: now_ns, plans, barriers_ns }
}

fn runner(cpu: usize, tid: u32, work_ns: u64, hog: bool) -> Runner {
    let allowed = CpuSet::first(MAX_CPUS);
    let view = TaskView { sleeps: 0, allowed, ..cleared(task(tid, cpu as u32)) };
    Runner {
        cpu,
        vruntime_ns: 0,
        done_ns: 0,
        debt_ns: 0,
        work_ns,
        hog,
        waits: false,
        awake_ns: 0,
        is_pinned: false,
        spun: 0,
        spins: false,
        view,
    }
}

/// What the kernel does of its own accord: an idle CPU pulls a task that waits for another one, and now
/// and then a CPU with at least two tasks more than another one gives one away.
fn spread(now_ns: u64, runners: &mut [Runner], queues: &mut [Queue]) {
    let wanting = |queue: &Queue, runners: &[Runner]| {
        queue.tasks.iter().filter(|task| !runners[**task].waits).count()
    };
    let counts: Vec<usize> = queues.iter().map(|queue| wanting(queue, runners)).collect();
    let least = (0..counts.len()).min_by_key(|cpu| counts[*cpu]).unwrap_or(0);
    let most = (0..counts.len()).max_by_key(|cpu| counts[*cpu]).unwrap_or(0);
    let is_due = counts[least] == 0 || now_ns.is_multiple_of(KERNEL_NS);
    if !is_due || counts[most] < counts[least] + 2 {
        return;
    }
    let may_go = |task: &usize| {
        let runner = &runners[*task];
        !runner.waits && !runner.is_pinned && !runner.hog && queues[most].current != Some(*task)
    };
    if let Some(task) = queues[most].tasks.iter().copied().find(may_go) {
        migrate(task, least, runners, queues);
    }
}

fn migrate(task: usize, to: usize, runners: &mut [Runner], queues: &mut [Queue]) {
    let waking = queues[to].tasks.iter().filter(|other| !runners[**other].waits);
    let least_ns = waking.map(|other| runners[*other].vruntime_ns).min();
    let from = &mut queues[runners[task].cpu];
    from.tasks.retain(|other| *other != task);
    if from.current == Some(task) {
        from.current = None;
    }
    queues[to].tasks.push(task);
    let runner = &mut runners[task];
    runner.cpu = to;
    runner.vruntime_ns = least_ns.unwrap_or(runner.vruntime_ns);
    runner.debt_ns += MOVE_NS;
}

fn cleared(view: TaskView) -> TaskView {
    TaskView {
        run_ns: 0,
        spun_ns: 0,
        samples: 0,
        changes: 0,
        received_ns: 0,
        stolen_ns: 0,
        wait_ns: 0,
        sleeps: 0,
        ..view
    }
}

fn wake(runner: &mut Runner) {
    runner.waits = false;
}

/// Gives all tasks of a CPU the same vruntime, so that a task that slept does not catch up.
fn level(queue: &Queue, runners: &mut [Runner]) {
    let here = || queue.tasks.iter().copied();
    let most_ns = here().filter(|task| !runners[*task].waits).map(|task| runners[task].vruntime_ns);
    let most_ns = most_ns.max().unwrap_or(0);
    for task in here().filter(|task| !runners[*task].waits).collect::<Vec<_>>() {
        runners[task].vruntime_ns = most_ns;
    }
}

/// Advances one CPU by a tick.
fn step(
    core: &Core,
    queue: &mut Queue,
    runners: &mut [Runner],
    program: &Program,
    dice: &mut Dice,
) {
    let noise_ns = TICK_NS * (1_000_000 - core.left_ppm) / 1_000_000;
    queue.noise_ns += noise_ns;
    let expired = queue.slice_ns == 0;
    if expired || queue.current.is_none_or(|current| runners[current].waits) {
        let wanting = queue.tasks.iter().copied().filter(|task| !runners[*task].waits);
        let next = wanting.min_by_key(|task| (runners[*task].vruntime_ns, *task));
        queue.current = next;
        queue.slice_ns = SLICE_NS;
    }
    queue.slice_ns -= TICK_NS;
    let Some(current) = queue.current else {
        queue.idle_ns += TICK_NS - noise_ns;
        return;
    };
    for other in queue.tasks.iter().copied().filter(|other| *other != current) {
        if !runners[other].waits {
            runners[other].view.wait_ns += TICK_NS;
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
    let left_ns = runner.work_ns.saturating_sub(runner.done_ns);
    runner.done_ns += received_ns - wasted_ns;
    queue.sample_in_ns = queue.sample_in_ns.saturating_sub(TICK_NS);
    if queue.sample_in_ns == 0 {
        queue.sample_in_ns = SAMPLE_NS / 2 + dice.below(SAMPLE_NS);
        // It may begin to spin within the tick.
        let spun_ns = (received_ns - wasted_ns).saturating_sub(left_ns);
        let spins = !program.sleeps && dice.below(received_ns.max(1)) < spun_ns;
        runner.view.samples += 1;
        runner.view.changes += u32::from(spins != runner.spins);
        (runner.spun, runner.spins) = (runner.spun + u32::from(spins), spins);
    }
    runner.waits = !runner.hog && program.sleeps && runner.done_ns >= runner.work_ns;
    if runner.waits && runner.awake_ns >= ONE_SLEEP_NS {
        runner.view.sleeps += 1;
        runner.awake_ns = 0;
    }
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
            let TaskView { run_ns, samples, .. } = runner.view;
            let view = TaskView {
                cpu: runner.cpu as u32,
                queue: runner.vruntime_ns,
                runnable: !runner.waits,
                spun_ns: run_ns * u64::from(runner.spun) / u64::from(samples.max(1)),
                ..runner.view.clone()
            };
            runner.spun = 0;
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
        assert_eq!(runners[index].cpu as u32, made.from);
        assert_eq!(runners[index].view.id, id(made.task.tid));
        migrate(index, made.to as usize, runners, queues);
    }
    runners.iter_mut().for_each(|runner| runner.is_pinned = false);
    for pin in &plan.pins {
        let runner = &mut runners[index_of[&pin.task]];
        assert_eq!(runner.cpu as u32, pin.cpu);
        runner.is_pinned = true;
    }
}
