//! A compute task, and what is remembered of it from interval to interval.

use super::loads::Load;
use super::sleeps::Sleeps;
use super::spells::Spells;
use crate::snapshot::TaskView;

/// What is known of a task beyond one interval.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TaskMemory {
    /// What it received in this phase, less what the middle task did.
    pub(super) lead_ns: i64,
    /// Waited for others for a good part of the last interval, and has not begun to run again.
    pub(super) waited: bool,
    /// Was asleep at the last look.
    pub(super) is_asleep: bool,
    /// The node where it was first seen: its memory is taken to be there.
    pub(super) home: Option<u32>,
    /// Its work, where spinning can be told from it.
    pub(super) load: Load,
    /// How often it sleeps.
    pub(super) sleeps: Sleeps,
    /// How long it works between two spells of spinning.
    pub(super) spells: Spells,
}

/// A compute task in the interval that just ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Active<'a> {
    pub(super) view: &'a TaskView,
    pub(super) memory: TaskMemory,
    /// Time from one of its waits to the next, when that is too short to balance in.
    pub(super) phase_ns: Option<u64>,
}
