//! The ops of tasks between stretches of work: sleep, barriers, mutexes, conditions, channels, fork,
//! exit. Left out: the cost of the system calls behind them, and priority inheritance.

use std::collections::VecDeque;

use evenkeel_invariants::{Left, What};
use rand_xoshiro::rand_core::Rng;

use crate::agenda::Event;
use crate::outcome::MAX_STEPS;
use crate::program::{MAX_NS, Op, Workload};
use crate::random::about;
use crate::tid::tid;

use super::{End, FRACTION, Kernel};

/// A mutex.
#[derive(Debug, Default)]
struct Mutex {
    owner: Option<u32>,
    waiting: VecDeque<u32>,
}

/// A channel: the number of its items, and the tasks that wait for one.
#[derive(Debug, Default)]
struct Channel {
    items: u64,
    waiting: VecDeque<u32>,
}

/// The objects that tasks wait for.
#[derive(Debug, Default)]
pub(super) struct Objects {
    barriers: Vec<Vec<u32>>,
    mutexes: Vec<Mutex>,
    conditions: Vec<VecDeque<u32>>,
    channels: Vec<Channel>,
}

impl Objects {
    pub fn new(workload: &Workload) -> Self {
        Self {
            barriers: vec![Vec::new(); workload.barriers.len()],
            mutexes: (0..workload.mutexes).map(|_| Mutex::default()).collect(),
            conditions: vec![VecDeque::new(); workload.conditions],
            channels: (0..workload.channels).map(|_| Channel::default()).collect(),
        }
    }
}

/// What follows an op.
enum Step {
    /// The next op follows at once.
    On,
    /// The task works, or goes on when it has the CPU again.
    Works,
    Blocks,
    Yields,
}

impl Kernel {
    /// Executes the ops of a running task, up to where it works, blocks or exits.
    pub(super) fn execute_ops(&mut self, task: u32, cpu: u32) {
        for _ in 0..MAX_STEPS {
            let t = &mut self.tasks[task as usize];
            let Some(op) = t.ops.get(t.at).cloned() else {
                self.begin_exit(task, cpu);
                self.schedule(cpu, Left::Dead);
                return;
            };
            t.at += 1;
            match self.execute_op(task, cpu, op) {
                Step::On => {}
                Step::Works => return self.plan_completion(cpu),
                Step::Blocks => return self.schedule(cpu, Left::Asleep),
                Step::Yields => {
                    self.call_yield(task, cpu);
                    return self.schedule(cpu, Left::Runnable);
                }
            }
            // Its own op may have cost it the CPU.
            if self.cpus[cpu as usize].curr != Some(task) {
                return;
            }
        }
        self.end = Some(End::Busy { task: self.name(task) });
    }

