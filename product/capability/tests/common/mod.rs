//! Shared by the tests of this crate: builders of snapshots, and the model of a machine on which the
//! closed-loop tests run a program. `evenkeel-lab bench large` (`lab/bench/src/large_machines.rs`) runs
//! programs on that model, too.

// Each test binary uses its own part of this.
#![allow(dead_code)]

pub mod model;

use evenkeel_capability::{CpuView, Plan, Policy, Seen, Snapshot, State, TaskId, TaskView, plan};
use evenkeel_machine::CpuSet;

/// One millisecond.
pub const MS: u64 = 1_000_000;
/// Interval of the snapshots that tests build.
pub const INTERVAL_NS: u64 = 100 * MS;

/// A CPU of full speed without disturbance.
pub fn cpu(cpu: u32) -> CpuView {
    CpuView {
        cpu,
        core: cpu,
        node: 0,
        speed: 1024,
        energy_rank: None,
        noise_ns: 0,
        rt_ns: 0,
        idle_ns: 0,
        foreign_milli: 0,
        rt_milli: 0,
    }
}

/// A CPU with `percent` of its time left by noise.
pub fn noisy(number: u32, percent: u64) -> CpuView {
    CpuView { noise_ns: INTERVAL_NS * (100 - percent) / 100, ..cpu(number) }
}

/// The name of task `tid`.
pub fn id(tid: u32) -> TaskId {
    TaskId { tid, start: 7 }
}

/// A task that ran on CPU `cpu` all the time and may use CPUs 0 to 63.
pub fn task(tid: u32, cpu: u32) -> TaskView {
    TaskView {
        id: id(tid),
        process: 1,
        cpu,
        queue: u64::from(tid),
        run_ns: INTERVAL_NS,
        spun_ns: 0,
        samples: 0,
        changes: 0,
        received_ns: INTERVAL_NS,
        stolen_ns: 0,
        wait_ns: 0,
        sleeps: 1,
        runnable: true,
        allowed: CpuSet::first(64),
        fixed: false,
        working_set_bytes: None,
    }
}

/// The same task, but it received only `percent` of the interval; the rest was stolen.
pub fn received(task: TaskView, percent: u64) -> TaskView {
    let received_ns = INTERVAL_NS * percent / 100;
    TaskView { run_ns: received_ns, received_ns, stolen_ns: INTERVAL_NS - received_ns, ..task }
}

/// The same task, but its user allows only `cpus`.
pub fn allowed(task: TaskView, cpus: &[u32]) -> TaskView {
    TaskView { allowed: cpus.iter().copied().collect(), ..task }
}

/// The same task, but it must not be moved.
pub fn fixed(task: TaskView) -> TaskView {
    TaskView { fixed: true, ..task }
}

/// An interval of [`INTERVAL_NS`].
pub fn snapshot(cpus: Vec<CpuView>, tasks: Vec<TaskView>) -> Snapshot {
    Snapshot { interval_ns: INTERVAL_NS, cpus, tasks, seen: Seen::default() }
}

/// The plan for a valid snapshot.
pub fn decide(snapshot: &Snapshot, state: &mut State) -> Plan {
    plan(snapshot, state).expect("the snapshot is valid")
}

/// The plans of `rounds` intervals with the same figures; the moves of each are made before the next.
pub fn rounds(snapshot: &mut Snapshot, policy: Policy, rounds: usize) -> Vec<Plan> {
    let mut state = State::new(policy);
    (0..rounds)
        .map(|_| {
            let plan = decide(snapshot, &mut state);
            apply(&plan, snapshot);
            plan
        })
        .collect()
}

/// Makes the moves of a plan, and checks that each starts on the CPU of its task.
pub fn apply(plan: &Plan, snapshot: &mut Snapshot) {
    for made in &plan.moves {
        let task = snapshot
            .tasks
            .iter_mut()
            .find(|task| task.id == made.task)
            .expect("only tasks of the snapshot are moved");
        assert_eq!(task.cpu, made.from, "{made:?}");
        task.cpu = made.to;
    }
}

/// Moves as (tid, from, to).
pub fn moves(plan: &Plan) -> Vec<(u32, u32, u32)> {
    plan.moves.iter().map(|made| (made.task.tid, made.from, made.to)).collect()
}

/// A small deterministic generator (splitmix64) for tests that generate their own cases.
#[derive(Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// A number in `0..limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
