//! The run time of tasks: progress at the CPU's rate, and overhead, which is no progress (kernel:
//! `update_curr_scx()` for the charged time). The rate models capability, SMT, distant memory and cache
//! misses; changes of frequency and contention for memory bandwidth are left out.

use crate::agenda::Event;
use crate::outcome::Overhead;
use crate::program::KERNEL;
use crate::topology::Level;

use super::{FRACTION, Kernel, Life};

impl Kernel {
    /// Accounts the time up to now to the task that runs on the CPU.
    pub(super) fn account_time(&mut self, cpu: u32) {
        let now = self.now;
        let c = &mut self.cpus[cpu as usize];
        let mut passed = now - c.since;
        if passed == 0 {
            return;
        }
        c.since = now;
        let interrupted = passed.min(c.interrupt_ns);
        c.interrupt_ns -= interrupted;
        passed -= interrupted;
        c.times.interrupted_ns += interrupted;
        let Some(curr) = c.curr else {
            if c.thief.is_some() {
                c.times.taken_ns += passed;
            } else {
                c.times.idle_ns += passed;
            }
            return;
        };
        let raw = &mut self.tasks[curr as usize].raw;
        let charged =
            if self.machine.costs.irq_accounting == 1 { passed } else { passed + interrupted };
        raw.sum_exec_runtime += charged;
        raw.slice = raw.slice.saturating_sub(charged);
        let overhead = passed.min(c.overhead_ns);
        c.overhead_ns -= overhead;
        let progress = (passed - overhead) * c.rate;
        let task = &mut self.tasks[curr as usize];
        task.times.ran_ns += passed;
        task.times.stolen_ns += interrupted;
        task.times.received += passed * u64::from(c.capability);
        task.times.add_work(progress.min(task.work));
        task.work = task.work.saturating_sub(progress);
    }

    /// The CPU searches for tasks for this long.
    pub(super) fn spend_on_search(&mut self, cpu: u32, ns: u64) {
        self.balance_for(cpu, ns, 0);
    }

    /// The CPU moves a task from the runqueue of `src`, and holds the locks of both meanwhile.
    pub(super) fn spend_on_move(&mut self, cpu: u32, src: u32) {
        let ns = self.machine.costs.lock_ns;
        self.balance_for(cpu, 0, ns);
        if src != cpu {
            self.observer.closed.add(0, ns);
        }
    }

    fn balance_for(&mut self, cpu: u32, looking_ns: u64, moving_ns: u64) {
        let ns = looking_ns + moving_ns;
        if ns == 0 {
            return;
        }
        self.account_time(cpu);
        let c = &mut self.cpus[cpu as usize];
        if c.curr.is_some() || c.locks > 0 {
            c.overhead_ns += ns;
            self.observer.overhead.balancing_ns += ns;
        }
        c.looking_ns += looking_ns;
        c.moving_ns += moving_ns;
        if c.locks == 0 {
            self.end_closed_stretch(cpu);
        }
    }

    /// Releases a lock of the CPU's runqueue.
    pub(super) fn unlock_queue(&mut self, cpu: u32) {
        let c = &mut self.cpus[cpu as usize];
        c.locks -= 1;
        if c.locks == 0 {
            self.end_closed_stretch(cpu);
        }
    }

    /// The CPU enables interrupts again.
    fn end_closed_stretch(&mut self, cpu: u32) {
        let c = &mut self.cpus[cpu as usize];
        let (looking_ns, moving_ns) =
            (std::mem::take(&mut c.looking_ns), std::mem::take(&mut c.moving_ns));
        self.observer.closed.add(looking_ns, moving_ns);
    }

    /// Plans the end of the running task's stretch of work, unless an earlier check is planned already.
    pub(super) fn plan_completion(&mut self, cpu: u32) {
        let c = &mut self.cpus[cpu as usize];
        let Some(curr) = c.curr else { return };
        let work = self.tasks[curr as usize].work;
        let at = c.since + c.interrupt_ns + c.overhead_ns + work.div_ceil(c.rate);
        if c.planned.is_none_or(|planned| at < planned) {
            c.planned = Some(at);
            self.agenda.plan(at, Event::Complete { cpu: cpu as u16 });
        }
    }

