//! Cumulative figures of CPUs and tasks at one moment, from whatever source, and the snapshot
//! between two such moments.

use std::collections::BTreeMap;

use evenkeel_capability::{CpuView, Snapshot, TaskId, TaskView};
use evenkeel_machine::CpuSet;

/// Everything that was counted up to one moment. Only differences mean something.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Monotonic clock.
    pub at_ns: u64,
    /// By CPU number.
    pub cpus: BTreeMap<u32, CpuReading>,
    /// The program's tasks.
    pub tasks: BTreeMap<TaskId, TaskReading>,
}

/// Where a CPU's time went so far, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuReading {
    /// Interrupt handlers.
    pub irq_ns: u64,
    /// Softirqs.
    pub softirq_ns: u64,
    /// The hypervisor's other guests.
    pub steal_ns: u64,
    /// Real-time and deadline tasks.
    pub rt_ns: u64,
    /// Nothing to run.
    pub idle_ns: u64,
    /// Fair-class tasks of other programs.
    pub foreign_ns: u64,
    /// Runnable fair-class tasks over time (task-nanoseconds), the program's included.
    pub fair_runnable_ns: u64,
    /// The same for real-time tasks.
    pub rt_runnable_ns: u64,
}

/// What a task got so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct TaskReading {
    /// Its process.
    pub process: u32,
    /// CPU that it is on.
    pub cpu: u32,
    /// Its place in the runqueue: the smaller runs first.
    pub queue: u64,
    /// Time on a CPU, without what was stolen meanwhile.
    pub run_ns: u64,
    /// What was stolen while it was on a CPU.
    pub stolen_ns: u64,
    /// `run_ns` weighted with speed.
    pub received_ns: u64,
    /// Time runnable but not running.
    pub wait_ns: u64,
    /// Times switched in.
    pub switches: u64,
    /// Wants a CPU now.
    pub runnable: bool,
}

/// What only the side that acts knows of a task.
#[derive(Debug, Clone, Default)]
pub struct Freedom {
    /// CPUs that its user lets it use.
    pub allowed: CpuSet,
    /// Must not be touched.
    pub fixed: bool,
}

impl Reading {
    /// The interval from `earlier` to `self`, for the CPUs in `usable`, whose speeds are
    /// `speed(cpu)`; `None` when no time has passed. Tasks that are new since `earlier` are
    /// counted from zero; `freedom` says where each may go.
    pub fn since(
        &self,
        earlier: &Self,
        usable: &CpuSet,
        speed: impl Fn(u32) -> u32,
        mut freedom: impl FnMut(TaskId, &TaskReading) -> Freedom,
    ) -> Option<Snapshot> {
        let interval_ns = self.at_ns.checked_sub(earlier.at_ns).filter(|interval| *interval > 0)?;
        let mut own: BTreeMap<u32, Own> = BTreeMap::new();
        let tasks: Vec<TaskView> = self
            .tasks
            .iter()
            .map(|(id, now)| {
                let then = earlier.tasks.get(id).copied().unwrap_or_default();
                let Freedom { allowed, fixed } = freedom(*id, now);
                let view = TaskView {
                    id: *id,
                    process: now.process,
                    cpu: now.cpu,
                    queue: now.queue,
                    run_ns: now.run_ns.saturating_sub(then.run_ns),
                    received_ns: now.received_ns.saturating_sub(then.received_ns),
                    stolen_ns: now.stolen_ns.saturating_sub(then.stolen_ns),
                    wait_ns: now.wait_ns.saturating_sub(then.wait_ns),
                    switches: now.switches.saturating_sub(then.switches) as u32,
                    runnable: now.runnable,
                    allowed: allowed.intersection(usable),
                    fixed,
                    // Nothing that adds up: measured apart (`working_set`).
                    working_set_bytes: None,
                };
                let own = own.entry(now.cpu).or_default();
                own.run_ns += view.run_ns + view.stolen_ns;
                own.wait_ns += view.wait_ns;
                view
            })
            .collect();
        let cpus = self
            .cpus
            .iter()
            .filter(|(cpu, _)| usable.contains(**cpu))
            .map(|(cpu, now)| {
                let then = earlier.cpus.get(cpu).copied().unwrap_or_default();
                let milli = |task_ns: u64| (task_ns.saturating_mul(1000) / interval_ns) as u32;
                let runnable_ns = now.fair_runnable_ns.saturating_sub(then.fair_runnable_ns);
                let foreign_ns = now.foreign_ns.saturating_sub(then.foreign_ns);
                let own = own.get(cpu).copied().unwrap_or_default();
                let noise =
                    |reading: &CpuReading| reading.irq_ns + reading.softirq_ns + reading.steal_ns;
                CpuView {
                    cpu: *cpu,
                    speed: speed(*cpu),
                    noise_ns: noise(now).saturating_sub(noise(&then)),
                    rt_ns: now.rt_ns.saturating_sub(then.rt_ns),
                    idle_ns: now.idle_ns.saturating_sub(then.idle_ns),
                    foreign_milli: milli(own.competitors(interval_ns, foreign_ns, runnable_ns)),
                    rt_milli: milli(now.rt_runnable_ns.saturating_sub(then.rt_runnable_ns)),
                }
            })
            .collect();
        Some(Snapshot { interval_ns, cpus, tasks })
    }
}

