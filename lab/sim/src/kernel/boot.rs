//! The machine at boot: its CPUs, cgroups and tasks, and the events that are known from the start.

use evenkeel_invariants::{Left, What, weight_of_nice};

use super::times::TaskTimes;
use super::{Cpu, FULL_FREQUENCY, Group, Kernel, Life, Queue, Task, capability_feed, shield};
use crate::abi::{RawGroup, RawNode, RawTask};
use crate::agenda::Event;
use crate::outcome::Reason;
use crate::program::{Policy, Told};
use crate::random::stream;
use crate::tid::tid;

/// A task's priority at nice 0 (kernel: include/linux/sched/prio.h).
pub(super) const DEFAULT_PRIO: i32 = 120;

/// The weight of a nice value as sched_ext gives it: 100 for nice 0 (kernel:
/// `sched_weight_to_cgroup`).
pub(super) fn weight_in_cgroup(nice: i32) -> u32 {
    let weight = u64::from(weight_of_nice(nice)) * 100;
    ((weight + 512) / 1024).clamp(1, 10_000) as u32
}

impl Kernel {
    pub(super) fn make_cpus(&mut self) {
        for id in 0..self.topology.cpus() as u32 {
            let cpu = self.machine.cpu(id);
            let online = cpu.is_some_and(|cpu| cpu.online);
            self.cpus.push(Cpu {
                online,
                capability: cpu.map_or(1, |cpu| cpu.capability),
                frequency: FULL_FREQUENCY,
                ..Cpu::default()
            });
            if online {
                self.observer.event(
                    0,
                    id,
                    What::Switch { prev: 0, left: Left::Runnable, charged_ns: 0, next: 0 },
                );
            }
        }
    }

    pub(super) fn make_groups(&mut self) {
        let plans = self.workload.clone();
        let mut add = |weight, parent: usize| {
            self.last_group_id += 1;
            let node = Box::new(RawNode { id: self.last_group_id });
            let above = self.groups.get(parent).map(|group: &Group| &*group.raw);
            let raw = Box::new(RawGroup {
                level: above.map_or(0, |above| above.level + 1),
                kn: &raw const *node,
                parent: above.map_or(std::ptr::null(), |above| &raw const *above),
            });
            let parent = above.map(|_| parent);
            self.groups.push(Group { raw, node, parent, weight });
        };
        add(100, usize::MAX);
        plans.groups.iter().for_each(|group| add(group.weight, group.parent));
        (0..self.groups.len()).for_each(|group| self.emit_group(group));
    }

    pub(super) fn make_tasks(&mut self) {
        let workload = self.workload.clone();
        let present = self.present();
        self.tasks.reserve_exact(workload.tasks.len());
        for (index, plan) in workload.tasks.iter().enumerate() {
            let allowed = plan.allowed.as_deref().cloned();
            let allowed = allowed.unwrap_or_else(|| present.clone());
            let raw = RawTask {
                pid: tid(index as u32) as i32,
                // A process is its address space.
                tgid: plan.space.wrapping_add(1) as i32,
                prio: DEFAULT_PRIO + plan.nice,
                on_cpu: 0,
                nr_cpus_allowed: allowed.count() as i32,
                numa_preferred_nid: match plan.told {
                    Told::AtFork => plan.home.map_or(-1, |home| self.node_id(home)),
                    Told::Later { .. } => -1,
                },
                cpus_ptr: std::ptr::null(),
                mm: plan.space.wrapping_add(1) as usize,
                sum_exec_runtime: 0,
                flags: 0,
                weight: weight_in_cgroup(plan.nice),
                slice: 0,
                dsq_vtime: 0,
                storage: std::ptr::null_mut(),
                cpu: 0,
                index: index as u32,
            };
            self.tasks.push(Task {
                raw,
                allowed,
                life: Life::New,
                queue: Queue::None,
                direct: None,
                sleeps: 0,
                work: 0,
                runnable_at: 0,
                last_cpu: None,
                home: plan.home,
                space: plan.space,
                memory_pct: u32::from(plan.memory_pct),
                memory: plan.memory,
                nice: plan.nice,
                policy: Policy::Other,
                group: plan.group.min(self.groups.len() - 1),
                exits: false,
                reason: Reason::Fork,
                ops: plan.ops.clone(),
                at: 0,
                repeats: Vec::new(),
                timers: Vec::new(),
                calls: 0,
                times: TaskTimes::default(),
                rng: stream(self.seed, index),
            });
        }
        for task in &mut self.tasks {
            task.raw.cpus_ptr = &raw const task.allowed;
        }
    }

    pub(super) fn plan_all(&mut self) {
        let workload = self.workload.clone();
        for (index, task) in workload.tasks.iter().enumerate() {
            if let Some(at) = task.arrives_ns {
                self.agenda.plan(at, Event::Arrive { task: index as u32 });
            }
        }
        for (index, thief) in workload.higher().enumerate() {
            self.agenda.plan(thief.from_ns, Event::Thief { index: index as u16, takes: true });
        }
        for (index, source) in workload.interrupts.iter().enumerate() {
            self.agenda.plan(source.period_ns, Event::Interrupt { index: index as u16 });
        }
        for (index, (at, _)) in workload.changes.iter().enumerate() {
            self.agenda.plan(*at, Event::Change { index: index as u32 });
        }
        if let Some(balancer) = &self.balancer {
            self.agenda.plan(balancer.first_interval_ns(), Event::Balance);
        }
        if self.watches_capabilities() {
            self.agenda.plan(capability_feed::INTERVAL_NS, Event::Capabilities);
        }
        self.start_helper();
        if self.is_ever_shielded() {
            self.emit_shield();
            self.agenda.plan(shield::INTERVAL_NS, Event::Relief);
        }
        self.plan_watchdog();
        self.plan_fault();
    }
}
