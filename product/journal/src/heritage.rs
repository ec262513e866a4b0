//! Which thread inherited a pin of ours. A new thread or child gets the mask of the thread that
//! makes it; that nobody told us of it must not keep it pinned for ever (Undo), and a thread that
//! its user pinned to the same CPU must not be freed (Yield).
//!
//! A thread that carries a mask which we set is an heir if
//! 1. another thread of its process held that mask while it was made, or
//! 2. its process, or an ancestor process of it, was made by a process while that held the mask,
//! 3. or its real parent is unknown because it ended (the thread is an orphan), it is in the
//!    session of a program of ours, and it was made after the mask was first set.
//!
//! A parent ends, and its orphans are adopted: mostly by a process of another session. What adopts
//! them in their own one (the first process of a container, a subreaper) looks as if it had made
//! them. So when the writer died before it could see its last heirs, children of the adopter count
//! as orphans; a writer that lives has freed its heirs when they were made.
//!
//! So a child that pins itself is left alone unless its parent held just that mask just then:
//! the kernel does not tell these two apart.

use evenkeel_machine::CpuSet;

use crate::affinity::Original;
use crate::ledger::{Ledger, tick_ns};
use crate::record::Held;
use crate::task::{Processes, TaskRef};

/// A child gets its parent's mask early in clone(2) and its start time late: meanwhile the parent
/// may be moved, wait for the CPU that it was moved to, and have its mask back. Also, a pin is known
/// to end a little earlier (its line) than it does (the call).
const SLACK_NS: u64 = 2_000_000_000;

/// Longest line of ancestors that is followed: a bound, not a limit of any real system.
const MAX_DEPTH: usize = 256;

impl Ledger {
    /// What a thread that inherited the mask `current` gets back; `None` if it did not inherit it.
    pub(crate) fn heir(
        &self,
        task: &TaskRef,
        current: &CpuSet,
        processes: &mut Processes,
    ) -> Option<Original> {
        if !self.has_set(current) {
            return None;
        }
        if let Some(original) = self.heir_by_exec(task, current) {
            return Some(original);
        }
        let stat = processes.get(task.tgid)?;
        let process =
            TaskRef { tid: task.tgid, tgid: task.tgid, start_time_ticks: stat.start_ticks };
        let made_here = self.held_during(&process, current, task.start_time_ticks);
        // Where it is known when the process held the mask, that decides.
        let is_known =
            |process: &TaskRef| self.held_by(process).iter().any(|held| held.mask == *current);
        if task.tid != task.tgid && is_known(&process) {
            return made_here;
        }

        let mut is_ours = self.is_of_program(&process);
        let mut child = process;
        // The topmost ancestor without a gap that is in the same session.
        let mut top = process;
        let mut parent = stat.ppid;
        for _ in 0..MAX_DEPTH {
            let Some(stat_of_parent) = processes.get(parent) else { break };
            let by =
                TaskRef { tid: parent, tgid: parent, start_time_ticks: stat_of_parent.start_ticks };
            let inherited = self.held_during(&by, current, child.start_time_ticks);
            if is_known(&by) {
                return inherited;
            }
            if self.adopter() == Some(by) {
                break;
            }
            is_ours |= self.is_of_program(&by);
            if stat_of_parent.session == stat.session {
                top = by;
            }
            child = by;
            parent = stat_of_parent.ppid;
        }
        // A known line of ancestors, none of whom held the mask: the user's own pin. The line of
        // other jobs in the same terminal ends in the leader of the session, the shell.
        let is_orphan = !is_ours
            && top.tid != stat.session
            && self.programs().iter().any(|program| program.session == stat.session);
        let first = top.start_time_ticks;
        let inherited = |held: &&Held| held.mask == *current && held.from_ns / tick_ns() <= first;
        if is_orphan { widest(self.all_held().filter(inherited)) } else { None }
    }

    /// The original that goes with `mask` if `process` held it at clock tick `at`.
    fn held_during(&self, process: &TaskRef, mask: &CpuSet, at: u64) -> Option<Original> {
        widest(self.held_by(process).iter().filter(|held| {
            let is_over =
                held.holders == 0 && at > held.until_ns.saturating_add(SLACK_NS) / tick_ns();
            held.mask == *mask && held.from_ns / tick_ns() <= at && !is_over
        }))
    }

    fn is_of_program(&self, process: &TaskRef) -> bool {
        self.programs().iter().any(|program| program.root == *process)
            || !self.held_by(process).is_empty()
    }
}

/// Threads of one process may have had different masks before they were put on the same CPU. Which
/// of them is the parent is not known: then no CPU of any is withheld.
fn widest<'a>(held: impl Iterator<Item = &'a Held>) -> Option<Original> {
    held.map(|held| held.original.clone()).reduce(|a, b| match (a, b) {
        (Original::Mask(a), Original::Mask(b)) => Original::Mask(a.union(&b)),
        _ => Original::All,
    })
}
