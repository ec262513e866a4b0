//! Enqueue, dequeue, and tasks in DSQs (kernel: `enqueue_task_scx()`, `do_enqueue_task()`,
//! `dequeue_task_scx()`, `dispatch_enqueue()`, `consume_dispatch_q()`). Left out: tasks that a
//! scheduler keeps in BPF structures instead of a DSQ, and the bypass mode.

use evenkeel_invariants::What;

use crate::mask::Mask;
use crate::outcome::Reason;
use crate::tid::tid;

use super::{Direct, GLOBAL_ID, Kernel, LOCAL_ID, Life, Queue};

/// `SCX_ENQ_WAKEUP`, `SCX_ENQ_CPU_SELECTED`, `SCX_ENQ_REENQ`, `SCX_ENQ_LAST`.
pub(super) const WAKEUP: u64 = 1;
pub(super) const CPU_SELECTED: u64 = 1 << 20;
const REENQUEUE: u64 = 1 << 40;
pub(super) const LAST: u64 = 1 << 41;
/// `SCX_TASK_QUEUED`.
const QUEUED: u32 = 1;
impl Kernel {
    /// Enqueues a task in the runqueue of its CPU, which reschedules if it is idle.
    pub(super) fn enqueue(&mut self, task: u32, flags: u64, from: u32) {
        let t = &mut self.tasks[task as usize];
        t.life = Life::Waits;
        t.raw.flags |= QUEUED;
        t.runnable_at = self.now;
        let cpu = t.raw.cpu;
        self.do_enqueue(task, flags, from);
        let c = &self.cpus[cpu as usize];
        if c.curr.is_none() && c.thief.is_none() {
            self.resched(cpu, from);
        }
    }

    /// Asks the scheduler for the DSQ of a task, unless the task was dispatched directly.
    pub(super) fn do_enqueue(&mut self, task: u32, flags: u64, from: u32) {
        let cpu = self.tasks[task as usize].raw.cpu;
        if !self.cpus[cpu as usize].online {
            self.tasks[task as usize].direct = None;
            self.push_local(task, false, from);
            return;
        }
        if self.tasks[task as usize].direct.is_none() {
            if self.instance.ops.enqueue.is_some() {
                self.call_enqueue(task, flags, from);
            } else {
                let global = Direct { dsq: GLOBAL_ID, vtime: 0, is_ordered: false };
                self.tasks[task as usize].direct = Some(global);
            }
        }
        match self.tasks[task as usize].direct.take() {
            Some(direct) => self.insert_into_dsq(task, direct, from),
            // A scheduler may keep a task and dispatch it later. That is not modelled: the keel never
            // does it.
            None => self.end_at_fault(format!("{} is enqueued nowhere", self.name(task))),
        }
    }

    /// Takes a running or waiting task out of its runqueue. The caller sets its new state.
    pub(super) fn dequeue(&mut self, task: u32, flags: u64) {
        let t = &self.tasks[task as usize];
        let cpu = t.raw.cpu;
        if t.raw.flags & QUEUED == 0 {
            return;
        }
        if t.life == Life::Runs {
            self.account_time(cpu);
            self.call_stopping(task, false, cpu);
        }
        self.call_quiescent(task, flags, cpu);
        let t = &mut self.tasks[task as usize];
        t.raw.flags &= !QUEUED;
        t.direct = None;
        self.remove_from_dsq(task);
    }

    /// Inserts a task into a DSQ.
    pub(super) fn insert_into_dsq(&mut self, task: u32, direct: Direct, from: u32) {
        if direct.dsq == LOCAL_ID {
            self.push_local(task, false, from);
            return;
        }
        let Some(dsq) = self.find_dsq(direct.dsq) else {
            let name = self.name(task);
            self.end_at_fault(format!(
                "{name} is put into queue {:#x}, which does not exist",
                direct.dsq
            ));
            return;
        };
        let vtime = if direct.is_ordered { direct.vtime } else { 0 };
        let place = self.dsqs[dsq].1.insert(task, vtime);
        self.tasks[task as usize].queue = Queue::Dsq(dsq, place);
    }

