//! Where a plan wants tasks to be.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_capability::{Plan, Reason, Snapshot, TaskId};

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
