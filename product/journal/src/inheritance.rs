//! Which thread inherited a mask of ours. A new thread or child gets the mask of the thread that
//! forks it. If the session missed the fork, the child must not stay pinned for ever (*Undo*); but a
//! thread that its user pinned to the same CPU must not be freed (*Yield*).
//!
//! A thread with a mask that equals one of ours has inherited it if
//! 1. another thread of its process had that mask while the thread was created, or
//! 2. its process, or an ancestor of it, was forked by a process while that had the mask, or
//! 3. its real parent has ended and is unknown (the thread is an orphan), it is in the session of
//!    one of our programs, and it was created after the mask was first set, or
//! 4. it became its process's leader by exec(2) and had the mask before.
//!
//! When a parent ends, the reaper adopts its orphans: mostly a process of another session, which
//! rule 3 recognises. A reaper in the same session (the first process of a container, a subreaper)
//! looks as if it had forked them. So when the writer died before it could free the last children,
//! children of the reaper count as orphans; a living writer frees children as they are forked.
//!
//! A child that pins itself is therefore left alone, unless its parent had exactly that mask at
//! exactly that time: the kernel does not tell these two cases apart.

use evenkeel_machine::CpuSet;

use crate::affinity::Original;
use crate::entry::Held;
use crate::state::JournalState;
use crate::task::{Processes, TaskRef, tick_ns};

/// How long after the end of a parent's pin a child may still have inherited it. clone(2) copies the
/// mask early and sets the start time late: meanwhile the parent may be migrated, wait for its new
/// CPU, and be given its mask back. Also, the entry that replaces a pin precedes the call.
const SLACK_NS: u64 = 2_000_000_000;

/// How many ancestors are followed: a bound for malformed data, far above any real process tree.
const MAX_DEPTH: usize = 256;

impl JournalState {
    /// What to give back to a thread that inherited the mask `current`; `None` if it did not inherit
    /// that mask.
    pub(crate) fn find_inherited(
        &self,
        task: &TaskRef,
        current: &CpuSet,
        processes: &mut Processes,
    ) -> Option<Original> {
        if !self.has_set_mask(current) {
            return None;
        }
        if let Some(original) = self.find_inherited_by_exec(task, current) {
            return Some(original);
        }
        let stat = processes.get(task.tgid)?;
        let process =
            TaskRef { tid: task.tgid, tgid: task.tgid, start_time_ticks: stat.start_ticks };
        let had_mask =
            |process: &TaskRef| self.held_by(process).iter().any(|held| held.mask == *current);
        // Rule 1. Where the journal says when the process had the mask, that decides.
        if task.tid != task.tgid && had_mask(&process) {
            return self.original_held_at(&process, current, task.start_time_ticks);
        }

        // Rule 2.
        let mut is_of_program = self.is_of_program(&process);
        let mut child = process;
        // The topmost ancestor that is in the same session, with all in between.
        let mut top = process;
        let mut parent_pid = stat.ppid;
        for _ in 0..MAX_DEPTH {
            let Some(parent_stat) = processes.get(parent_pid) else { break };
            let parent = TaskRef {
                tid: parent_pid,
                tgid: parent_pid,
                start_time_ticks: parent_stat.start_ticks,
            };
            if had_mask(&parent) {
                return self.original_held_at(&parent, current, child.start_time_ticks);
            }
            if self.reaper() == Some(parent) {
                break;
            }
            is_of_program |= self.is_of_program(&parent);
            if parent_stat.session == stat.session {
                top = parent;
            }
            child = parent;
            parent_pid = parent_stat.ppid;
        }
        // Rule 3. Ancestors of a program that never had the mask: then its user pinned the thread.
        // The ancestors of another job in the same terminal end in the session's leader, the shell.
        let is_orphan = !is_of_program
            && top.tid != stat.session
            && self.programs().iter().any(|program| program.session == stat.session);
        let start_ticks = top.start_time_ticks;
        let was_set_before =
            |held: &&Held| held.mask == *current && held.from_ns / tick_ns() <= start_ticks;
        if is_orphan { merge_originals(self.all_held().filter(was_set_before)) } else { None }
    }

    /// Rule 4. exec(2) by a thread that is not the leader gives it the leader's number and start
    /// time, while it keeps its own mask: then the leader has the mask that was set on another thread,
    /// which no longer exists.
    pub(crate) fn find_inherited_by_exec(
        &self,
        task: &TaskRef,
        current: &CpuSet,
    ) -> Option<Original> {
        if task.tid != task.tgid {
            return None;
        }
        self.pinned()
            .find(|pin| {
                pin.process == *task
                    && pin.task != *task
                    && (pin.set == *current || pin.replaces.as_ref() == Some(current))
                    && !pin.task.is_alive()
            })
            .map(|pin| pin.original.clone())
    }

    /// What threads of `process` that had `mask` at `ticks` (since boot) had before.
    fn original_held_at(&self, process: &TaskRef, mask: &CpuSet, ticks: u64) -> Option<Original> {
        merge_originals(self.held_by(process).iter().filter(|held| {
            let is_over =
                held.holders == 0 && ticks > held.until_ns.saturating_add(SLACK_NS) / tick_ns();
            held.mask == *mask && held.from_ns / tick_ns() <= ticks && !is_over
        }))
    }

    fn is_of_program(&self, process: &TaskRef) -> bool {
        self.programs().iter().any(|program| program.root == *process)
            || !self.held_by(process).is_empty()
    }
}

/// The union of several originals. Threads of one process may have had different masks before they
/// were pinned to the same CPU, and it is unknown which of them is the parent: the union withholds no
/// CPU that any of them had.
fn merge_originals<'a>(held: impl Iterator<Item = &'a Held>) -> Option<Original> {
    held.map(|held| held.original.clone()).reduce(|a, b| match (a, b) {
        (Original::Mask(a), Original::Mask(b)) => Original::Mask(a.union(&b)),
        _ => Original::All,
    })
}
