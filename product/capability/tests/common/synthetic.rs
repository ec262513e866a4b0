//! Synthetic machines and programs of any size, generated from a seed. The tests of the policies use
//! them, and so does `evenkeel-lab bench capability` (`lab/bench/src/plan_cost.rs`) to count what a plan
//! costs on machines that are not at hand.
//!
//! The same seed gives the same snapshot. All tasks compute all the time, may run on any CPU, and
//! receive what noise and the other tasks of their CPU leave. A policy then has all its work to do:
//! CPUs of unequal capability, unequal numbers of tasks, and a different lag for each task.

use std::collections::HashMap;

use evenkeel_capability::{CpuView, Plan, Seen, Snapshot, TaskId, TaskView};
use evenkeel_machine::CpuSet;

/// Length of the interval of a synthetic snapshot, in nanoseconds.
pub const INTERVAL_NS: u64 = 100_000_000;

/// A program of `tasks` tasks on a machine of `cpus` CPUs, placed at random. Noise has taken 0 to
/// 60 % of each CPU's time, and every eighth CPU also runs another program.
pub fn snapshot(cpus: u32, tasks: u32, seed: u64) -> Snapshot {
    let mut random = Random(seed);
    let views = (0..cpus).map(|cpu| CpuView {
        cpu,
        core: cpu,
        node: 0,
        speed: 1024,
        energy_rank: None,
        noise_ns: random.below(61) * INTERVAL_NS / 100,
        rt_ns: 0,
        idle_ns: 0,
        foreign_milli: if cpu % 8 == 7 { 1000 } else { 0 },
        rt_milli: 0,
    });
    let views: Vec<CpuView> = views.collect();
    let allowed = CpuSet::first(cpus);
    let tasks = (0..tasks).map(|number| TaskView {
        id: TaskId { tid: number + 1, start: 0 },
        process: 1,
        cpu: random.below(u64::from(cpus.max(1))) as u32,
        queue: u64::from(number),
        run_ns: 0,
        spun_ns: 0,
        samples: 0,
        changes: 0,
        received_ns: 0,
        stolen_ns: 0,
        wait_ns: 0,
        sleeps: 30,
        runnable: true,
        allowed: allowed.clone(),
        fixed: false,
        working_set_bytes: None,
    });
    let (tasks, seen) = (tasks.collect(), Seen::default());
    let mut snapshot = Snapshot { interval_ns: INTERVAL_NS, cpus: views, tasks, seen };
    fill(&mut snapshot);
    snapshot
}

/// Turns the snapshot into that of the next interval, after the moves of `plan`.
pub fn advance(snapshot: &mut Snapshot, plan: &Plan) {
    let moved: HashMap<TaskId, u32> = plan.moves.iter().map(|made| (made.task, made.to)).collect();
    for task in &mut snapshot.tasks {
        task.cpu = moved.get(&task.id).copied().unwrap_or(task.cpu);
    }
    fill(snapshot);
}

/// Divides each CPU evenly among its tasks.
fn fill(snapshot: &mut Snapshot) {
    let mut counts: HashMap<u32, u64> = HashMap::new();
    for task in &snapshot.tasks {
        *counts.entry(task.cpu).or_default() += 1000;
    }
    let shares: HashMap<u32, (u64, u64)> = snapshot
        .cpus
        .iter()
        .map(|view| {
            let milli = counts.get(&view.cpu).copied().unwrap_or(0) + u64::from(view.foreign_milli);
            let share = |time_ns: u64| time_ns * 1000 / milli.max(1000);
            (view.cpu, (share(view.effective_ns(INTERVAL_NS)), share(view.noise_ns)))
        })
        .collect();
    for task in &mut snapshot.tasks {
        let (run_ns, stolen_ns) = shares.get(&task.cpu).copied().unwrap_or((0, 0));
        (task.run_ns, task.received_ns, task.stolen_ns) = (run_ns, run_ns, stolen_ns);
        task.wait_ns = INTERVAL_NS - run_ns - stolen_ns;
    }
}

/// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}
