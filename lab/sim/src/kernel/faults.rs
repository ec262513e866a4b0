//! Injects faults, by the seed: calls fail, callbacks interleave, kicks and timers are late, and tasks,
//! cgroups and CPUs change all the time.

use std::sync::Arc;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::agenda::Event;
use crate::mask::Mask;
use crate::program::Change;
use crate::simulation::FaultPlan;

use super::{FRACTION, Kernel, Life};

/// The priority of a `SCHED_FIFO` task of priority 50, as the kernel counts.
const REAL_TIME_PRIO: i32 = 49;

/// The faults of one simulation.
#[derive(Debug, Clone)]
pub struct Hazards {
    plan: FaultPlan,
    rng: Xoshiro256PlusPlus,
}

impl Hazards {
    /// Faults by this seed.
    pub fn new(plan: FaultPlan, seed: u64) -> Self {
        Self { plan, rng: Xoshiro256PlusPlus::seed_from_u64(!seed) }
    }

    /// `hazards` of `struct sim_host`.
    pub(super) fn bits(&self) -> u32 {
        u32::from(self.plan.fail_one_in > 0) | u32::from(self.pauses()) << 1
    }

    fn one_in(&mut self, odds: u32) -> bool {
        odds > 0 && self.below(u64::from(odds)) == 0
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound.max(1)
    }

    pub(super) fn fails(&mut self) -> bool {
        self.one_in(self.plan.fail_one_in)
    }

    /// Whether callbacks interleave at all.
    pub(super) fn pauses(&self) -> bool {
        self.plan.pause_one_in > 0
    }

    /// Whether they interleave at this point.
    pub(super) fn lets_others_in(&mut self) -> bool {
        self.one_in(self.plan.pause_one_in)
    }

    pub(super) fn flip(&mut self) -> bool {
        self.rng.next_u64() >> 63 == 0
    }

    /// How late a kick is.
    pub(super) fn delay(&mut self) -> u64 {
        self.lateness()
    }

    /// How late a timer expires: mostly 0.
    pub(super) fn lateness(&mut self) -> u64 {
        if self.plan.late_ns == 0 || !self.one_in(4) { 0 } else { self.below(self.plan.late_ns) }
    }
}

impl Kernel {
    pub(super) fn plan_fault(&mut self) {
        let every = self.hazards.plan.change_ns;
        if every > 0 {
            let at = self.now + every / 2 + self.hazards.below(every);
            self.agenda.plan(at, Event::Fault);
        }
    }

    /// Makes a random change.
    pub(super) fn make_random_change(&mut self) {
        if self.defer_unless_alone(Event::Fault) {
            return;
        }
        self.pass_random_capabilities();
        let task = self.hazards.below(self.tasks.len() as u64) as usize;
        match self.hazards.below(100) {
            0..40 => {
                let allowed = Arc::new(self.random_mask());
                self.change(&Change::Affinity { task, allowed });
            }
            40..60 => {
                let nice = self.hazards.below(40) as i32 - 20;
                self.change(&Change::Nice { task, nice });
            }
            60..72 => {
                let group = self.hazards.below(self.groups.len() as u64) as usize;
                self.change(&Change::Group { task, group });
            }
            72..75 => {
                let group = self.hazards.below(self.groups.len() as u64) as usize;
                self.change(&Change::Renew { group });
            }
            75..82 => {
                let group = self.hazards.below(self.groups.len() as u64) as usize;
                let weight = 1 + self.hazards.below(10_000) as u32;
                self.change(&Change::Weight { group, weight });
            }
            82..90 => self.change_class_and_back(task as u32),
            90..93 => self.kill(task as u32),
            93..96 => {
                let cpu = self.hazards.below(self.cpus.len() as u64) as u32;
                let online = self.hazards.below(3) > 0;
                self.change(&Change::Hotplug { cpu, online });
            }
            _ => {
                let cpu = self.hazards.below(self.cpus.len() as u64) as u32;
                let capability = 1 + self.hazards.below(1024) as u32;
                self.change(&Change::Capability { cpu, capability });
            }
        }
        self.plan_fault();
    }

    /// A random mask: all CPUs, a few, or one; at least one is online.
    fn random_mask(&mut self) -> Mask {
        let present = self.present();
        let odds = [1, 2, 4, 64][self.hazards.below(4) as usize];
        let mut some = Mask::EMPTY;
        for cpu in 0..self.cpus.len() as u32 {
            if present.has(cpu) && self.hazards.one_in(odds) {
                some.set(cpu);
            }
        }
        let any = self.hazards.below(self.cpus.len() as u64) as u32;
        if let Some(cpu) = self.online_from(any) {
            some.set(cpu);
        }
        some
    }

    /// A task switches to a real-time class and back at once.
    fn change_class_and_back(&mut self, task: u32) {
        if matches!(self.tasks[task as usize].life, Life::New | Life::Dead | Life::Waking) {
            return;
        }
        let runs = self.tasks[task as usize].life == Life::Runs;
        self.while_dequeued(task, |kernel| {
            let raw = &mut kernel.tasks[task as usize].raw;
            let (prio, cpu) = (raw.prio, raw.cpu);
            // It keeps its CPU meanwhile.
            (raw.prio, raw.on_cpu) = (REAL_TIME_PRIO, runs.into());
            kernel.call_disable(task, cpu);
            kernel.tasks[task as usize].raw.prio = prio;
            kernel.tasks[task as usize].raw.on_cpu = 0;
            kernel.call_enable(task, cpu);
        });
    }

    /// Kills a task: it exits as soon as it has a CPU.
    fn kill(&mut self, task: u32) {
        let t = &mut self.tasks[task as usize];
        if matches!(t.life, Life::New | Life::Dead) {
            return;
        }
        t.at = usize::MAX;
        t.work = t.work.min(1 << FRACTION);
        let (life, cpu, sleep) = (t.life, t.raw.cpu, t.sleeps);
        match life {
            Life::Asleep => self.wake_event(task, cpu, sleep),
            Life::Runs => {
                self.account_time(cpu);
                self.plan_completion(cpu);
            }
            _ => {}
        }
    }
}
