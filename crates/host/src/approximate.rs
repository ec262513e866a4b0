//! Readings from /proc: approximate, for anyone.
//!
//! /proc/stat counts in ticks, so a softirq thief that hides between them is not seen, and
//! real-time tasks look like any others. A task's run time (`schedstat`) is exact but, without
//! IRQ_TIME_ACCOUNTING, includes what softirqs stole. Competition is inferred: the share of a CPU
//! that others took from tasks of ours which wanted it.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_capability::TaskId;
use procfs::process::{Process, Task};
use procfs::{CpuTime, CurrentSI, KernelStats, ProcError};

use crate::reading::{CpuReading, Reading, TaskReading};

pub(crate) struct Approximate {
    root: i32,
    speeds: Vec<u32>,
    /// Processes of the program, the root first; a process stays in it when its parent dies.
    processes: BTreeSet<i32>,
    last: Reading,
}

impl Approximate {
    pub(crate) fn new(root: u32, speeds: &[u32]) -> Self {
        let root = root as i32;
        Self { root, speeds: speeds.to_vec(), processes: [root].into(), last: Reading::default() }
    }

    pub(crate) fn read(&mut self, at_ns: u64) -> Result<Reading, ProcError> {
        let stats = KernelStats::current()?;
        let tasks = self.tasks();
        let interval_ns = at_ns.saturating_sub(self.last.at_ns).max(1);
        let mut cpus = BTreeMap::new();
        for (cpu, time) in stats.cpu_time.iter().enumerate() {
            let cpu = cpu as u32;
            let earlier = self.last.cpus.get(&cpu).copied();
            let mut now = in_nanoseconds(time);
            if let Some(earlier) = earlier {
                let (run_ns, wait_ns) = own_share(cpu, &tasks, &self.last.tasks);
                let not_tasks_ns = taken(&now).saturating_sub(taken(&earlier));
                let busy_ns = interval_ns.saturating_sub(not_tasks_ns);
                let foreign_ns = busy_ns.saturating_sub(run_ns);
                now.foreign_ns = earlier.foreign_ns + foreign_ns;
                // How many others wait is not told: at least those who ran were runnable.
                now.fair_runnable_ns = earlier.fair_runnable_ns + run_ns + wait_ns + foreign_ns;
            }
            cpus.insert(cpu, now);
        }
        self.last = Reading { at_ns, cpus, tasks };
        Ok(self.last.clone())
    }

    fn tasks(&mut self) -> BTreeMap<TaskId, TaskReading> {
        let mut tasks = BTreeMap::new();
        let mut pending: Vec<i32> = self.processes.iter().copied().collect();
        let mut alive = BTreeSet::new();
        while let Some(pid) = pending.pop() {
            let Ok(threads) = Process::new(pid).and_then(|process| process.tasks()) else {
                continue;
            };
            if !alive.insert(pid) {
                continue;
            }
            for thread in threads.flatten() {
                pending.extend(children(&thread));
                if let Some((id, reading)) = self.task(&thread) {
                    tasks.insert(id, reading);
                }
            }
        }
        alive.insert(self.root);
        self.processes = alive;
        tasks
    }

    fn task(&self, thread: &Task) -> Option<(TaskId, TaskReading)> {
        let stat = thread.stat().ok()?;
        let (run_ns, wait_ns, switches) = match thread.schedstat() {
            Ok(times) => (times.sum_exec_runtime, times.run_delay, times.pcount),
            Err(_) => ((stat.utime + stat.stime) * ns_per_tick(), 0, 0),
        };
        let id = TaskId { tid: thread.tid as u32, start: stat.starttime };
        let cpu = stat.processor.unwrap_or(0).max(0) as u32;
        let speed = u64::from(self.speeds.get(cpu as usize).copied().unwrap_or(1024));
        let before = self.last.tasks.get(&id).copied().unwrap_or_default();
        let received_ns = before.received_ns + run_ns.saturating_sub(before.run_ns) * speed / 1024;
        let reading = TaskReading {
            process: thread.pid as u32,
            cpu,
            queue: u64::from(id.tid),
            run_ns,
            stolen_ns: 0,
            received_ns,
            wait_ns,
            switches,
            runnable: stat.state == 'R',
        };
        Some((id, reading))
    }
}

fn children(thread: &Task) -> Vec<i32> {
    let path = format!("/proc/{}/task/{}/children", thread.pid, thread.tid);
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn ns_per_tick() -> u64 {
    1_000_000_000 / procfs::ticks_per_second().max(1)
}

fn in_nanoseconds(time: &CpuTime) -> CpuReading {
    let ns = |ticks: Option<u64>| ticks.unwrap_or(0) * ns_per_tick();
    CpuReading {
        irq_ns: ns(time.irq),
        softirq_ns: ns(time.softirq),
        steal_ns: ns(time.steal),
        idle_ns: ns(Some(time.idle)) + ns(time.iowait),
        ..CpuReading::default()
    }
}

fn taken(reading: &CpuReading) -> u64 {
    reading.irq_ns + reading.softirq_ns + reading.steal_ns + reading.idle_ns
}

/// What our own tasks on one CPU did in the interval: (run, wait).
fn own_share(
    cpu: u32,
    now: &BTreeMap<TaskId, TaskReading>,
    then: &BTreeMap<TaskId, TaskReading>,
) -> (u64, u64) {
    now.iter().filter(|(_, task)| task.cpu == cpu).fold((0, 0), |(run, wait), (id, task)| {
        let before = then.get(id).copied().unwrap_or_default();
        (
            run + task.run_ns.saturating_sub(before.run_ns),
            wait + task.wait_ns.saturating_sub(before.wait_ns),
        )
    })
}
