//! The worlds in which the keel's decisions are recorded (`decisions.txt`): calm ones, random ones with
//! all faults, and corner cases that the others seldom reach. All are small.

use std::sync::Arc;

use evenkeel_invariants::Limits;
use evenkeel_keel::{Aggregation, Balance, Gate, Mode, Options, Order, Slice};
use evenkeel_machine::{CpuSet, Machine};
use evenkeel_sim::program::{Change, GroupPlan, Interrupts, KERNEL, Op, TaskPlan, Thief, Workload};
use evenkeel_sim::{FaultPlan, Mask, STRICT, Scheduler, Simulation};

use super::torture;
use super::{MS, Sim, hog, keel_build, only, paper};

/// A world with its scheduler, and its name in `decisions.txt`.
pub struct World {
    pub name: String,
    pub simulation: Simulation,
}

/// All worlds; their names are unique. In each the order `ias` has the mode `paper`; those where
/// something aggregates are also there in the mode `rounds`.
pub fn all() -> Vec<World> {
    let mut all: Vec<World> = [calm(), torture(), corners()].into_iter().flatten().collect();
    let aggregates = |world: &&World| {
        let workload = &world.simulation.workload;
        options(&world.simulation).is_some_and(|options| {
            options.order == Order::Ias && (options.ias.auto || !workload.aggregations.is_empty())
        })
    };
    let rounds: Vec<World> = all.iter().filter(aggregates).map(in_rounds).collect();
    all.iter_mut().for_each(|world| set_mode(&mut world.simulation, Mode::Paper));
    all.into_iter().chain(rounds).collect()
}

fn options(simulation: &Simulation) -> Option<&Options> {
    simulation.scheduler.options()
}

fn set_mode(simulation: &mut Simulation, mode: Mode) {
    if let Scheduler::Keel(options) | Scheduler::Built(options, _) = &mut simulation.scheduler {
        options.ias.mode = mode;
    }
}

/// The same world, its address spaces taking turns.
fn in_rounds(world: &World) -> World {
    let mut simulation = world.simulation.clone();
    set_mode(&mut simulation, Mode::Rounds);
    World { name: format!("{}, in rounds", world.name), simulation }
}

/// Workloads and machines, each under all combinations of policies.
const CALM: [(&str, &str); 4] = [
    ("arrivals:tasks=80", "small"),
    ("pool", "hybrid"),
    ("groups:programs=8,threads=6,work=3ms,rounds=3,pause=2ms", "amc1"),
    ("barrier:tasks=24,work=2ms,rounds=6", "small"),
];

fn calm() -> Vec<World> {
    let mut all = Vec::new();
    for (load, machine) in CALM {
        for at in 0..8 {
            let options = Options {
                order: Order::ALL[at % 2],
                gate: Gate::ALL[at / 2 % 2],
                balance: Balance::ALL[at / 4],
                ..Options::default()
            };
            let name = format!("{load} on {machine}: {}", policies(&options));
            all.push(world(name, Machine::preset(machine).unwrap(), options, shape(load)));
        }
    }
    all
}

/// Every third of these seeds makes a world with all faults.
const SEEDS: std::ops::Range<u64> = 0..64;
const STEP: usize = 3;

fn torture() -> Vec<World> {
    let keel = keel_build();
    let of_seed = |seed| {
        let mut simulation = torture::simulation(seed, keel.as_deref());
        // In half of them no call fails: then runnable tasks must be counted correctly.
        if seed % 2 == 1 {
            simulation.faults.fail_one_in = 0;
        }
        World { name: format!("torture {seed} on {}", simulation.machine.name), simulation }
    };
    SEEDS.step_by(STEP).map(of_seed).collect()
}

/// What is rare in the other worlds.
fn corners() -> Vec<World> {
    let mut all = Vec::new();
    all.extend(failing());
    all.extend(zones());
    all.extend(aggregating());
    all.extend(shielded());
    all.extend(nested());
    all.extend(large());
    all.extend(waiting());
    all
}

fn policies(options: &Options) -> String {
    format!("{}/{}/{}", options.order, options.gate, options.balance)
}