    /// Inserts a task into the local DSQ of its CPU. `from` is the CPU that does it.
    pub(super) fn push_local(&mut self, task: u32, first: bool, from: u32) {
        let t = &mut self.tasks[task as usize];
        t.queue = Queue::Local;
        let cpu = t.raw.cpu;
        let c = &mut self.cpus[cpu as usize];
        if first {
            c.local.push_front(task);
        } else {
            c.local.push_back(task);
        }
        if c.curr.is_none() && c.thief.is_none() && !c.in_balance {
            self.resched(cpu, from);
        }
    }

    /// Removes a task from its DSQ.
    pub(super) fn remove_from_dsq(&mut self, task: u32) {
        let t = &mut self.tasks[task as usize];
        let cpu = t.raw.cpu as usize;
        match std::mem::replace(&mut t.queue, Queue::None) {
            Queue::None => {}
            Queue::Local => {
                let local = &mut self.cpus[cpu].local;
                // Most tasks are removed from the head.
                if local.front() == Some(&task) {
                    local.pop_front();
                } else if let Some(at) = local.iter().position(|other| *other == task) {
                    local.remove(at);
                }
            }
            Queue::Dsq(dsq, place) => {
                self.dsqs[dsq].1.remove(place);
            }
        }
    }

    /// Moves the first task of a DSQ that may run on the CPU to its local DSQ. Returns whether there
    /// was one.
    pub(super) fn consume(&mut self, cpu: u32, dsq: usize) -> bool {
        if self.dsqs[dsq].1.len() == 0 {
            return false;
        }
        let can = |task: u32| {
            self.tasks[task as usize].raw.cpu == cpu
                || (self.may_run_here(task, cpu)
                    && !self.is_locked_by_others(self.tasks[task as usize].raw.cpu, cpu))
        };
        let Some(task) = self.dsqs[dsq].1.iter().map(|(_, task)| task).find(|task| can(*task))
        else {
            return false;
        };
        self.judge_head(cpu, dsq, task);
        self.remove_from_dsq(task);
        if self.tasks[task as usize].raw.cpu != cpu {
            if self.tasks[task as usize].reason == Reason::Requeue {
                self.tasks[task as usize].reason = Reason::Pull;
            }
            self.spend_on_move(cpu, self.tasks[task as usize].raw.cpu);
            self.move_to_cpu(task, cpu);
        }
        self.push_local(task, false, cpu);
        self.observer.consumed += 1;
        true
    }

    /// Enqueues all tasks of the local DSQ again, because a higher class has the CPU.
    pub(super) fn reenqueue_local(&mut self, cpu: u32) {
        let waiting: Vec<u32> = self.cpus[cpu as usize].local.iter().copied().collect();
        for task in waiting {
            self.remove_from_dsq(task);
            self.tasks[task as usize].reason = Reason::Thief;
            self.do_enqueue(task, REENQUEUE, cpu);
        }
    }

    /// Moves a task to this CPU's runqueue.
    pub(super) fn move_to_cpu(&mut self, task: u32, cpu: u32) {
        let raw = &mut self.tasks[task as usize].raw;
        if raw.cpu != cpu {
            raw.cpu = cpu;
            self.emit(cpu, What::Migrate { task: tid(task), to: cpu });
        }
    }

    pub(super) fn may_run_here(&self, task: u32, cpu: u32) -> bool {
        self.tasks[task as usize].allowed.has(cpu) && self.online.has(cpu)
    }

    /// Whether another CPU than `this` holds the lock of a CPU's runqueue.
    pub(super) fn is_locked_by_others(&self, cpu: u32, this: u32) -> bool {
        cpu != this && self.cpus[cpu as usize].locks > 0
    }

    /// An online CPU of the task's mask. If there is none, the mask is widened to all CPUs (kernel:
    /// `select_fallback_rq()`).
    pub(super) fn fallback(&mut self, task: u32, near: u32) -> u32 {
        let allowed = &self.tasks[task as usize].allowed;
        if let Some(cpu) = Mask::first_common([allowed, &self.online], near) {
            return cpu;
        }
        self.tasks[task as usize].allowed = self.present();
        let count = self.tasks[task as usize].allowed.count();
        self.tasks[task as usize].raw.nr_cpus_allowed = count as i32;
        self.emit_affinity(task);
        self.online_from(near).unwrap_or(near)
    }
}
