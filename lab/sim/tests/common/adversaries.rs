//! Worlds in which an unprivileged user tries to make others wait. In each of them a fair scheduler lets
//! no task wait for 5 s.

use std::sync::Arc;

use evenkeel_invariants::Limits;
use evenkeel_keel::{Aggregation, Balance, Gate, Options, Order, USER_BONUS_NS};
use evenkeel_machine::Machine;
use evenkeel_sim::program::{Change, GroupPlan, KERNEL, Op, Policy, TaskPlan, Thief, Workload};
use evenkeel_sim::{Mask, STRICT};

use super::worlds::World;
use super::{MS, Sim, only, paper};

/// No task may wait longer, however many there are.
const LIMITS: Limits =
    Limits { wait_ns: 10_000 * MS, wait_per_task_ns: 0, share_window_ns: u64::MAX, ..STRICT };

/// The cgroups of the two users.
pub const VICTIM: usize = 1;
const ADVERSARY: usize = 2;
/// The one with the least weight, in the world of that name.
const LIGHT: usize = 3;
const LEAST_WEIGHT: &str = "the least weight";
/// The address space of the adversary's program.
const PROGRAM: u32 = 900;
/// All tasks of a world are in memory from its start.
const MOST_CHILDREN: u64 = 20_000;
/// The CPUs of the worlds.
const CPUS: u32 = 2;

/// A world before its policies are chosen.
type Make = fn(Options, u64) -> Sim;

/// With each world, what the victim has at least of the time that both users have, in percent. Both have
/// the same weight, and the victim can use more than half of two CPUs.
const WORLDS: [(&str, Make, u64); 16] = [
    ("deep cgroups", deep_cgroups, 45),
    ("thousands of cgroups", many_cgroups, 45),
    ("a flood of nice 19", nice_flood, 45),
    (LEAST_WEIGHT, least_weight, 80),
    ("a yield storm", yield_storm, 45),
    ("a fork storm", fork_storm, 45),
    ("forks of parents that sleep", sleeping_parents, 45),
    ("an exec storm", exec_storm, 45),
    // A ninth of a half is what siblings may have out of their turn.
    ("aggregating fresh threads", aggregating, 40),
    // Many CPUs: the victim cannot use its half.
    ("threads that die in their turns", dying_in_turns, 0),
    ("flapping masks", flapping_masks, 45),
    ("flapping weights", flapping_weights, 45),
    ("flapping policies", flapping_policies, 45),
    ("pinned kernel threads", kernel_threads, 45),
    ("real-time tasks that come and go", real_time, 45),
    // CPUs idle: the victim has all that it can use.
    ("higher classes that come and go on idle CPUs", higher_classes, 0),
];

/// A world, the least share of the victim, and the cgroup of the tasks that starve and are rescued, all
/// alike.
pub struct Adversary {
    pub world: World,
    pub least_share_pct: u64,
    pub starving: Option<usize>,
}

/// All worlds under these combinations of policies, for so long.
pub fn all(combinations: &[usize], lasts_ms: u64) -> Vec<Adversary> {
    let mut all = Vec::new();
    for (name, make, least_share_pct) in WORLDS {
        for at in combinations {
            let options = Options {
                order: Order::ALL[at % 2],
                gate: Gate::ALL[at / 2 % 2],
                balance: Balance::ALL[at / 4],
                ..Options::default()
            };
            let policies = format!("{}/{}/{}", options.order, options.gate, options.balance);
            let mut sim = make(options, lasts_ms);
            sim.workload.duration_ns = lasts_ms * MS;
            let mut simulation = sim.simulation();
            simulation.limits = Some(LIMITS);
            simulation.max_events = u64::MAX;
            let world = World { name: format!("{name}: {policies}"), simulation };
            let starving = (name == LEAST_WEIGHT).then_some(LIGHT);
            all.push(Adversary { world, least_share_pct, starving });
        }
    }
    all
}

