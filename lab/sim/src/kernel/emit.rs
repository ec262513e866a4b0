//! Shows scheduling events to the observer: the same events that the witness traces on a real kernel.

use evenkeel_invariants::{Class, What, weight_of_nice};

use crate::program::Policy;
use crate::tid::tid;

use super::Kernel;

/// The cpu.weight of a cgroup that competes like a task of nice 0.
const DEFAULT_GROUP_WEIGHT: u32 = 100;

impl Kernel {
    /// Shows an event to the observer.
    pub(super) fn emit(&mut self, cpu: u32, what: What) {
        self.observer.event(self.now, cpu, what);
    }

    pub(super) fn emit_class(&mut self, task: u32) {
        let t = &self.tasks[task as usize];
        let class = match t.policy {
            Policy::Other | Policy::Batch => {
                Class::Fair { weight: weight_of_nice(t.nice), group: t.group as u64 }
            }
            Policy::Idle => Class::Other,
        };
        self.emit(t.raw.cpu, What::Class { task: tid(task), class });
    }

    pub(super) fn emit_group(&mut self, group: usize) {
        let of = &self.groups[group];
        let Some(parent) = of.parent else { return };
        let (parent, weight) =
            (parent as u64, of.weight * weight_of_nice(0) / DEFAULT_GROUP_WEIGHT);
        self.emit(0, What::Group { group: group as u64, parent, weight });
    }

    pub(super) fn emit_affinity(&mut self, task: u32) {
        let t = &self.tasks[task as usize];
        let allowed = t.allowed.to_set();
        self.emit(t.raw.cpu, What::Affinity { task: tid(task), allowed });
    }

    pub(super) fn emit_shield(&mut self) {
        if let Some(shield) = self.shield() {
            let cpus = shield.cpus().clone();
            self.emit(0, What::Shield { cpus });
        }
    }
}
