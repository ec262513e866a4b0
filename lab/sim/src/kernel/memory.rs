//! The node of a task's memory as the kernel tells it to a scheduler: `numa_preferred_nid`. A mempolicy
//! and a fork without exec name it at once; the counted page faults of a process that lives name it
//! later, and not always the right one.

use crate::agenda::Event;
use crate::program::Told;

use super::{Kernel, Life};

impl Kernel {
    /// The number of a node; -1: there is none.
    pub(super) fn node_id(&self, at: u32) -> i32 {
        self.machine.nodes.get(at as usize).map_or(-1, |node| node.id as i32)
    }

    /// The task runs for the first time: when its memory's node is named, if not yet.
    pub(super) fn plan_told_home(&mut self, task: u32) {
        let told = self.workload.tasks.get(task as usize).map(|plan| plan.told);
        if let Some(Told::Later { after_ns, .. }) = told {
            self.agenda.plan(self.now + after_ns, Event::TellHome { task });
        }
    }

    /// The node is named from now on.
    pub(super) fn tell_home(&mut self, task: u32) {
        let Some(Told::Later { node, .. }) = self.workload.tasks.get(task as usize).map(|p| p.told)
        else {
            return;
        };
        let id = self.node_id(node);
        let t = &mut self.tasks[task as usize];
        if t.life != Life::Dead {
            t.raw.numa_preferred_nid = id;
        }
    }
}