/// The victim's tasks, and a cgroup for each user.
fn victims(options: Options) -> Sim {
    let user = |name: &str| GroupPlan { name: name.to_owned(), weight: 100, parent: 0 };
    let mine = |ops, space| TaskPlan { group: VICTIM, space, ..TaskPlan::new("victim", ops) };
    let mut sim = Sim::keel_with(paper(CPUS), options)
        .tasks(3, mine(vec![Op::Run(3_600_000 * MS)], 1))
        .tasks(2, mine(vec![Op::RunAbout(MS), Op::SleepAbout(20 * MS), Op::Goto(0)], 2))
        .task(TaskPlan { nice: 10, ..mine(vec![Op::Run(3_600_000 * MS)], 3) })
        .task(TaskPlan { allowed: only(0), ..mine(vec![Op::Run(MS), Op::Yield, Op::Goto(0)], 4) });
    sim.workload.groups = vec![user("victim"), user("adversary")];
    sim
}

/// A task of the adversary.
fn theirs(ops: Vec<Op>) -> TaskPlan {
    TaskPlan { group: ADVERSARY, space: PROGRAM, ..TaskPlan::new("adversary", ops) }
}

fn hog() -> TaskPlan {
    theirs(vec![Op::Run(3_600_000 * MS)])
}

/// Adds a cgroup of the adversary; returns its number.
fn group(workload: &mut Workload, weight: u32, parent: usize) -> usize {
    workload.groups.push(GroupPlan { name: "theirs".to_owned(), weight, parent });
    workload.groups.len()
}

fn deep_cgroups(options: Options, _: u64) -> Sim {
    let mut sim = victims(options);
    for depth in [8, 31, 60] {
        let deepest = (0..depth).fold(ADVERSARY, |at, _| group(&mut sim.workload, 10_000, at));
        sim = sim.tasks(8, TaskPlan { group: deepest, ..hog() });
    }
    sim
}

fn many_cgroups(options: Options, lasts_ms: u64) -> Sim {
    let mut sim = victims(options);
    for at in 0..6_000 {
        let own = group(&mut sim.workload, 10_000, ADVERSARY);
        if at % 40 == 0 {
            sim = sim.task(TaskPlan { group: own, ..hog() });
        }
    }
    // Empty ones go and come.
    let renewed = |at: u64| (at * 10 * MS, Change::Renew { group: 4 + (at as usize * 40) % 5_000 });
    sim.workload.changes = (0..lasts_ms / 10).map(renewed).collect();
    sim
}

fn nice_flood(options: Options, _: u64) -> Sim {
    victims(options).tasks(200, TaskPlan { nice: 19, ..hog() })
}

/// A cgroup with so little weight that its own tasks starve, and their rescue must not disturb others.
fn least_weight(options: Options, _: u64) -> Sim {
    let mut sim = victims(options);
    // The victim's has a hundred times the default weight.
    sim.workload.groups[VICTIM - 1].weight = 10_000;
    let light = group(&mut sim.workload, 1, 0);
    assert_eq!(light, LIGHT);
    sim.tasks(300, TaskPlan { group: light, ..hog() })
}

fn yield_storm(options: Options, _: u64) -> Sim {
    victims(options).tasks(40, theirs(vec![Op::Run(MS / 20), Op::Yield, Op::Goto(0)]))
}

/// Each of four parents forks all the time; each child ends before its second turn.
fn fork_storm(options: Options, lasts_ms: u64) -> Sim {
    let mut sim = victims(options);
    for _ in 0..4 {
        fork_all_the_time(&mut sim.workload, lasts_ms / 8, WORKS, theirs(vec![Op::Run(4 * MS)]));
    }
    sim
}