/// What the program's tasks on one CPU did in an interval.
#[derive(Debug, Clone, Copy, Default)]
struct Own {
    run_ns: u64,
    wait_ns: u64,
}

/// Tasks that waited less than this share of the interval had no competitor: 1/20.
const CONTENDED_SHARE: u64 = 20;

impl Own {
    /// How many tasks of other programs compete on this CPU, integrated over the interval
    /// (task-nanoseconds), as tasks of the program's own weight.
    ///
    /// Where they had to share, by what each side got: that is right for any weight (nice levels,
    /// cgroups, autogroups). Elsewhere the number of runnable tasks must do.
    fn competitors(self, interval_ns: u64, foreign_ns: u64, runnable_ns: u64) -> u64 {
        let demand_ns = self.run_ns + self.wait_ns;
        if self.wait_ns * CONTENDED_SHARE < interval_ns || self.run_ns == 0 {
            return runnable_ns.saturating_sub(demand_ns);
        }
        (u128::from(demand_ns) * u128::from(foreign_ns) / u128::from(self.run_ns)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at_ns: u64, softirq_ns: u64, runnable_ns: u64, run_ns: u64) -> Reading {
        let cpu = CpuReading { softirq_ns, fair_runnable_ns: runnable_ns, ..Default::default() };
        let task = TaskReading { cpu: 0, run_ns, runnable: true, ..Default::default() };
        Reading {
            at_ns,
            cpus: [(0, cpu), (1, CpuReading::default())].into(),
            tasks: [(TaskId { tid: 7, start: 1 }, task)].into(),
        }
    }

    fn free(_: TaskId, _: &TaskReading) -> Freedom {
        Freedom { allowed: CpuSet::first(4), fixed: false }
    }

    #[test]
    fn differences_count_and_own_demand_is_not_foreign() {
        let (earlier, later) = (reading(1000, 10, 500, 100), reading(2000, 410, 2100, 700));
        let snapshot = later.since(&earlier, &CpuSet::first(2), |_| 1024, free).unwrap();
        assert_eq!(snapshot.interval_ns, 1000);
        assert_eq!(snapshot.cpus[0].noise_ns, 400);
        // 1600 task-ns were runnable, 600 of them the program's own.
        assert_eq!(snapshot.cpus[0].foreign_milli, 1000);
        assert_eq!(snapshot.tasks[0].run_ns, 600);
        assert_eq!(snapshot.tasks[0].allowed, CpuSet::first(2));
    }

    #[test]
    fn competitors_are_weighed_by_what_they_got() {
        let own = |run_ns, wait_ns| Own { run_ns, wait_ns };
        // One task of ours got half: there is one of equal weight.
        assert_eq!(own(500, 500).competitors(1000, 500, 2000), 1000);
        // It got a third: there are two, or one of double weight.
        assert_eq!(own(333, 666).competitors(1000, 666, 2000), 1998);
        // Two of ours against one.
        assert_eq!(own(666, 1334).competitors(1000, 334, 3000), 2000 * 334 / 666);
        // Waited for a real-time task only.
        assert_eq!(own(500, 500).competitors(1000, 0, 1000), 0);
        // None of ours is there: one runnable task is one competitor.
        assert_eq!(own(0, 0).competitors(1000, 1000, 1000), 1000);
    }

    #[test]
    fn unusable_cpus_and_empty_intervals_are_left_out() {
        let (earlier, later) = (reading(1000, 0, 0, 0), reading(2000, 0, 0, 0));
        let one: CpuSet = [1].into_iter().collect();
        let snapshot = later.since(&earlier, &one, |_| 1024, free).unwrap();
        assert_eq!(snapshot.cpus.iter().map(|cpu| cpu.cpu).collect::<Vec<_>>(), [1]);
        assert!(later.since(&later, &one, |_| 1024, free).is_none());
        assert!(earlier.since(&later, &one, |_| 1024, free).is_none());
    }
}
