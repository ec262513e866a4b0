//! The user-level balancer on top of the scheduler: product/capability's own `plan()` gets a snapshot
//! of all tasks at the end of each interval. Its moves are carried out by soft placement, as
//! product/host does: the mask is narrowed to the destination CPU and restored at once, or kept while
//! the plan keeps the task there. The time that the balancer takes is left out.

use std::collections::BTreeMap;

use evenkeel_capability::{CpuView, Policy, Seen, Snapshot, State, TaskId, TaskView, plan};

use crate::agenda::Event;
use crate::mask::Mask;
use crate::outcome::End;
use crate::tid::tid;

use super::times::{CpuTimes, TaskTimes};
use super::{Kernel, Life, Queue};

/// The balancer and its readings at the end of the last interval.
pub(super) struct Balancer {
    state: State,
    since_ns: u64,
    cpus: Vec<CpuTimes>,
    tasks: Vec<TaskTimes>,
    /// The own masks of the tasks that are kept on one CPU, and the CPU.
    held: BTreeMap<u32, (Mask, u32)>,
}

impl Balancer {
    pub fn new(policy: Policy, cpus: usize, tasks: usize) -> Self {
        Self {
            state: State::new(policy),
            since_ns: 0,
            cpus: vec![CpuTimes::default(); cpus],
            tasks: vec![TaskTimes::default(); tasks],
            held: BTreeMap::new(),
        }
    }

    pub fn first_interval_ns(&self) -> u64 {
        self.state.first_interval_ns()
    }
}

impl Kernel {
    /// An interval is over.
    pub(super) fn balance_event(&mut self) {
        if self.defer_unless_alone(Event::Balance) {
            return;
        }
        let Some(mut balancer) = self.balancer.take() else { return };
        let snapshot = self.snapshot(&mut balancer);
        match plan(&snapshot, &mut balancer.state) {
            Ok(plan) => {
                let pins = plan.pins.iter().map(|pin| (pin.task.tid - 1, pin.cpu)).collect();
                self.release_all_but(&mut balancer.held, &pins);
                for made in &plan.moves {
                    self.place(made.task.tid - 1, made.to);
                }
                self.hold(&mut balancer.held, &pins);
                self.observer.moves += plan.moves.len() as u64;
                self.agenda.plan(self.now + plan.interval_ns.max(1), Event::Balance);
            }
            Err(why) => self.end = Some(End::Host(format!("the balancer's snapshot: {why}"))),
        }
        self.balancer = Some(balancer);
    }

    fn place(&mut self, task: u32, cpu: u32) {
        let own = self.tasks[task as usize].allowed.clone();
        self.set_affinity(task, &only(cpu));
        self.set_affinity(task, &own);
    }

    /// Gives tasks their own masks back that are not to be kept where they are.
    fn release_all_but(
        &mut self,
        held: &mut BTreeMap<u32, (Mask, u32)>,
        pins: &BTreeMap<u32, u32>,
    ) {
        held.retain(|task, (own, cpu)| {
            let stays = pins.get(task) == Some(cpu);
            if !stays {
                self.set_affinity(*task, own);
            }
            stays
        });
    }

    /// Keeps tasks on the CPUs where they are.
    fn hold(&mut self, held: &mut BTreeMap<u32, (Mask, u32)>, pins: &BTreeMap<u32, u32>) {
        for (task, cpu) in pins {
            held.entry(*task).or_insert_with(|| {
                let own = self.tasks[*task as usize].allowed.clone();
                self.set_affinity(*task, &only(*cpu));
                (own, *cpu)
            });
        }
    }

    /// What happened since the last snapshot.
    fn snapshot(&mut self, balancer: &mut Balancer) -> Snapshot {
        let online = self.online.to_set();
        let interval_ns = (self.now - balancer.since_ns).max(1);
        balancer.since_ns = self.now;
        let mut cpus = Vec::with_capacity(online.len());
        for cpu in online.iter() {
            self.account_time(cpu);
            let times = self.cpus[cpu as usize].times;
            let before = std::mem::replace(&mut balancer.cpus[cpu as usize], times);
            let rt_ns = times.taken_ns - before.taken_ns;
            cpus.push(CpuView {
                cpu,
                core: self.topology.siblings(cpu).first().copied().unwrap_or(cpu),
                node: self.topology.node(cpu),
                speed: self.cpus[cpu as usize].capability.clamp(1, 1024),
                energy_rank: self.topology.energy_rank(cpu),
                noise_ns: times.interrupted_ns - before.interrupted_ns,
                rt_ns,
                idle_ns: times.idle_ns - before.idle_ns,
                foreign_milli: 0,
                rt_milli: (rt_ns * 1000 / interval_ns) as u32,
            });
        }
        let mut tasks = Vec::new();
        for task in 0..self.tasks.len() as u32 {
            if matches!(self.tasks[task as usize].life, Life::New | Life::Dead) {
                continue;
            }
            let waited_ns = self.observer.waited_ns(task, self.now);
            let t = &self.tasks[task as usize];
            let mut times = t.times;
            times.waited_ns = waited_ns;
            let before = std::mem::replace(&mut balancer.tasks[task as usize], times);
            let own = balancer.held.get(&task).map_or(&t.allowed, |(own, _)| own);
            tasks.push(TaskView {
                id: TaskId { tid: tid(task), start: 0 },
                process: t.space,
                cpu: t.raw.cpu,
                queue: match t.queue {
                    Queue::Dsq(_, place) => place.vtime,
                    Queue::None | Queue::Local => 0,
                },
                run_ns: times.ran_ns - before.ran_ns,
                spun_ns: 0,
                samples: 0,
                changes: 0,
                received_ns: (times.received - before.received) >> 10,
                stolen_ns: times.stolen_ns - before.stolen_ns,
                wait_ns: times.waited_ns - before.waited_ns,
                sleeps: (times.sleeps - before.sleeps) as u32,
                runnable: matches!(t.life, Life::Waking | Life::Waits | Life::Runs),
                allowed: own.to_set().intersection(&online),
                fixed: own.count() == 1,
                working_set_bytes: None,
            });
        }
        Snapshot { interval_ns, cpus, tasks, seen: Seen::default() }
    }
}

/// A mask of one CPU.
fn only(cpu: u32) -> Mask {
    let mut only = Mask::EMPTY;
    only.set(cpu);
    only
}