/// Each of the parents sleeps while its child runs: it owes nothing that the next child could inherit.
fn sleeping_parents(options: Options, lasts_ms: u64) -> Sim {
    let mut sim = victims(options);
    sim.workload.channels = 20;
    for parent in 0..sim.workload.channels {
        let child = theirs(vec![Op::Run(4 * MS), Op::Send(parent)]);
        fork_all_the_time(&mut sim.workload, lasts_ms / 40, Op::Receive(parent), child);
    }
    sim
}

/// What a parent does after each fork.
const WORKS: Op = Op::Run(MS / 4);

/// Adds a task that forks so many children, or MOST_CHILDREN, and does this after each.
fn fork_all_the_time(workload: &mut Workload, children: u64, pause: Op, child: TaskPlan) {
    let children = children.min(MOST_CHILDREN);
    let first = workload.tasks.len() + 1;
    let fork = |at: u64| [Op::Fork(first + at as usize), pause.clone()];
    workload.tasks.push(theirs((0..children).flat_map(fork).collect()));
    let late = TaskPlan { arrives_ns: None, ..child };
    workload.tasks.extend(std::iter::repeat_n(late, children as usize));
}

/// Programs that become others all the time, and forks that become programs.
fn exec_storm(options: Options, lasts_ms: u64) -> Sim {
    let exec = |at: u32| [Op::Exec(PROGRAM + at), Op::Run(MS / 4)];
    let again = (1..9).flat_map(exec).chain([Op::Goto(0)]).collect();
    let mut sim = victims(options).tasks(20, theirs(again));
    for _ in 0..4 {
        let child = vec![Op::Exec(PROGRAM + 9), Op::Run(2 * MS), Op::Exec(PROGRAM), Op::Run(MS)];
        fork_all_the_time(&mut sim.workload, lasts_ms / 8, WORKS, theirs(child));
    }
    sim
}

fn flapping_masks(options: Options, _: u64) -> Sim {
    let mask = |cpu| Op::Affinity(only(cpu).unwrap());
    let flap = vec![mask(0), Op::Run(MS / 4), mask(1), Op::Run(MS / 4), Op::Goto(0)];
    victims(options).tasks(20, theirs(flap)).tasks(20, hog())
}

fn flapping_weights(options: Options, lasts_ms: u64) -> Sim {
    let flap = vec![Op::Nice(19), Op::Run(MS), Op::Nice(0), Op::Run(MS), Op::Goto(0)];
    let mut sim = victims(options).tasks(20, theirs(flap));
    let own = group(&mut sim.workload, 100, ADVERSARY);
    let task = sim.workload.tasks.len();
    sim = sim.tasks(20, hog());
    let changes = |at: u64| {
        let weight = [1, 10_000][at as usize % 2];
        let moved = Change::Group {
            task: task + at as usize % 20,
            group: [own, ADVERSARY][at as usize % 2],
        };
        [(at * 20 * MS, Change::Weight { group: own, weight }), (at * 20 * MS + MS, moved)]
    };
    sim.workload.changes = (0..lasts_ms / 20).flat_map(changes).collect();
    sim
}

/// SCHED_IDLE, SCHED_BATCH and SCHED_OTHER in turn, beside hogs of each.
fn flapping_policies(options: Options, _: u64) -> Sim {
    let work = |policy| [Op::Policy(policy), Op::Run(MS / 2)];
    let all = [Policy::Idle, Policy::Other, Policy::Batch];
    let flap = all.into_iter().flat_map(work).chain([Op::Goto(0)]).collect();
    let hogs = |policy| theirs(vec![Op::Policy(policy), Op::Run(3_600_000 * MS)]);
    victims(options)
        .tasks(20, theirs(flap))
        .tasks(20, hogs(Policy::Idle))
        .tasks(20, hogs(Policy::Batch))
}

