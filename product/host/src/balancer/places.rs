//! Where a plan wants tasks to be.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_capability::{CpuView, Plan, Reason, Snapshot, TaskId, TaskView};
use evenkeel_machine::CpuSet;

/// Where a task goes: by a move, with its reason, or by a pin where it is.
pub(super) struct Place<'a> {
    pub task: TaskId,
    pub from: u32,
    pub to: u32,
    pub reason: Option<&'a Reason>,
}

/// The moves of a plan, then its pins of tasks that are not moved.
pub(super) fn places<'a>(plan: &'a Plan, snapshot: &Snapshot) -> Vec<Place<'a>> {
    let moves = plan.moves.iter().map(|made| Place {
        task: made.task,
        from: made.from,
        to: made.to,
        reason: Some(&made.reason),
    });
    let moved: BTreeSet<TaskId> = plan.moves.iter().map(|made| made.task).collect();
    let at: BTreeMap<TaskId, u32> = snapshot.tasks.iter().map(|task| (task.id, task.cpu)).collect();
    let pins = plan.pins.iter().filter(|pin| !moved.contains(&pin.task)).map(|pin| Place {
        task: pin.task,
        from: at.get(&pin.task).copied().unwrap_or(pin.cpu),
        to: pin.cpu,
        reason: None,
    });
    moves.chain(pins).collect()
}

/// CPUs that had little time for the fair class in the interval: real-time tasks had most of it, or a
/// task did not run at all, whatever the accounting sees of the reason. The balancer would not run there
/// either, and a task that waits there moves at once.
pub(super) fn not_to_visit(snapshot: &Snapshot) -> CpuSet {
    let half_ns = snapshot.interval_ns / 2;
    let cpus = snapshot.cpus.iter().filter(|view: &&CpuView| view.rt_ns > half_ns);
    let is_stuck =
        |task: &&TaskView| task.wait_ns > half_ns && task.run_ns == 0 && task.stolen_ns == 0;
    let stuck = snapshot.tasks.iter().filter(is_stuck);
    cpus.map(|view| view.cpu).chain(stuck.map(|task| task.cpu)).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_capability::Seen;

    use super::*;

    #[test]
    fn cpus_without_time_for_the_fair_class_are_not_visited() {
        let cpu = |cpu, rt_ns| CpuView {
            cpu,
            core: cpu,
            node: 0,
            speed: 1024,
            energy_rank: None,
            noise_ns: 0,
            rt_ns,
            idle_ns: 0,
            foreign_milli: 0,
            rt_milli: 0,
        };
        let task = |cpu, run_ns, wait_ns| TaskView {
            id: TaskId { tid: cpu, start: 1 },
            process: 1,
            cpu,
            queue: 0,
            run_ns,
            spun_ns: 0,
            samples: 0,
            changes: 0,
            received_ns: run_ns,
            stolen_ns: 0,
            wait_ns,
            sleeps: 0,
            runnable: true,
            allowed: CpuSet::first(8),
            fixed: false,
            working_set_bytes: None,
        };
        let snapshot = Snapshot {
            interval_ns: 1000,
            cpus: vec![cpu(0, 950), cpu(1, 400), cpu(2, 0), cpu(3, 0), cpu(4, 0)],
            tasks: vec![task(1, 600, 400), task(2, 0, 900), task(3, 100, 900), task(4, 0, 10)],
            seen: Seen::default(),
        };
        assert_eq!(not_to_visit(&snapshot), [0, 2].into_iter().collect());
    }
}