    fn execute_op(&mut self, task: u32, cpu: u32, op: Op) -> Step {
        let t = &mut self.tasks[task as usize];
        match op {
            Op::Run(ns) => self.begin_work(task, ns),
            Op::RunAbout(mean) => {
                let ns = about(mean, t.rng.next_u64());
                self.begin_work(task, ns)
            }
            Op::Sleep(ns) => self.begin_sleep(task, cpu, ns),
            Op::SleepAbout(mean) => {
                let ns = about(mean, t.rng.next_u64());
                self.begin_sleep(task, cpu, ns)
            }
            Op::Timer { timer, period_ns } => {
                if t.timers.len() <= timer {
                    t.timers.resize(timer + 1, self.now);
                }
                let next = t.timers[timer].saturating_add(period_ns);
                // A timer that is late by whole periods restarts from now.
                t.timers[timer] = next.max(self.now);
                self.begin_sleep(task, cpu, next.saturating_sub(self.now))
            }
            Op::Barrier(barrier) => self.wait_at_barrier(task, cpu, barrier),
            Op::Lock(mutex) => {
                let mutex = &mut self.sync.mutexes[mutex];
                if mutex.owner.is_none() {
                    mutex.owner = Some(task);
                    return Step::On;
                }
                mutex.waiting.push_back(task);
                Step::Blocks
            }
            Op::Unlock(mutex) => {
                self.unlock_mutex(task, cpu, mutex);
                Step::On
            }
            Op::Wait { condition, mutex } => {
                self.sync.conditions[condition].push_back(task);
                if let Some(mutex) = mutex {
                    self.unlock_mutex(task, cpu, mutex);
                }
                Step::Blocks
            }
            Op::Signal(condition) => {
                if let Some(other) = self.sync.conditions[condition].pop_front() {
                    self.wake_other(other, cpu);
                }
                Step::On
            }
            Op::Broadcast(condition) => {
                let waiting = std::mem::take(&mut self.sync.conditions[condition]);
                waiting.into_iter().for_each(|other| self.wake_other(other, cpu));
                Step::On
            }
            Op::Send(channel) => {
                t.calls += 1;
                let channel = &mut self.sync.channels[channel];
                match channel.waiting.pop_front() {
                    Some(other) => self.wake_other(other, cpu),
                    None => channel.items += 1,
                }
                Step::On
            }
            Op::Receive(channel) => {
                t.calls += 1;
                let channel = &mut self.sync.channels[channel];
                if channel.items > 0 {
                    channel.items -= 1;
                    return Step::On;
                }
                channel.waiting.push_back(task);
                Step::Blocks
            }
            Op::Yield => Step::Yields,
            Op::Affinity(allowed) => {
                self.set_affinity(task, &allowed);
                Step::Works
            }
            Op::Nice(nice) => {
                let policy = t.policy;
                self.set_policy(task, policy, nice);
                Step::Works
            }
            Op::Policy(policy) => {
                let nice = t.nice;
                self.set_policy(task, policy, nice);
                Step::Works
            }
            Op::Exec(space) => {
                t.space = space;
                t.raw.mm = space.wrapping_add(1) as usize;
                self.cpus[cpu as usize].space = Some(space);
                self.set_running(cpu, Some(task));
                Step::On
            }
            Op::Fork(child) => {
                self.fork(child as u32, cpu);
                Step::On
            }
            Op::BeginExit => {
                self.begin_exit(task, cpu);
                Step::On
            }
            Op::Repeat { to, times } => self.execute_repeat(task, to, times),
            Op::Goto(to) => {
                t.at = to;
                Step::On
            }
        }
    }

    fn begin_exit(&mut self, task: u32, cpu: u32) {
        if !std::mem::replace(&mut self.tasks[task as usize].exits, true) {
            self.emit(cpu, What::Exit { task: tid(task) });
        }
    }

    fn begin_work(&mut self, task: u32, ns: u64) -> Step {
        self.tasks[task as usize].work = ns.min(MAX_NS) << FRACTION;
        if ns > 0 { Step::Works } else { Step::On }
    }

    fn begin_sleep(&mut self, task: u32, cpu: u32, ns: u64) -> Step {
        if ns == 0 {
            return Step::On;
        }
        let sleep = self.tasks[task as usize].sleeps;
        let at = self.now + ns + self.hazards.lateness();
        self.agenda.plan(at, Event::Wake { task, cpu: cpu as u16, sleep });
        Step::Blocks
    }

    fn wait_at_barrier(&mut self, task: u32, cpu: u32, barrier: usize) -> Step {
        let waiting = &mut self.sync.barriers[barrier];
        if waiting.len() as u32 + 1 < self.workload.barriers[barrier] {
            waiting.push(task);
            return Step::Blocks;
        }
        let waiting = std::mem::take(waiting);
        waiting.into_iter().for_each(|other| self.wake_other(other, cpu));
        Step::On
    }

    /// Passes a mutex to the task that has waited longest for it. Does nothing if another task owns it.
    fn unlock_mutex(&mut self, task: u32, cpu: u32, mutex: usize) {
        let mutex = &mut self.sync.mutexes[mutex];
        if mutex.owner != Some(task) {
            return;
        }
        mutex.owner = mutex.waiting.pop_front();
        if let Some(next) = mutex.owner {
            self.wake_other(next, cpu);
        }
    }

    fn execute_repeat(&mut self, task: u32, to: usize, times: u64) -> Step {
        let t = &mut self.tasks[task as usize];
        let here = t.at;
        let count = match t.repeats.iter_mut().find(|(at, _)| *at == here) {
            Some((_, count)) => count,
            None => {
                t.repeats.push((here, 0));
                match t.repeats.last_mut() {
                    Some((_, count)) => count,
                    None => return Step::On,
                }
            }
        };
        if *count < times {
            *count += 1;
            t.at = to;
        } else {
            *count = 0;
        }
        Step::On
    }

    /// A task that runs on `cpu` wakes another one.
    pub(super) fn wake_other(&mut self, task: u32, cpu: u32) {
        let sleep = self.tasks[task as usize].sleeps;
        self.wake_event(task, cpu, sleep);
    }
}
