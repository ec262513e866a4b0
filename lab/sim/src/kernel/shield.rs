//! Shielded CPUs in user space: product/keel passes the shield to the keel. Every 100 ms it runs a
//! pinned thread on each shielded CPU where a barred task runs alone, because such a task never
//! reschedules by itself.

use std::time::Duration;

use evenkeel_invariants::{Left, What};
use evenkeel_keel::{InitialData, Shield};

use crate::agenda::Event;
use crate::program::Change;
use crate::scheduler::Scheduler;
use crate::tid::{STOPPER, thief_tid};

use super::{End, Kernel};

/// Between two reliefs.
pub(super) const INTERVAL_NS: u64 = Duration::from_millis(100).as_nanos() as u64;

impl Kernel {
    /// The current shield.
    pub(super) fn shield(&self) -> Option<&Shield> {
        self.scheduler.options().map(|options| &options.shield)
    }

    /// Whether CPUs are shielded at any time.
    pub(super) fn is_ever_shielded(&self) -> bool {
        let shields = |(_, change): &(u64, Change)| matches!(change, Change::Shield(_));
        self.shield().is_some_and(|shield| !shield.is_none())
            || self.workload.changes.iter().any(shields)
    }

    /// Changes the shield, also for schedulers that are loaded later.
    pub(super) fn set_shield(&mut self, shield: &Shield) {
        let (Scheduler::Keel(options) | Scheduler::Exact(options) | Scheduler::Built(options, _)) =
            &mut self.scheduler
        else {
            return;
        };
        options.shield = shield.clone();
        let set = InitialData::new(&self.machine, options)
            .map_err(Into::into)
            .and_then(|image| self.instance.set_record("tunables", &image.tunables));
        if let Err(why) = set {
            self.end = Some(End::Host(why.to_string()));
        }
        self.emit_shield();
    }

    /// An interval is over.
    pub(super) fn relief_event(&mut self) {
        if self.defer_unless_alone(Event::Relief) {
            return;
        }
        let shielded: Vec<u32> =
            self.shield().into_iter().flat_map(|shield| shield.cpus().iter()).collect();
        for cpu in shielded {
            if self.online.has(cpu) && self.instance.lodges(cpu) {
                self.while_stopped(cpu, |_| {});
            }
        }
        self.agenda.plan(self.now + INTERVAL_NS, Event::Relief);
    }

    /// Does `step` while the stopper thread, or a thread that is pinned there, has the CPU.
    pub(super) fn while_stopped(&mut self, cpu: u32, step: impl FnOnce(&mut Self)) {
        self.wait_for_lock(cpu);
        self.cpus[cpu as usize].thieves.insert(0, STOPPER);
        self.emit(cpu, What::Wakeup { task: thief_tid(STOPPER, cpu) });
        self.schedule(cpu, Left::Runnable);
        step(self);
        self.wait_for_lock(cpu);
        self.cpus[cpu as usize].thieves.retain(|thief| *thief != STOPPER);
        self.schedule(cpu, Left::Runnable);
    }
}
