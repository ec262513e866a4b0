//! CPUs come and go (kernel: `handle_hotplug()`, `scx_enable()`, `scx_disable()`). A scheduler without
//! hotplug callbacks is ended with a request to restart. product/keel does that: it reads the machine
//! again, and hands on the states of tasks and how busy CPUs were. Left out: the time that a restart
//! takes.

use std::collections::BTreeSet;

use evenkeel_invariants::{IDLE, Left, What};
use evenkeel_keel::Rights;

use crate::dsq::Dsq;
use crate::keel_state;
use crate::mask::Mask;
use crate::native::Instance;
use crate::outcome::Reason;

use super::idle::IdleCpus;
use super::{End, GLOBAL_ID, Kernel, Life, kfuncs};

/// `SCX_TASK_QUEUED`.
const QUEUED: u32 = 1;

impl Kernel {
    /// Initializes the scheduler and its cgroups, and applies the settings of user space. It has no
    /// tasks yet.
    pub(super) fn start_scheduler(&mut self) {
        self.instance.host.hazards = 0;
        let error = self.call_init();
        if error != 0 {
            self.end_at_fault(format!("init failed with error {error}"));
        }
        for group in 0..self.groups.len() {
            let error = self.call_group_init(group);
            if error != 0 {
                self.end_at_fault(format!("cgroup_init failed with error {error}"));
            }
        }
        for aggregation in &self.workload.aggregations {
            // The key of an address space is the pid of its process here.
            let is_ordinary = self.workload.ordinary.contains(&aggregation.pid);
            let rights = if is_ordinary { Rights::User(1000) } else { Rights::Root };
            self.instance.aggregate(u64::from(aggregation.pid), &aggregation.record(rights));
        }
        self.restore_aggregations();
        if self.workload.together.is_some() {
            self.set_roles();
        }
        if self.watches_capabilities() {
            self.watch_capabilities();
        }
        self.instance.host.hazards = self.hazards.bits();
    }

    /// Sets the workload's own groups of CPUs, instead of CPUs that share a cache.
    fn set_roles(&mut self) {
        let record =
            keel_state::role_bytes(&self.workload.roles(&self.machine, self.scheduler.ias_mode()));
        if let Err(why) = self.instance.set_record("roles", &record) {
            self.end = Some(End::Host(why.to_string()));
        }
    }

    /// A CPU goes online or offline. The last one cannot go offline.
    pub(super) fn hotplug(&mut self, cpu: u32, online: bool) {
        let is_last = !online && self.online.count() <= 1;
        if !self.topology.has(cpu) || self.online.has(cpu) == online || is_last {
            return;
        }
        let queued = self.end_scheduler();
        let online_before = self.online.clone();
        if let Some(known) = self.machine.cpus.iter_mut().find(|known| known.id == cpu) {
            known.online = online;
        }
        if online {
            self.online.set(cpu);
        } else {
            self.vacate(cpu);
            self.online.clear(cpu);
            self.idle.clear(cpu, &self.topology, &self.online);
        }
        self.cpus[cpu as usize].online = online;
        self.cpus[cpu as usize].since = self.now;
        self.restart(&queued, &online_before);
        if online {
            self.set_idle(cpu);
            self.resched(cpu, cpu);
        }
        self.idle.update_core(cpu, &self.topology, &self.online);
        self.update_smt_siblings(cpu);
        self.observer.restarts += 1;
        self.observer.idle_cpus(online);
    }

    /// All tasks leave the scheduler. Returns the runnable ones.
    fn end_scheduler(&mut self) -> Vec<u32> {
        self.instance.host.hazards = 0;
        let mut queued = Vec::new();
        for task in 0..self.tasks.len() as u32 {
            let t = &self.tasks[task as usize];
            let (life, cpu) = (t.life, t.raw.cpu);
            if matches!(life, Life::Waits | Life::Runs) {
                self.dequeue(task, 0);
                queued.push(task);
            }
            if !matches!(life, Life::New | Life::Dead) {
                self.call_exit_task(task, cpu);
            }
            self.tasks[task as usize].direct = None;
        }
        self.observer.add_counters(self.instance.counters());
        queued
    }