    /// The planned end of a stretch of work has come.
    pub(super) fn complete(&mut self, cpu: u32, time: u64) {
        let c = &mut self.cpus[cpu as usize];
        if c.planned != Some(time) {
            return;
        }
        c.planned = None;
        if c.is_held() {
            // The holder of the lock plans again when it is done.
            return;
        }
        let Some(curr) = c.curr else { return };
        self.account_time(cpu);
        let c = &self.cpus[cpu as usize];
        let is_done = c.overhead_ns == 0 && c.interrupt_ns == 0;
        if is_done && self.tasks[curr as usize].work == 0 {
            self.execute_ops(curr, cpu);
        } else {
            self.plan_completion(cpu);
        }
    }

    /// A task begins to run on a CPU: the cost of the switch, refilled caches, and the rate.
    pub(super) fn begin_run(&mut self, cpu: u32, task: u32) {
        let costs = self.machine.costs;
        let node = self.topology.node(cpu);
        let t = &mut self.tasks[task as usize];
        t.life = Life::Runs;
        t.runnable_at = self.now;
        t.times.begin(self.now);
        let home = *t.home.get_or_insert(node);
        let (last, space, reason) = (t.last_cpu.replace(cpu), t.space, t.reason);
        if last.is_none() {
            self.plan_told_home(task);
        }
        let c = &mut self.cpus[cpu as usize];
        let mut spent = Overhead { switching_ns: costs.switch_ns, ..Overhead::default() };
        let other_space =
            space != KERNEL && c.space.replace(space).is_some_and(|before| before != space);
        if other_space {
            spent.switching_ns += costs.space_ns;
        }
        match last {
            Some(last) if last != cpu => {
                let level = self.level(last, cpu);
                spent.refill_ns = match level {
                    Level::Same | Level::Core => 0,
                    Level::Cache => costs.refill_core_ns,
                    Level::Node => costs.refill_cache_ns,
                    Level::Remote(_) => costs.refill_node_ns,
                };
                self.observer.migrated(reason, level);
            }
            Some(_) if other_space => spent.switching_ns += costs.refill_space_ns,
            _ => {}
        }
        let fetch_ns = self.fetch_ns(cpu, task);
        match last {
            Some(last) if last != cpu => spent.refill_ns += fetch_ns,
            _ => spent.switching_ns += fetch_ns,
        }
        self.observer.switched(other_space);
        self.observer.overhead.add(spent);
        let rate = self.rate(cpu, task, home);
        let c = &mut self.cpus[cpu as usize];
        c.overhead_ns += spent.total_ns();
        c.rate = rate;
        if !self.cpus[cpu as usize].tick_planned {
            self.plan_tick(cpu);
        }
    }

    /// Progress in 2^-FRACTION ns per ns.
    fn rate(&self, cpu: u32, task: u32, home: u32) -> u64 {
        const CAPABILITY_BITS: u32 = 10;
        const MILLI: u64 = 1000;
        let c = &self.cpus[cpu as usize];
        let mut rate = u64::from(c.capability) << (FRACTION - CAPABILITY_BITS);
        let busy = |other: &u32| *other != cpu && self.is_busy(*other);
        if self.topology.has_smt() && self.topology.siblings(cpu).iter().any(busy) {
            rate = rate * self.machine.costs.smt_pct / 100;
        }
        let memory = u64::from(self.tasks[task as usize].memory_pct);
        let farther = self.topology.farther_milli(cpu, home);
        let slower = farther * self.machine.costs.remote_pct * memory / 10_000;
        let slower = slower + self.missing_milli(cpu, task);
        if slower > 0 {
            rate = rate * MILLI / (MILLI + slower);
        }
        rate.max(1)
    }

    fn is_busy(&self, cpu: u32) -> bool {
        let c = &self.cpus[cpu as usize];
        c.curr.is_some() || c.thief.is_some()
    }

    /// Sets the rate of the running task after a change.
    pub(super) fn update_rate(&mut self, cpu: u32) {
        let Some(curr) = self.cpus[cpu as usize].curr else { return };
        self.account_time(cpu);
        let home = self.tasks[curr as usize].home.unwrap_or_default();
        let rate = self.rate(cpu, curr, home);
        self.cpus[cpu as usize].rate = rate;
        self.plan_completion(cpu);
    }

    /// The CPU has become busy or idle: its SMT siblings get less or more of the core.
    pub(super) fn update_smt_siblings(&mut self, cpu: u32) {
        if !self.topology.has_smt() {
            return;
        }
        for index in 0..self.topology.siblings(cpu).len() {
            let sibling = self.topology.siblings(cpu)[index];
            if sibling != cpu {
                self.update_rate(sibling);
            }
        }
    }
}
