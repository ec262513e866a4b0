//! Machines and programs of any size, made up from a seed: for measuring what a plan costs where no
//! such machine is at hand.
//!
//! Same seed, same snapshot. The tasks compute all the time, may go to any CPU, and receive what
//! their CPU's noise and their neighbours leave them, so that [`crate::plan`] has all its work to
//! do: CPUs of unequal capability, unequal numbers of tasks, every task with a lag of its own.

use std::collections::HashMap;

use evenkeel_machine::CpuSet;

use crate::plan::Plan;
use crate::snapshot::{CpuView, Snapshot, TaskId, TaskView};

/// Length of the interval of a made-up snapshot, in nanoseconds.
pub const INTERVAL_NS: u64 = 100_000_000;

/// A program of `tasks` tasks on a machine of `cpus` CPUs, dealt out at random. Each CPU has lost 0
/// to 60 % of its time to noise; every eighth one is shared with another program.
pub fn snapshot(cpus: u32, tasks: u32, seed: u64) -> Snapshot {
    let mut random = Random(seed);
    let views = (0..cpus).map(|cpu| CpuView {
        cpu,
        core: cpu,
        node: 0,
        speed: 1024,
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
        received_ns: 0,
        stolen_ns: 0,
        wait_ns: 0,
        switches: 30,
        runnable: true,
        allowed: allowed.clone(),
        fixed: false,
        working_set_bytes: None,
    });
    let mut snapshot = Snapshot { interval_ns: INTERVAL_NS, cpus: views, tasks: tasks.collect() };
    fill(&mut snapshot);
    snapshot
}

/// The interval after `plan` was carried out: its tasks are where it sent them, and each receives
/// what it does there.
pub fn advance(snapshot: &mut Snapshot, plan: &Plan) {
    let moved: HashMap<TaskId, u32> = plan.moves.iter().map(|made| (made.task, made.to)).collect();
    for task in &mut snapshot.tasks {
        task.cpu = moved.get(&task.id).copied().unwrap_or(task.cpu);
    }
    fill(snapshot);
}

/// Shares each CPU out among its tasks.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LagParameters, Policy, State, plan};

    #[test]
    fn same_seed_same_snapshot() {
        assert_eq!(snapshot(64, 625, 1), snapshot(64, 625, 1));
        assert_ne!(snapshot(64, 625, 1), snapshot(64, 625, 2));
        assert_eq!(snapshot(0, 0, 1).validate(), Ok(()));
    }

    #[test]
    fn a_large_machine_levels_off() {
        let mut snapshot = snapshot(64, 625, 1);
        let mut state = State::new(Policy::Lag(LagParameters::default()));
        let mut lag_ns = 0;
        for _ in 0..200 {
            let plan = plan(&snapshot, &mut state).unwrap();
            advance(&mut snapshot, &plan);
            lag_ns = state.lags_ns().into_values().max().unwrap();
        }
        // 200 intervals of 100 ms, 10 tasks a CPU: unbalanced, the lags would be in the hundreds.
        assert!(lag_ns < 40_000_000, "{lag_ns}");
    }
}
