//! A CPU picks its next task (kernel: `__schedule()`, `balance_one()`, `pick_task_scx()`,
//! `put_prev_task_scx()`, `set_next_task_scx()`). Higher classes are real-time and deadline tasks, and
//! stopper threads. Left out: core scheduling, and the fair class beside sched_ext.

use evenkeel_invariants::{IDLE, Left, What};
use evenkeel_keel::InitialData;

use crate::agenda::Event;
use crate::outcome::Reason;
use crate::program::KERNEL;
use crate::tid::{STOPPER, thief_tid, tid};

use super::queue::LAST;
use super::{GLOBAL, Kernel, Life};

/// After this many rounds of dispatch without a task that can run, the CPU reschedules itself.
const DISPATCH_ROUNDS: u32 = 32;
/// The slice of a task that has none: `SCX_SLICE_DFL`.
pub(super) const DEFAULT_SLICE_NS: u64 = 20_000_000;

/// `SCX_DEQ_SLEEP`.
const SLEEPS: u64 = 1;

/// What runs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Idle,
    Task(u32),
    Thief(u16),
}

impl Kernel {
    /// Picks the next task of the CPU and switches to it. `left`: how the current task leaves.
    pub(super) fn schedule(&mut self, cpu: u32, left: Left) {
        self.account_time(cpu);
        let c = &mut self.cpus[cpu as usize];
        c.locks += 1;
        c.resched = false;
        let (prev, prev_thief) = (c.curr, c.thief);
        if let (Some(prev), true) = (prev, left != Left::Runnable) {
            self.dequeue(prev, SLEEPS);
        }
        let next = self.pick(cpu, prev, prev_thief, left);
        let stays = match next {
            Next::Task(next) => prev == Some(next),
            Next::Thief(next) => prev_thief == Some(next),
            Next::Idle => prev.is_none() && prev_thief.is_none(),
        };
        if stays {
            if next == Next::Idle {
                self.set_idle(cpu);
            }
        } else {
            self.switch_to(cpu, prev, prev_thief, next, left);
        }
        if let (Some(prev), true) = (prev, left != Left::Runnable) {
            let life = if left == Left::Dead { Life::Dead } else { Life::Asleep };
            let task = &mut self.tasks[prev as usize];
            task.life = life;
            task.times.sleep(self.now);
            if left == Left::Dead {
                self.call_exit_task(prev, cpu);
                self.live -= 1;
            }
        }
        self.unlock_queue(cpu);
        self.plan_completion(cpu);
    }

    fn pick(&mut self, cpu: u32, prev: Option<u32>, prev_thief: Option<u16>, left: Left) -> Next {
        // While a real-time task goes on, lower classes are not asked.
        let wanted = self.cpus[cpu as usize].thieves.first().copied();
        if wanted.is_some() && prev_thief == wanted {
            return wanted.map_or(Next::Idle, Next::Thief);
        }
        let keep = self.balance(cpu, prev, prev.is_some() && left == Left::Runnable);
        if let Some(thief) = self.cpus[cpu as usize].thieves.first() {
            return Next::Thief(*thief);
        }
        let next = match prev {
            Some(prev) if keep => prev,
            _ => match self.cpus[cpu as usize].local.front() {
                Some(first) => *first,
                None => return Next::Idle,
            },
        };
        let slice = &mut self.tasks[next as usize].raw.slice;
        if *slice == 0 {
            *slice = DEFAULT_SLICE_NS;
        }
        Next::Task(next)
    }

    /// Fills the local DSQ, if there is a task for it. Returns whether `prev` goes on.
    fn balance(&mut self, cpu: u32, prev: Option<u32>, prev_queued: bool) -> bool {
        if self.cpus[cpu as usize].released {
            self.call_higher_class(cpu, false);
            self.cpus[cpu as usize].released = false;
        }
        let goes_on = |kernel: &Self| {
            prev_queued && prev.is_some_and(|prev| kernel.tasks[prev as usize].raw.slice > 0)
        };
        if goes_on(self) {
            return true;
        }
        let has_any = |kernel: &mut Self| {
            !kernel.cpus[cpu as usize].local.is_empty() || kernel.consume(cpu, GLOBAL)
        };
        if has_any(self) {
            return false;
        }
        if self.instance.ops.dispatch.is_some() && self.cpus[cpu as usize].online {
            self.cpus[cpu as usize].in_balance = true;
            let mut rounds = 0;
            loop {
                let consumed = self.observer.consumed;
                self.call_dispatch(cpu, prev);
                if goes_on(self) {
                    self.cpus[cpu as usize].in_balance = false;
                    return true;
                }
                if has_any(self) || self.end.is_some() {
                    self.cpus[cpu as usize].in_balance = false;
                    return false;
                }
                rounds += 1;
                if self.observer.consumed == consumed {
                    break;
                }
                if rounds == DISPATCH_ROUNDS {
                    self.resched(cpu, cpu);
                    break;
                }
            }
            self.cpus[cpu as usize].in_balance = false;
        }
        // No other task: `prev` goes on, with or without slice, unless the scheduler set
        // SCX_OPS_ENQ_LAST.
        prev_queued && self.instance.ops.flags & InitialData::OPS_ENQ_LAST == 0
    }