    /// Takes the running task off the CPU.
    fn vacate(&mut self, cpu: u32) {
        self.account_time(cpu);
        let c = &mut self.cpus[cpu as usize];
        c.thieves.clear();
        c.planned = None;
        c.overhead_ns = 0;
        c.resched = false;
        c.space = None;
        let (prev, thief) = (c.curr.take(), c.thief.take());
        if prev.is_none() && thief.is_none() {
            return;
        }
        if let Some(prev) = prev {
            self.tasks[prev as usize].life = Life::Waits;
        }
        self.set_running(cpu, None);
        let left = if prev.is_some() { Left::Runnable } else { Left::Asleep };
        let (prev, charged_ns) = self.account_of(cpu, prev, thief);
        self.emit(cpu, What::Switch { prev, left, charged_ns, next: IDLE });
    }

    /// Hands on to the next load of the keel what product/keel does, of CPUs that were online. Another
    /// scheduler's states of tasks end with it.
    fn hand_on(&mut self, next: &mut Instance, online: &Mask) {
        let is_keel = self.scheduler.options().is_some();
        let mut states = BTreeSet::new();
        for task in &mut self.tasks {
            if !is_keel || task.life == Life::Dead {
                task.raw.storage = std::ptr::null_mut();
            } else if !task.raw.storage.is_null() {
                states.insert(task.raw.storage as usize);
            }
        }
        if is_keel {
            self.instance.hand_on(next, online, &states);
        }
    }

    /// Loads a new copy of the scheduler, which takes all tasks. `online`: the CPUs that were online
    /// under the old one.
    fn restart(&mut self, queued: &[u32], online: &Mask) {
        let usage = (self.instance.host.calls, self.instance.host.scanned);
        match self.scheduler.load(&self.machine, kfuncs::FUNCTIONS) {
            Ok(mut instance) => {
                self.hand_on(&mut instance, online);
                self.instance = instance;
                self.lockup.set_scheduler(&mut self.instance);
            }
            Err(why) => {
                self.end = Some(super::End::Host(why.to_string()));
                return;
            }
        }
        (self.instance.host.calls, self.instance.host.scanned) = usage;
        self.dsqs = vec![(GLOBAL_ID, Dsq::default())];
        // At first the kernel takes all CPUs for idle (kernel: `reset_idle_masks()`).
        self.idle = IdleCpus::new(&self.topology, &self.online);
        for c in &mut self.cpus {
            c.local.clear();
            c.released = false;
        }
        self.start_scheduler();
        self.instance.host.hazards = 0;
        for task in 0..self.tasks.len() as u32 {
            let t = &self.tasks[task as usize];
            if matches!(t.life, Life::New | Life::Dead) {
                continue;
            }
            let cpu = t.raw.cpu;
            if !self.call_init_task(task, false, cpu) {
                self.end_at_fault(format!("init_task failed for {}", self.name(task)));
            }
            self.call_enable(task, cpu);
        }
        for task in queued {
            self.adopt_task(*task);
        }
        // Idle CPUs may have got tasks.
        for cpu in 0..self.cpus.len() as u32 {
            let c = &self.cpus[cpu as usize];
            if c.online && c.curr.is_none() && c.thief.is_none() {
                self.resched(cpu, cpu);
            }
        }
        self.instance.host.hazards = self.hazards.bits();
    }

    /// The new scheduler gets a runnable task.
    fn adopt_task(&mut self, task: u32) {
        let t = &mut self.tasks[task as usize];
        t.reason = Reason::Change;
        t.queue = super::Queue::None;
        let cpu = t.raw.cpu;
        if t.life == Life::Waits {
            if !self.may_run_here(task, cpu) {
                let cpu = self.fallback(task, cpu);
                self.move_to_cpu(task, cpu);
            }
            let cpu = self.tasks[task as usize].raw.cpu;
            self.enqueue(task, 0, cpu);
            return;
        }
        t.raw.flags |= QUEUED;
        self.do_enqueue(task, 0, cpu);
        self.remove_from_dsq(task);
        self.call_running(task, cpu);
        self.plan_completion(cpu);
    }

    /// All CPUs of the machine, online or not.
    pub(super) fn present(&self) -> Mask {
        Mask::from(&self.machine.present())
    }
}