fn shape(load: &str) -> Workload {
    Workload::by_name(load, 1).unwrap()
}

fn world(name: String, machine: Machine, options: Options, workload: Workload) -> World {
    let simulation = Sim { workload, ..Sim::keel_with(machine, options) }.simulation();
    World { name, simulation }
}

/// Sets parameters, given as NAME=VALUE.
fn with_parameters(options: Options, knobs: &[&str]) -> Options {
    let mut options = options;
    for knob in knobs {
        let (name, value) = knob.split_once('=').unwrap();
        options.set_parameter(name, value).unwrap();
    }
    options
}

fn capable(parts: &str) -> Options {
    let parts = parts.parse().unwrap();
    Options { balance: Balance::Capability, parts, ..Options::default() }
}

/// Calls fail nearly ten times as often as in the others, so that each of the keel's fallbacks is
/// reached.
fn failing() -> Vec<World> {
    let keel = keel_build();
    let of_seed = |seed| {
        let mut simulation = torture::simulation(seed, keel.as_deref());
        simulation.faults = FaultPlan { fail_one_in: 7, ..simulation.faults };
        let mut workload = (*simulation.workload).clone();
        workload.duration_ns = 250 * MS;
        simulation.workload = workload.into();
        World { name: format!("failing {seed} on {}", simulation.machine.name), simulation }
    };
    (200..216).map(of_seed).collect()
}

/// The gate's parameters, above all which CPUs' utilisation counts and the values of scores.
fn zones() -> Vec<World> {
    let knobs: [&[&str]; 8] = [
        &["zone=warm-low", "bal_cpus_avg_enable=1"],
        &["zone=warm-mid", "bal_cpus_avg_enable=1", "balance_idle_cal=1"],
        &["zone=warm-high", "bal_cpus_avg_enable=1"],
        &["zone=warm-low", "balance_weight_prize_time=20", "balance_weight_punish_time=20"],
        &["zone=warm-mid", "balance_weight_prize_time=60", "balance_weight_punish_time=30"],
        &["zone=warm-mid", "balance_weight_prize_time=40", "max_idle_wait=never"],
        &["zone=warm-low", "balance_weight_enable=0"],
        &["zone=hot", "balance_weight_prize_score=30"],
    ];
    let loads = ["arrivals:tasks=40", "pool", "background"];
    let mut all = Vec::new();
    for (at, knobs) in knobs.iter().enumerate() {
        let options = Options {
            gate: Gate::Zone,
            balance: Balance::ALL[at % 2],
            order: Order::ALL[at / 2 % 2],
            ..Options::default()
        };
        let load = loads[at % loads.len()];
        let name = format!("zone {load}: {} {}", policies(&options), knobs.join(" "));
        let machine = Machine::preset(["small", "hybrid"][at % 2]).unwrap();
        let mut workload = shape(load);
        workload.duration_ns = 400 * MS;
        all.push(world(name, machine, with_parameters(options, knobs), workload));
    }
    // Compaction, on whole cores and where callbacks interleave.
    for (at, preset) in ["small", "hybrid"].into_iter().enumerate() {
        let options = Options {
            gate: Gate::Zone,
            balance: Balance::ALL[at],
            compact: true,
            ..Options::default()
        };
        let name = format!("zone compact on {preset}: {}", policies(&options));
        let mut tasks: Vec<TaskPlan> = (0..6).map(|_| sleeper("light", MS, 12 * MS)).collect();
        tasks.push(TaskPlan { allowed: these("1-2"), ..sleeper("bound", MS, 9 * MS) });
        let workload = Workload { tasks, duration_ns: 400 * MS, ..Workload::default() };
        let mut world = world(name, Machine::preset(preset).unwrap(), options, workload);
        world.simulation.faults.pause_one_in = if at == 1 { 40 } else { 0 };
        all.push(world);
    }
    all
}

