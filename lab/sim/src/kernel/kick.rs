//! Kicks, and asking a CPU to reschedule (kernel: `scx_bpf_kick_cpu()`, `kick_cpus_irq_workfn()`,
//! `resched_curr()`). A kick of another CPU arrives after `kick_ns`. Left out: `SCX_KICK_WAIT`.

use evenkeel_invariants::Left;

use crate::agenda::Event;

use super::Kernel;

/// `SCX_KICK_IDLE`, `SCX_KICK_PREEMPT`.
const KICK_IDLE: u64 = 1;
const KICK_PREEMPT: u64 = 2;

impl Kernel {
    /// Asks a CPU to reschedule; the interrupt comes from CPU `from`.
    pub(super) fn resched(&mut self, cpu: u32, from: u32) {
        let c = &mut self.cpus[cpu as usize];
        if c.resched || !c.online {
            return;
        }
        c.resched = true;
        let far = if cpu == from { 0 } else { self.machine.costs.kick_ns };
        let delay = far + self.hazards.delay();
        self.agenda.plan(self.now + delay, Event::Resched { cpu: cpu as u16 });
    }

    pub(super) fn resched_event(&mut self, cpu: u32) {
        let c = &self.cpus[cpu as usize];
        if c.is_held() {
            self.deferred.push(Event::Resched { cpu: cpu as u16 });
        } else if c.resched {
            self.schedule(cpu, Left::Runnable);
        }
    }

    pub(super) fn plan_kick(&mut self, cpu: u32, flags: u64) {
        let delay = self.hazards.delay();
        let event = Event::Kick { cpu: cpu as u16, flags: flags as u8 };
        self.agenda.plan(self.now + delay, event);
    }

    pub(super) fn kick_event(&mut self, cpu: u32, flags: u8) {
        let c = &mut self.cpus[cpu as usize];
        if c.is_held() {
            self.deferred.push(Event::Kick { cpu: cpu as u16, flags });
            return;
        }
        if !c.online {
            return;
        }
        let flags = u64::from(flags);
        let idles = c.curr.is_none() && c.thief.is_none();
        if flags & KICK_IDLE != 0 && !idles {
            return;
        }
        if c.thief.is_some() {
            return;
        }
        if flags & KICK_PREEMPT != 0
            && let Some(curr) = c.curr
        {
            self.tasks[curr as usize].raw.slice = 0;
        }
        // As from another CPU: the kicking one is not known here.
        self.resched(cpu, u32::MAX);
    }
}
