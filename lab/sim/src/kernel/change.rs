//! Changes of a task, a cgroup or a CPU from outside (kernel: `sched_change_begin()`,
//! `affine_move_task()`, `migration_cpu_stop()`): a task leaves its queue or CPU for the moment of a
//! change. Left out: throttled cgroups (`cpu.max`).

use crate::agenda::Event;
use crate::mask::Mask;
use crate::outcome::Reason;
use crate::program::{Change, Policy};

use super::boot::{DEFAULT_PRIO, weight_in_cgroup};
use super::{Group, Kernel, Life, Task};

/// `DEQUEUE_SAVE` and `ENQUEUE_RESTORE`.
const SAVE_RESTORE: u64 = 2;
/// The weight of `SCHED_IDLE` as sched_ext gives it (kernel: `WEIGHT_IDLEPRIO`).
const IDLE_WEIGHT: u32 = 1;
/// `SCX_TASK_QUEUED`.
const QUEUED: u32 = 1;

impl Kernel {
    pub(super) fn change_event(&mut self, index: u32) {
        if self.defer_unless_alone(Event::Change { index }) {
            return;
        }
        let change = self.workload.changes.get(index as usize).map(|(_, change)| change.clone());
        if let Some(change) = change {
            self.change(&change);
        }
    }

    pub(super) fn change(&mut self, change: &Change) {
        let known = |task: &usize| *task < self.tasks.len();
        match change {
            Change::Hotplug { cpu, online } => self.hotplug(*cpu, *online),
            Change::Capability { cpu, capability } => {
                if let Some(c) = self.cpus.get_mut(*cpu as usize) {
                    c.capability = (*capability).max(1);
                    self.update_rate(*cpu);
                }
            }
            Change::Told(left) => self.pass_shares(left),
            Change::Shield(shield) => self.set_shield(shield),
            Change::Affinity { task, allowed } if known(task) => {
                self.set_affinity(*task as u32, allowed);
            }
            Change::Nice { task, nice } if known(task) => self.set_nice(*task as u32, *nice),
            Change::Group { task, group } if known(task) && *group < self.groups.len() => {
                self.set_group(*task as u32, *group);
            }
            Change::Weight { group, weight } => self.set_group_weight(*group, *weight),
            Change::Renew { group } => self.renew_group(*group),
            Change::Affinity { .. } | Change::Nice { .. } | Change::Group { .. } => {}
        }
    }

    /// Takes a task out of its queue or off its CPU while `change` is made.
    pub(super) fn while_dequeued(&mut self, task: u32, change: impl FnOnce(&mut Self)) {
        self.wait_for_lock_of_task(task);
        let life = self.tasks[task as usize].life;
        if !matches!(life, Life::Waits | Life::Runs) {
            change(self);
            return;
        }
        let cpu = self.tasks[task as usize].raw.cpu;
        self.account_time(cpu);
        self.cpus[cpu as usize].locks += 1;
        self.dequeue(task, SAVE_RESTORE);
        change(self);
        let t = &mut self.tasks[task as usize];
        t.raw.flags |= QUEUED;
        t.reason = Reason::Change;
        if life == Life::Runs {
            // It goes on with the rest of its slice, and the scheduler is not asked (kernel:
            // `sticky_cpu` in `enqueue_task_scx()`).
            self.call_running(task, cpu);
        } else {
            self.do_enqueue(task, SAVE_RESTORE, cpu);
        }
        self.unlock_queue(cpu);
        self.plan_completion(cpu);
    }

    /// Waits until the lock of the task's runqueue is free.
    fn wait_for_lock_of_task(&mut self, task: u32) {
        loop {
            let cpu = self.tasks[task as usize].raw.cpu;
            self.wait_for_lock(cpu);
            if self.tasks[task as usize].raw.cpu == cpu {
                return;
            }
        }
    }