/// CPUs under two last-level caches; those under the first cache are twice as fast.
fn two_kinds(each: u32) -> Machine {
    let (half, all) = (each - 1, 2 * each - 1);
    let text = format!(
        "name = \"two-kinds\"\nllcs = [\"0-{half}\", \"{each}-{all}\"]\n\
         kinds = [{{ cpus = \"0-{half}\", capability = 1024 }},\n\
         {{ cpus = \"{each}-{all}\", capability = 512 }}]\n"
    );
    Machine::parse_toml(&text, "two-kinds").unwrap()
}

fn these(cpus: &str) -> Option<Arc<Mask>> {
    Some(Arc::new(Mask::from(&cpus.parse::<CpuSet>().unwrap())))
}

/// A task that works and sleeps in turn, for ever.
fn sleeper(name: &str, work_ns: u64, sleep_ns: u64) -> TaskPlan {
    TaskPlan::new(name, vec![Op::RunAbout(work_ns), Op::SleepAbout(sleep_ns), Op::Goto(0)])
}

/// Programs that aggregate, some threads with narrow masks, beside programs that do not aggregate and
/// kernel threads.
fn aggregating() -> Vec<World> {
    let bonus = |bonus_type, bonus_value, limit| Aggregation {
        pid: 0,
        agg: 1,
        bonus_type,
        bonus_value,
        limit,
    };
    let kinds = [
        (bonus(0, 30 * MS, 0), "ias_kick=idle", "ias_window=64", Gate::Always),
        (bonus(1, 4, 3), "ias_kick=busy", "ias_window=64", Gate::Always),
        (bonus(0, 5 * MS, 2), "ias_kick=busy", "ias_window=1", Gate::Zone),
        (bonus(1, 9, 0), "ias_kick=idle", "ias_window=3", Gate::Always),
        (bonus(0, 50 * MS, 0), "ias_kick=none", "ias_window=2", Gate::Zone),
    ];
    let mut all = Vec::new();
    for (at, (how, kick, window, gate)) in kinds.into_iter().enumerate() {
        for (sleep_ns, load) in [(MS, "busy"), (9 * MS, "idle")] {
            let options = Options {
                order: Order::Ias,
                gate,
                balance: Balance::ALL[at % 2],
                ..Options::default()
            };
            let options = with_parameters(options, &[kick, window]);
            let mut tasks = Vec::new();
            for thread in 0..30_u32 {
                let ops = vec![
                    Op::RunAbout(MS),
                    Op::Barrier(thread as usize % 3),
                    Op::SleepAbout(sleep_ns / (1 + u64::from(thread / 20))),
                    Op::Goto(0),
                ];
                tasks.push(TaskPlan {
                    space: thread % 3,
                    allowed: (thread % 7 == 3).then(|| these("1-2,5")).flatten(),
                    nice: [0, 0, 5][thread as usize % 3],
                    ..TaskPlan::new("member", ops)
                });
            }
            let alone = |space| TaskPlan { space, ..sleeper("other", MS / 3, sleep_ns) };
            tasks.extend((0..4).map(|at| alone(10 + at)));
            let mut workload = Workload { barriers: vec![10; 3], ..Workload::default() };
            workload.tasks = tasks;
            workload.aggregate(Some(how));
            workload.aggregations.retain(|how| how.pid < 10);
            workload.tasks.extend((0..6).map(|_| alone(KERNEL)));
            workload.duration_ns = 150 * MS;
            let name = format!("aggregating {load} {at}: {} {kick} {window}", policies(&options));
            let mut world = world(name, two_kinds(4), options, workload);
            // In every other world callbacks interleave.
            world.simulation.faults.pause_one_in = if at % 2 == 1 { 40 } else { 0 };
            all.push(world);
        }
    }
    all
}

