//! Random worlds with all faults, by their seeds.

use evenkeel_keel::{Aggregation, Balance, Gate, Options, Order, Parts, Slice};
use evenkeel_machine::Machine;
use evenkeel_sim::program::{Change, GroupPlan, Interrupts, Op, TaskPlan, Thief, Workload};
use evenkeel_sim::{FaultPlan, Outcome, Scheduler, Simulation, TORTURE, history};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::MS;

const MACHINES: [&str; 4] = ["small", "hybrid", "amc1", "server"];

/// The simulated time of such a world.
const LASTS_MS: u64 = 600;

fn tasks(cpus: usize) -> Vec<TaskPlan> {
    let round = |ops: Vec<Op>| {
        let back = Op::Goto(0);
        ops.into_iter().chain([back]).collect::<Vec<_>>()
    };
    let kinds = [
        round(vec![Op::RunAbout(7 * MS)]),
        round(vec![Op::RunAbout(MS), Op::SleepAbout(2 * MS)]),
        round(vec![Op::RunAbout(MS / 5), Op::Send(0), Op::Receive(1)]),
        round(vec![Op::Receive(0), Op::RunAbout(MS / 5), Op::Send(1)]),
        round(vec![Op::Lock(0), Op::RunAbout(MS / 10), Op::Unlock(0), Op::SleepAbout(MS)]),
        round(vec![Op::Run(MS / 2), Op::Yield]),
        round(vec![Op::Run(MS / 3), Op::Timer { timer: 0, period_ns: 4 * MS }]),
        vec![Op::RunAbout(20 * MS), Op::BeginExit, Op::RunAbout(9 * MS), Op::SleepAbout(30 * MS)],
        vec![Op::Sleep(30 * MS), Op::Fork(0), Op::Run(MS), Op::SleepAbout(9 * MS)],
    ];
    (0..cpus * 3 + 9)
        .map(|at| TaskPlan {
            nice: [0, 0, -10, 5, 19][at % 5],
            group: at % 4,
            space: (at / 4) as u32,
            arrives_ns: Some(at as u64 % 7 * MS),
            ..TaskPlan::new("victim", kinds[at % kinds.len()].clone())
        })
        .collect()
}

/// Draws a world's choices independently, so that all combinations occur.
struct Draw(Xoshiro256PlusPlus);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        (self.0.next_u64() % bound as u64) as usize
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// The keel's options in the world of this seed. Eight consecutive seeds have all combinations of
/// policies.
fn options(seed: u64, draw: &mut Draw) -> Options {
    let at = |place: u64| (seed / place) as usize % 2;
    let mut options = Options {
        order: Order::ALL[at(1)],
        gate: Gate::ALL[at(2)],
        balance: Balance::ALL[at(4)],
        slice: Slice::from_us(draw.one(&[4_000, 500, 50_000])).unwrap(),
        ..Options::default()
    };
    let parts: Vec<&str> = Parts::names().filter(|_| draw.below(2) == 1).collect();
    let window = draw.one(&["1", "4", "64"]);
    let kick = draw.one(&["none", "idle", "busy"]);
    let level = draw.one(&["cold", "warm-low", "warm-mid", "warm-high", "hot"]);
    let auto = draw.below(4) == 0;
    if options.balance == Balance::Capability {
        options.parts = parts.join(",").parse().unwrap();
    }
    if options.order == Order::Ias {
        options.set_parameter("ias_window", window).unwrap();
        options.set_parameter("ias_kick", kick).unwrap();
        options.ias.auto = auto;
    }
    if options.gate == Gate::Zone {
        options.set_parameter("zone", level).unwrap();
    }
    options
}

/// The simulation of this seed.
pub fn simulation(seed: u64, keel: Option<&[u8]>) -> Simulation {
    let mut draw = Draw(Xoshiro256PlusPlus::seed_from_u64(seed));
    let options = options(seed, &mut draw);
    let machine = Machine::preset(draw.one(&MACHINES)).unwrap();
    let cpus = machine.cpus.len() as u32;
    let thief = |cpu| Thief { cpu, run_ns: 13 * MS, period_ns: 41 * MS, from_ns: 3 * MS };
    let group = |weight, parent| GroupPlan { name: "group".to_owned(), weight, parent };
    let mut workload = Workload {
        name: "torture".to_owned(),
        tasks: tasks(cpus as usize),
        mutexes: 1,
        channels: 2,
        // The last one is empty unless a fault moves a task there.
        groups: vec![group(100, 0), group(300, 1), group(10, 0), group(50, 3)],
        thieves: (0..cpus).step_by(5).map(thief).collect(),
        interrupts: vec![Interrupts { cpu: 0, run_ns: MS / 5, period_ns: MS }],
        duration_ns: LASTS_MS * MS,
        ..Workload::default()
    };
    // In half of the worlds CPUs are shielded, then other CPUs, and then none.
    let shield =
        |at: u64, cpus: &str| (at * LASTS_MS / 5 * MS, Change::Shield(cpus.parse().unwrap()));
    if draw.below(2) == 1 {
        workload.changes = vec![shield(1, "0"), shield(2, "1-1000"), shield(4, "none")];
    }
    let bonus = |bonus_type, bonus_value| {
        Some(Aggregation { pid: 0, agg: 1, bonus_type, bonus_value, limit: 3 })
    };
    let aggregation = draw.one(&[None, bonus(0, 20 * MS), bonus(1, 3)]);
    workload.aggregate(aggregation.filter(|_| !options.ias.auto));
    Simulation {
        machine,
        scheduler: match keel {
            Some(bytes) => Scheduler::Built(options, bytes.into()),
            None => Scheduler::Keel(options),
        },
        balancer: None,
        workload: workload.into(),
        faults: FaultPlan::ALL,
        seed,
        limits: Some(TORTURE),
        records: false,
        max_events: 10_000_000,
    }
}

/// What went wrong in a simulation; none: nothing did.
pub fn complaint(simulation: &Simulation, outcome: &Outcome) -> Option<String> {
    let end = outcome.end.as_ref().map(|end| format!("{end}\n{}", outcome.dump));
    let broken = (!outcome.broken.is_empty()).then(|| history(outcome, &simulation.workload));
    end.or(broken).map(|what| format!("seed {}:\n{what}", simulation.seed))
}
