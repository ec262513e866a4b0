//! Ticks, interrupts and the watchdog (kernel: `task_tick_scx()`, `scx_watchdog_workfn()`). A busy CPU
//! ticks at multiples of the period; an idle one does not. Left out: `nohz_full`, softirqs and the time
//! of the tick itself.

use crate::agenda::Event;

use super::{Kernel, Life};

impl Kernel {
    pub(super) fn plan_tick(&mut self, cpu: u32) {
        let period = self.machine.costs.tick_ns;
        let at = (self.now / period + 1) * period + self.hazards.lateness();
        self.cpus[cpu as usize].tick_planned = true;
        self.agenda.plan(at, Event::Tick { cpu: cpu as u16 });
    }

    pub(super) fn tick(&mut self, cpu: u32) {
        let c = &mut self.cpus[cpu as usize];
        if c.is_held() {
            self.deferred.push(Event::Tick { cpu: cpu as u16 });
            return;
        }
        c.tick_planned = false;
        let Some(curr) = c.curr else { return };
        self.account_time(cpu);
        self.cpus[cpu as usize].locks += 1;
        self.call_tick(curr, cpu);
        self.unlock_queue(cpu);
        self.plan_tick(cpu);
        if self.tasks[curr as usize].raw.slice == 0 {
            self.resched(cpu, cpu);
        }
        self.plan_completion(cpu);
    }

    /// An interrupt: the running task is not switched, but makes no progress meanwhile.
    pub(super) fn interrupt(&mut self, index: u16) {
        let Some(source) = self.workload.interrupts.get(usize::from(index)).copied() else {
            return;
        };
        if (source.cpu as usize) < self.cpus.len() {
            self.account_time(source.cpu);
            self.cpus[source.cpu as usize].interrupt_ns += source.run_ns;
            self.observer.interrupt_ns += source.run_ns;
        }
        let period = source.period_ns.max(1);
        self.agenda.plan(self.now + period, Event::Interrupt { index });
    }

    /// How long a task may wait before the watchdog ends the scheduler.
    fn timeout_ns(&self) -> u64 {
        const MOST_MS: u64 = 30_000;
        match u64::from(self.instance.ops.timeout_ms) {
            0 => MOST_MS * 1_000_000,
            ms => ms.min(MOST_MS) * 1_000_000,
        }
    }

    pub(super) fn plan_watchdog(&mut self) {
        self.agenda.plan(self.now + self.timeout_ns() / 2, Event::Watchdog);
    }

    /// Ends a scheduler that lets a task wait for too long, and a workload that is deadlocked.
    pub(super) fn watchdog(&mut self) {
        let stalled = (0..self.tasks.len() as u32).find(|task| {
            let t = &self.tasks[*task as usize];
            t.life == Life::Waits && self.now - t.runnable_at > self.timeout_ns()
        });
        if let Some(task) = stalled {
            let ms = (self.now - self.tasks[task as usize].runnable_at) / 1_000_000;
            let (secs, ms) = (ms / 1000, ms % 1000);
            self.end_at_fault(format!(
                "runnable task stall ({} failed to run for {secs}.{ms:03}s)",
                self.name(task)
            ));
        }
        if self.is_deadlocked() {
            self.end = Some(self.deadlock_end());
        }
        self.plan_watchdog();
    }

    /// Whether no task is runnable and no planned event will change that.
    fn is_deadlocked(&self) -> bool {
        let is_runnable = |life| matches!(life, Life::Waking | Life::Waits | Life::Runs);
        !self.agenda.wakes_any()
            && self.deferred.is_empty()
            && !self.tasks.iter().any(|task| is_runnable(task.life))
    }
}