/// Longer queues than a search covers on CPUs that become shielded, with tasks that may and may not
/// leave.
fn shielded() -> Vec<World> {
    let shield = |at_ms, cpus: &str| (at_ms * MS, Change::Shield(cpus.parse().unwrap()));
    let mut all = Vec::new();
    for (at, tasks) in [12_usize, 400, 400, 60].into_iter().enumerate() {
        let options = Options {
            slice: Slice::from_us([4_000, 4_000, 30_000, 1_000][at]).unwrap(),
            order: Order::ALL[at % 2],
            gate: Gate::ALL[at / 2],
            ..capable(["", "active", "home,cost,active,turns", "turns,similar"][at])
        };
        let mut sim = Sim::keel_with(two_kinds(2), options.clone())
            .tasks(tasks, TaskPlan { nice: 3, ..sleeper("guest", 3 * MS, MS) })
            .tasks(3, TaskPlan { allowed: only(0), space: 1, ..sleeper("host", MS, 4 * MS) })
            .tasks(2, TaskPlan { allowed: these("0-1"), space: 2, ..hog(40 * MS) })
            .thief(Thief { cpu: 0, run_ns: MS, period_ns: 9 * MS, from_ns: 2 * MS });
        sim.workload.changes =
            vec![shield(10, "0"), shield(60, "0-1,3"), shield(100, "none"), shield(130, "1")];
        sim.workload.duration_ns = 160 * MS;
        let name = format!("shielded {tasks}, slice {}: {}", options.slice, policies(&options));
        let mut world = World { name, simulation: sim.simulation() };
        world.simulation.faults.pause_one_in = if at % 2 == 1 { 50 } else { 0 };
        all.push(world);
    }
    all
}

/// Nested cgroups: more than their common ancestor's quota of slots, and deeper than the keel accounts
/// for.
fn nested() -> Vec<World> {
    let group = |weight, parent| GroupPlan { name: "group".to_owned(), weight, parent };
    let member = |group, at: u64| TaskPlan {
        group,
        nice: [0, -20, 19][at as usize % 3],
        ..sleeper("member", 3 * MS + at * MS / 7, MS)
    };
    let mut many = Sim::keel(paper(2));
    many.workload.groups = (0..4_200)
        .map(|at| group(100 + at as u32, if at < 5 { at } else { 5.max(at / 3) }))
        .collect();
    many.workload.tasks = (0..12).map(|at| member(4_199 - 17 * at, at as u64)).collect();
    // Of the first two groups one has an entry of its own and the other has none; then others take
    // their entries.
    let renewed = [2_003, 4_197, 2_004, 2_006].map(|group| Change::Renew { group });
    let moves = [(3, 2_003), (4, 4_197), (5, 2_004), (6, 2_006), (7, 2_007)];
    let moved = moves.map(|(task, group)| Change::Group { task, group });
    many.workload.changes = renewed
        .into_iter()
        .chain(moved)
        .zip(1..)
        .map(|(change, at)| (at * 9 * MS, change))
        .collect();
    let mut deep = Sim::keel(paper(2));
    deep.workload.groups = (0..72)
        .map(|at| group(20 + 90 * (at as u32 % 3), if at < 2 { 0 } else { at - 1 }))
        .collect();
    deep.workload.tasks = (0..24).map(|at| member(3 * at, at as u64)).collect();
    deep.workload.changes = (0..40)
        .flat_map(|at| {
            let (task, group) = (at % 24, at * 11 % 73);
            let weight = Change::Weight { group: 1 + at % 72, weight: 1 + 250 * at as u32 };
            [(at as u64 * 4 * MS, Change::Group { task, group }), (at as u64 * 5 * MS, weight)]
        })
        .collect();
    let named = |name: &str, sim: Sim| {
        let mut sim = sim;
        sim.workload.duration_ns = 200 * MS;
        World { name: name.to_owned(), simulation: sim.simulation() }
    };
    vec![named("4,200 cgroups", many), named("cgroups 36 deep", deep)]
}

