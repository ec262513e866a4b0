//! What whoever watches is told of the kernel.

use evenkeel_invariants::{Class, What, weight_of_nice};

use super::{Kernel, tid};

impl Kernel {
    /// Tells whoever watches.
    pub(super) fn tell(&mut self, cpu: u32, what: What) {
        self.observer.event(self.now, cpu, what);
    }

    pub(super) fn tell_class(&mut self, task: u32) {
        let t = &self.tasks[task as usize];
        let class = Class::Fair { weight: weight_of_nice(t.nice), group: t.group as u64 };
        self.tell(t.raw.cpu, What::Class { task: tid(task), class });
    }

    pub(super) fn tell_affinity(&mut self, task: u32) {
        let t = &self.tasks[task as usize];
        let allowed = t.allowed.to_set();
        self.tell(t.raw.cpu, What::Affinity { task: tid(task), allowed });
    }

    pub(super) fn tell_shield(&mut self) {
        if let Some(shield) = self.shield() {
            let cpus = shield.cpus().clone();
            self.tell(0, What::Shield { cpus });
        }
    }
}
