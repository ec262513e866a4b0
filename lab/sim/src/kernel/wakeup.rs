//! New tasks and wake-ups (kernel: `wake_up_new_task()`, `try_to_wake_up()`): select_cpu runs on the
//! waker's CPU, and the task then enters the chosen runqueue. Left out: the wake list of remote CPUs
//! (`ttwu_queue`).

use evenkeel_invariants::What;

use crate::agenda::Event;
use crate::outcome::Reason;
use crate::tid::tid;

use super::queue::{CPU_SELECTED, WAKEUP};
use super::{Kernel, Life};

/// Flags of Event::Activate: the task was woken; select_cpu chose its CPU.
const EVENT_WAKEUP: u16 = 1;
const EVENT_SELECTED: u16 = 2;
/// `SCX_WAKE_FORK`, `SCX_WAKE_TTWU`.
const WAKE_FORK: u64 = 4;
const WAKE_TTWU: u64 = 8;
impl Kernel {
    /// A task of the workload is forked.
    pub(super) fn arrive(&mut self, task: u32) {
        if self.defer_unless_alone(Event::Arrive { task }) {
            return;
        }
        // Forked from the first online CPU.
        let Some(cpu) = self.online_from(0) else { return };
        self.fork(task, cpu);
    }

    /// Forks a task; its parent runs on `cpu`.
    pub(super) fn fork(&mut self, task: u32, cpu: u32) {
        if self.tasks[task as usize].life != Life::New {
            return;
        }
        self.tasks[task as usize].raw.cpu = cpu;
        self.emit(cpu, What::Fork { child: tid(task) });
        self.emit_affinity(task);
        self.emit_class(task);
        if !self.call_init_task(task, true, cpu) {
            // The kernel fails the fork.
            self.tasks[task as usize].life = Life::Dead;
            self.observer.unborn += 1;
            self.live -= 1;
            return;
        }
        self.call_enable(task, cpu);
        self.tasks[task as usize].reason = Reason::Fork;
        self.wake(task, cpu, WAKE_FORK);
    }

    /// Wakes a task, from a task or a timer on `cpu`. `sleep` is the sleep that it ends.
    pub(super) fn wake_event(&mut self, task: u32, cpu: u32, sleep: u32) {
        let t = &self.tasks[task as usize];
        if t.life == Life::Dead || t.sleeps != sleep {
            return;
        }
        let falls_asleep = t.life != Life::Asleep;
        if falls_asleep && !self.cpus[t.raw.cpu as usize].is_held() {
            // It does not sleep: it was killed while it waited.
            return;
        }
        if falls_asleep || self.cpus[cpu as usize].is_held() {
            self.deferred.push(Event::Wake { task, cpu: cpu as u16, sleep });
            return;
        }
        let cpu = if self.cpus[cpu as usize].online { Some(cpu) } else { self.online_from(cpu) };
        let Some(cpu) = cpu else { return };
        self.account_time(cpu);
        self.tasks[task as usize].reason = Reason::Wake;
        self.wake(task, cpu, WAKE_TTWU);
        self.plan_completion(cpu);
    }

    fn wake(&mut self, task: u32, waker: u32, flags: u64) {
        let t = &mut self.tasks[task as usize];
        t.life = Life::Waking;
        t.sleeps += 1;
        let prev = t.raw.cpu;
        let selects = t.raw.nr_cpus_allowed > 1;
        self.emit(waker, What::Wakeup { task: tid(task) });
        let mut cpu = prev;
        if selects {
            cpu = self.call_select_cpu(task, prev, flags, waker);
        }
        if !self.may_run_here(task, cpu) {
            cpu = self.fallback(task, prev);
        }
        self.move_to_cpu(task, cpu);
        let flags = EVENT_WAKEUP | if selects { EVENT_SELECTED } else { 0 };
        if self.cpus[cpu as usize].locks > 0 {
            self.deferred.push(Event::Activate { task, flags });
        } else {
            self.activate(task, flags, waker);
        }
    }

    pub(super) fn activate_event(&mut self, task: u32, flags: u16) {
        let t = &self.tasks[task as usize];
        let cpu = t.raw.cpu;
        if t.life != Life::Waking {
            return;
        }
        if self.cpus[cpu as usize].is_held() {
            self.deferred.push(Event::Activate { task, flags });
            return;
        }
        if !self.may_run_here(task, cpu) {
            let cpu = self.fallback(task, cpu);
            self.move_to_cpu(task, cpu);
        }
        self.activate(task, flags, cpu);
    }

    /// Enqueues a woken task in its CPU's runqueue; `from` is the CPU that does it.
    pub(super) fn activate(&mut self, task: u32, flags: u16, from: u32) {
        let cpu = self.tasks[task as usize].raw.cpu;
        self.cpus[cpu as usize].locks += 1;
        let mut enqueue = if flags & EVENT_WAKEUP != 0 { WAKEUP } else { 0 };
        if flags & EVENT_SELECTED != 0 {
            enqueue |= CPU_SELECTED;
        }
        self.enqueue(task, enqueue, from);
        self.unlock_queue(cpu);
    }
}