    fn switch_to(
        &mut self,
        cpu: u32,
        prev: Option<u32>,
        prev_thief: Option<u16>,
        next: Next,
        left: Left,
    ) {
        match prev {
            Some(prev) => self.put_prev(cpu, prev, next, left),
            None if prev_thief.is_none() => {
                self.idle.clear(cpu, &self.topology, &self.online);
                self.call_update_idle(cpu, false);
            }
            None => {}
        }
        self.account_time(cpu);
        let c = &mut self.cpus[cpu as usize];
        let was_busy = prev.is_some() || prev_thief.is_some();
        (c.curr, c.thief) = match next {
            Next::Idle => (None, None),
            Next::Task(next) => (Some(next), None),
            Next::Thief(next) => (None, Some(next)),
        };
        let (prev_tid, charged_ns) = self.account_of(cpu, prev, prev_thief);
        let thief_left = prev_thief.map(|thief| {
            let wants = self.cpus[cpu as usize].thieves.contains(&thief);
            if wants { Left::Runnable } else { Left::Asleep }
        });
        let next_tid = match next {
            Next::Idle => IDLE,
            Next::Task(next) => tid(next),
            Next::Thief(next) => thief_tid(next, cpu),
        };
        self.emit(
            cpu,
            What::Switch {
                prev: prev_tid,
                left: thief_left.unwrap_or(left),
                charged_ns,
                next: next_tid,
            },
        );
        self.set_running(cpu, if let Next::Task(next) = next { Some(next) } else { None });
        self.cpus[cpu as usize].overhead_ns = match next {
            Next::Idle => 0,
            _ => self.cpus[cpu as usize].overhead_ns,
        };
        match next {
            Next::Task(next) => self.set_next(cpu, next),
            Next::Idle => {
                self.set_idle(cpu);
                self.call_update_idle(cpu, true);
            }
            Next::Thief(_) => self.cpus[cpu as usize].thief_since = self.now,
        }
        if was_busy != (next != Next::Idle) {
            self.update_smt_siblings(cpu);
        }
    }

    /// From now on this task of the workload runs on the CPU, or none.
    pub(super) fn set_running(&mut self, cpu: u32, task: Option<u32>) {
        let space = task.map(|task| self.tasks[task as usize].space);
        let space = space.filter(|space| *space != KERNEL);
        self.coscheduling.change(self.now, cpu, space);
        self.use_memory(cpu, task);
    }

    /// The number of the task that leaves the CPU, and its charged time.
    pub(super) fn account_of(
        &mut self,
        cpu: u32,
        prev: Option<u32>,
        thief: Option<u16>,
    ) -> (u32, u64) {
        match (prev, thief) {
            (Some(prev), _) => (tid(prev), self.tasks[prev as usize].raw.sum_exec_runtime),
            (None, Some(thief)) => {
                let thief = thief_tid(thief, cpu);
                let ran = self.thieves_ran.entry(thief).or_default();
                *ran += self.now - self.cpus[cpu as usize].thief_since;
                (thief, *ran)
            }
            (None, None) => (IDLE, 0),
        }
    }

    /// The current task stops running.
    fn put_prev(&mut self, cpu: u32, prev: u32, next: Next, left: Left) {
        if left == Left::Runnable {
            self.call_stopping(prev, true, cpu);
            let t = &mut self.tasks[prev as usize];
            t.life = Life::Waits;
            t.runnable_at = self.now;
            if t.raw.slice > 0 {
                // A higher class preempts it.
                self.push_local(prev, true, cpu);
            } else {
                t.reason = Reason::Requeue;
                let flags = if next == Next::Idle { LAST } else { 0 };
                self.do_enqueue(prev, flags, cpu);
            }
        }
        if matches!(next, Next::Thief(_)) && !self.cpus[cpu as usize].released {
            self.cpus[cpu as usize].released = true;
            self.call_higher_class(cpu, true);
        }
    }

    /// A task begins to run.
    pub(super) fn set_next(&mut self, cpu: u32, next: u32) {
        self.remove_from_dsq(next);
        self.begin_run(cpu, next);
        self.call_running(next, cpu);
    }

    /// A task of a higher class takes its CPU, or releases it.
    pub(super) fn thief_event(&mut self, index: u16, takes: bool) {
        let Some(thief) = self.workload.higher().nth(usize::from(index)).copied() else { return };
        let cpu = thief.cpu;
        let Some(c) = self.cpus.get_mut(cpu as usize) else { return };
        if c.is_held() {
            self.deferred.push(Event::Thief { index, takes });
            return;
        }
        if takes {
            self.agenda.plan(self.now + thief.run_ns, Event::Thief { index, takes: false });
            let period = thief.period_ns.max(thief.run_ns + 1);
            self.agenda.plan(self.now + period, Event::Thief { index, takes: true });
            // On an offline CPU it skips this period.
            if !c.online {
                return;
            }
            let is_deadline = self.workload.is_deadline(index);
            // Behind its equals, and before lower classes.
            let is_before = |other: &u16| is_deadline && !self.workload.is_deadline(*other);
            let lower = c.thieves.iter().position(|other| *other != STOPPER && is_before(other));
            c.thieves.insert(lower.unwrap_or(c.thieves.len()), index);
            self.emit(cpu, What::Wakeup { task: thief_tid(index, cpu) });
        } else {
            c.thieves.retain(|other| *other != index);
        }
        if self.cpus[cpu as usize].online {
            self.schedule(cpu, Left::Runnable);
        }
    }
}