/// Machines of more than 64 CPUs, and one with the most nodes whose distances the keel knows.
fn large() -> Vec<World> {
    let mut text = "name = \"nodes\"\nkinds = [\n".to_owned();
    for (from, capability) in [(0, 1024), (64, 700)] {
        text += &format!("{{ cpus = \"{from}-{}\", capability = {capability} }},\n", from + 63);
    }
    text += "]\nnodes = [\n";
    for node in 0..64_usize {
        let far = |to: usize| if to == node { 10 } else { 11 + (to ^ node).ilog2() * 7 };
        let distances: Vec<_> = (0..64).map(|to| far(to).to_string()).collect();
        let distances = distances.join(", ");
        text += &format!(
            "{{ id = {node}, cpus = \"{}-{}\", memory_bytes = 1, distances = [{distances}] }},\n",
            2 * node,
            2 * node + 1
        );
    }
    text += "]\n";
    let nodes = Machine::parse_toml(&text, "nodes").unwrap();
    let amc3 = Machine::preset("amc3").unwrap();
    let load = |tasks: usize| {
        let member = |at: usize| TaskPlan {
            space: at as u32 / 3,
            nice: [0, 5, -5][at % 3],
            home: at.is_multiple_of(2).then_some(at as u32 % 8),
            allowed: (at % 9 == 4).then(|| these("60-70,126")).flatten(),
            ..sleeper("member", 2 * MS, MS * (at as u64 % 5))
        };
        Workload {
            tasks: (0..tasks).map(member).collect(),
            thieves: vec![Thief { cpu: 65, run_ns: 5 * MS, period_ns: 11 * MS, from_ns: MS }],
            duration_ns: 40 * MS,
            ..Workload::default()
        }
    };
    let mut all = Vec::new();
    for (at, parts) in
        ["", "home", "home,cost,active", "turns,similar,active", "home,cost,bare,plain"]
            .into_iter()
            .enumerate()
    {
        let options =
            Options { order: Order::ALL[at % 2], gate: Gate::ALL[at / 2 % 2], ..capable(parts) };
        let (name, machine) = [("64 nodes", &nodes), ("amc3", &amc3)][at % 2];
        let name = format!("{name}: {} {parts}", policies(&options));
        all.push(world(name, machine.clone(), options, load([70, 200][at % 2])));
    }
    all
}

/// Tasks that wait until the rescue, tasks that yield, wake-ups by tasks, and interrupts.
fn waiting() -> Vec<World> {
    let mut all = Vec::new();
    for (at, tasks) in [3_usize, 90].into_iter().enumerate() {
        let options = Options {
            slice: Slice::from_us([4_000, 100_000][at]).unwrap(),
            order: Order::ALL[at],
            ..Options::default()
        };
        let mut sim = Sim::keel_with(paper(1), options)
            .tasks(tasks, TaskPlan { nice: -20, space: 1, ..hog(100_000 * MS) })
            .tasks(tasks, TaskPlan { nice: 19, space: 2, ..hog(100_000 * MS) });
        sim.workload.duration_ns = 14_000 * MS;
        let mut simulation = sim.simulation();
        // A starving task waits for 10 s, or for a slice of each other task where that is longer.
        let (wait_ns, wait_per_task_ns) = (10_000 * MS, [0, 100 * MS][at]);
        // At first each task has a slice, and a new task is late by as much vruntime.
        let share_slack_ns = 500 * MS;
        simulation.limits = Some(Limits { wait_ns, wait_per_task_ns, share_slack_ns, ..STRICT });
        all.push(World { name: format!("{tasks} nice -20 and {tasks} nice 19"), simulation });
    }
    for (at, gate) in Gate::ALL.iter().enumerate() {
        let ops = |more| vec![Op::RunAbout(MS / 4), more, Op::Run(MS / 9), Op::Yield, Op::Goto(0)];
        let mut sim = Sim::keel_with(
            two_kinds(2),
            Options { gate: *gate, ..capable(["active", "home,cost"][at]) },
        )
        .tasks(3, TaskPlan { space: 1, ..TaskPlan::new("sends", ops(Op::Send(0))) })
        .tasks(9, TaskPlan { space: 2, ..TaskPlan::new("receives", ops(Op::Receive(0))) })
        .interrupts(Interrupts { cpu: 1, run_ns: MS / 5, period_ns: MS })
        .thief(Thief { cpu: 2, run_ns: 25 * MS, period_ns: 60 * MS, from_ns: 3 * MS });
        sim.workload.channels = 1;
        sim.workload.duration_ns = 150 * MS;
        let mut world = World { name: format!("messages: {gate}"), simulation: sim.simulation() };
        world.simulation.faults.late_ns = 200_000;
        all.push(world);
    }
    all
}