    pub(super) fn set_affinity(&mut self, task: u32, allowed: &Mask) {
        // The kernel refuses a mask without online CPUs.
        if !allowed.intersects(&self.online) || self.tasks[task as usize].life == Life::Dead {
            return;
        }
        self.while_dequeued(task, |kernel| {
            let t = &mut kernel.tasks[task as usize];
            t.allowed = allowed.clone();
            t.raw.nr_cpus_allowed = allowed.count() as i32;
            if t.life != Life::New {
                kernel.emit_affinity(task);
            }
        });
        let t = &self.tasks[task as usize];
        let (life, cpu) = (t.life, t.raw.cpu);
        if allowed.has(cpu) {
            return;
        }
        match life {
            Life::Waits => self.requeue_elsewhere(task),
            Life::Runs => self.stop_and_move(task, cpu),
            _ => {}
        }
    }

    /// Moves a waiting task that its new mask excludes from its CPU.
    pub(super) fn requeue_elsewhere(&mut self, task: u32) {
        self.wait_for_lock_of_task(task);
        let t = &self.tasks[task as usize];
        let from = t.raw.cpu;
        if t.life != Life::Waits || t.allowed.has(from) {
            return;
        }
        let to = self.fallback(task, from);
        self.remove_from_dsq(task);
        let t = &mut self.tasks[task as usize];
        t.raw.flags &= !QUEUED;
        t.reason = Reason::Change;
        // Between two runqueues, so that no other CPU finds it.
        t.life = Life::Waking;
        self.move_to_cpu(task, to);
        if self.cpus[to as usize].is_held() {
            self.deferred.push(Event::Activate { task, flags: 0 });
        } else {
            self.activate(task, 0, from);
        }
    }

    /// The stopper thread takes a running task off a CPU that its new mask excludes.
    fn stop_and_move(&mut self, task: u32, cpu: u32) {
        self.while_stopped(cpu, |kernel| {
            let t = &kernel.tasks[task as usize];
            if t.life == Life::Waits && !t.allowed.has(t.raw.cpu) {
                kernel.requeue_elsewhere(task);
            }
        });
    }

    fn set_nice(&mut self, task: u32, nice: i32) {
        let policy = self.tasks[task as usize].policy;
        self.set_policy(task, policy, nice);
    }

    /// Sets policy and nice value.
    pub(super) fn set_policy(&mut self, task: u32, policy: Policy, nice: i32) {
        let nice = nice.clamp(-20, 19);
        self.while_dequeued(task, |kernel| {
            let t = &mut kernel.tasks[task as usize];
            (t.policy, t.nice) = (policy, nice);
            t.raw.weight = match policy {
                Policy::Other | Policy::Batch => weight_in_cgroup(nice),
                Policy::Idle => IDLE_WEIGHT,
            };
            t.raw.prio = DEFAULT_PRIO + nice;
            if !matches!(t.life, Life::New | Life::Dead) {
                kernel.emit_class(task);
            }
        });
    }

    fn set_group(&mut self, task: u32, group: usize) {
        let t = &self.tasks[task as usize];
        if matches!(t.life, Life::New | Life::Dead) || t.exits {
            return;
        }
        self.while_dequeued(task, |kernel| {
            let t = &mut kernel.tasks[task as usize];
            let from = std::mem::replace(&mut t.group, group);
            let cpu = t.raw.cpu;
            kernel.call_group_move(task, from, group, cpu);
            kernel.emit_class(task);
        });
    }

    fn set_group_weight(&mut self, group: usize, weight: u32) {
        if group == 0 || group >= self.groups.len() {
            return;
        }
        self.groups[group].weight = weight.clamp(1, 10_000);
        self.call_group_weight(group, weight.clamp(1, 10_000));
        self.emit_group(group);
    }

    /// Removes an empty cgroup, and creates another one of the same name.
    fn renew_group(&mut self, group: usize) {
        let holds = |task: &Task| task.group == group && task.life != Life::Dead && !task.exits;
        let is_above = |other: &Group| other.parent == Some(group);
        if group == 0
            || group >= self.groups.len()
            || self.groups.iter().any(is_above)
            || self.tasks.iter().any(holds)
        {
            return;
        }
        self.call_group_exit(group);
        self.last_group_id += 1;
        self.groups[group].node.id = self.last_group_id;
        let error = self.call_group_init(group);
        if error != 0 {
            self.end_at_fault(format!("cgroup_init failed with error {error}"));
        }
    }
}