/// The largest bonus that a user may set, and threads that are always new: under `ias` a thread of the
/// program that runs is preferred to others.
fn aggregating(options: Options, lasts_ms: u64) -> Sim {
    let mut sim = victims(options).tasks(10, hog());
    fork_all_the_time(&mut sim.workload, lasts_ms / 8, WORKS, theirs(vec![Op::Run(4 * MS)]));
    let pid = PROGRAM + 1;
    let most = Aggregation { pid, agg: 1, bonus_type: 0, bonus_value: USER_BONUS_NS, limit: 0 };
    sim.workload.aggregations = vec![most];
    sim.workload.ordinary = vec![pid];
    sim
}

/// On unequal CPUs, where tasks that run alone take turns.
fn dying_in_turns(options: Options, lasts_ms: u64) -> Sim {
    let mut options = options;
    if options.balance == Balance::Capability {
        options.parts = "turns,similar,active".parse().unwrap();
    }
    let mut sim = victims(options);
    sim.machine = Machine::preset("hybrid").unwrap();
    for _ in 0..4 {
        fork_all_the_time(&mut sim.workload, lasts_ms / 40, WORKS, theirs(vec![Op::Run(30 * MS)]));
    }
    sim
}

/// Kernel threads that are pinned, as a CPU's own worker threads are.
fn kernel_threads(options: Options, _: u64) -> Sim {
    let work = vec![Op::RunAbout(MS / 5), Op::SleepAbout(30 * MS), Op::Goto(0)];
    let mut sim = victims(options).tasks(60, hog());
    for cpu in 0..CPUS {
        let thread =
            TaskPlan { space: KERNEL, allowed: only(cpu), ..TaskPlan::new("kernel", work.clone()) };
        sim = sim.tasks(3, thread.clone()).task(TaskPlan { nice: -20, ..thread });
    }
    sim
}

/// They are not the adversary's: it may not have any. But its hogs run beside them.
fn real_time(options: Options, _: u64) -> Sim {
    let both = Arc::new((0..CPUS).fold(Mask::EMPTY, |mut mask, cpu| {
        mask.set(cpu);
        mask
    }));
    let nap = vec![Op::RunAbout(MS), Op::SleepAbout(3 * MS), Op::Goto(0)];
    let mut sim = victims(options)
        .tasks(20, TaskPlan { allowed: Some(both), ..theirs(nap) })
        .tasks(10, hog());
    for cpu in 0..CPUS {
        let (run_ns, period_ns) = ([35, 3][cpu as usize] * MS, [70, 11][cpu as usize] * MS);
        sim = sim.thief(Thief { cpu, run_ns, period_ns, from_ns: 7 * MS });
    }
    sim
}

/// Real-time and deadline tasks take CPUs that idle, or are about to run a task that woke. They are not
/// the adversary's, either: its naps make CPUs idle and busy all the time.
fn higher_classes(options: Options, _: u64) -> Sim {
    let nap = vec![Op::RunAbout(MS / 2), Op::SleepAbout(9 * MS), Op::Goto(0)];
    let mut sim = victims(options).tasks(12, theirs(nap));
    let cpus = 8;
    sim.machine = paper(cpus);
    // A pinned victim on each CPU.
    for cpu in 0..cpus {
        let work = vec![Op::RunAbout(MS), Op::SleepAbout(7 * MS), Op::Goto(0)];
        let pinned = TaskPlan::new("pinned", work);
        sim = sim.task(TaskPlan { group: VICTIM, space: 5, allowed: only(cpu), ..pinned });
    }
    let every = |cpu: u32, run_ms: u64, period_ms: u64| Thief {
        cpu,
        run_ns: run_ms * MS,
        period_ns: period_ms * MS,
        from_ns: u64::from(cpu) * MS,
    };
    // Beside a pinned hog there is no more than half of a CPU for them.
    let higher = |share: u64, period: u64| {
        (0..cpus).map(move |cpu| every(cpu, share, period + u64::from(cpu))).collect()
    };
    sim.workload.thieves = higher(13, 61);
    sim.workload.deadlines = higher(5, 23);
    sim
}
