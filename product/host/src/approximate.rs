//! Readings from /proc: approximate, but without any privilege.
//!
//! /proc/stat counts in ticks, so softirq time between two ticks is not seen, and real-time tasks look
//! like all others. The run time of a task (`schedstat`) is exact, but without IRQ_TIME_ACCOUNTING it
//! includes the time that softirqs stole. Competition is inferred: it is the share of a CPU that the
//! observed tasks wanted and did not get.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_capability::TaskId;
use evenkeel_control::{Lock, read_in_time};
use procfs::ProcError;
use procfs::process::{Process, Task};

use crate::clock::ns_per_tick;
use crate::reading::{CpuReading, ProgramReading, Reading, TaskReading};

pub(crate) struct Approximate {
    speeds: Vec<u32>,
    /// The program of each process. A process stays in its program when its parent ends.
    processes: BTreeMap<i32, u32>,
    last: Reading,
}

impl Approximate {
    pub(crate) fn new(speeds: Vec<u32>) -> Self {
        Self { speeds, processes: BTreeMap::new(), last: Reading::default() }
    }

    pub(crate) fn set_speeds(&mut self, speeds: Vec<u32>) {
        self.speeds = speeds;
    }

    /// Counts this process and its descendants for `program` from the next reading on, unless they
    /// belong to another program.
    pub(crate) fn follow(&mut self, process: u32, program: u32) {
        self.processes.entry(process as i32).or_insert(program);
    }

    pub(crate) fn forget(&mut self, program: u32) {
        self.processes.retain(|_, of| *of != program);
    }

    pub(crate) fn read(&mut self, at_ns: u64) -> Result<Reading, ProcError> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let programs = self.programs();
        let interval_ns = at_ns.saturating_sub(self.last.at_ns).max(1);
        let mut cpus = BTreeMap::new();
        for (cpu, mut now) in cpu_times(&stat) {
            let earlier = self.last.cpus.get(&cpu).copied();
            if let Some(earlier) = earlier {
                let (run_ns, wait_ns) =
                    observed_share(cpu, &programs, &self.last.programs, interval_ns);
                let not_tasks_ns = taken(&now).saturating_sub(taken(&earlier));
                let busy_ns = interval_ns.saturating_sub(not_tasks_ns);
                let foreign_ns = busy_ns.saturating_sub(run_ns);
                now.foreign_ns = earlier.foreign_ns + foreign_ns;
                // /proc does not tell how many other tasks wait: at least the running one is runnable.
                now.fair_runnable_ns = earlier.fair_runnable_ns + run_ns + wait_ns + foreign_ns;
            }
            cpus.insert(cpu, now);
        }
        self.last = Reading { at_ns, cpus, programs };
        Ok(self.last.clone())
    }

    fn programs(&mut self) -> BTreeMap<u32, ProgramReading> {
        let mut programs: BTreeMap<u32, ProgramReading> = BTreeMap::new();
        let mut pending: Vec<(i32, u32)> =
            self.processes.iter().map(|(pid, program)| (*pid, *program)).collect();
        let mut alive = BTreeMap::new();
        while let Some((pid, program)) = pending.pop() {
            let threads = match Process::new(pid).and_then(|process| process.tasks()) {
                Ok(threads) => threads,
                Err(ProcError::NotFound(_)) => continue,
                Err(why) => {
                    // It may still be there: try again in the next reading.
                    tracing::debug!(pid, "cannot be read: {why}");
                    alive.entry(pid).or_insert(program);
                    continue;
                }
            };
            // A child of one program may have joined another program.
            let program = self.processes.get(&pid).copied().unwrap_or(program);
            if alive.insert(pid, program).is_some() {
                continue;
            }
            for thread in threads.flatten() {
                let children = thread.children().unwrap_or_default();
                pending.extend(children.into_iter().map(|child| (child as i32, program)));
                if let Some((id, reading)) = self.task(thread, program) {
                    programs.entry(program).or_default().tasks.insert(id, reading);
                }
            }
        }
        self.processes = alive;
        programs
    }

    fn task(&self, thread: Task, program: u32) -> Option<(TaskId, TaskReading)> {
        let thread = Arc::new(thread);
        let to_read = Arc::clone(&thread);
        let of_program = self.last.programs.get(&program);
        let Ok(stat) = read_in_time(Lock::Exec, thread.tid, move || to_read.stat()) else {
            // It is there: as far as is known, it has done nothing since.
            let is_it = |(id, _): &(&TaskId, &TaskReading)| id.tid == thread.tid as u32;
            return of_program?.tasks.iter().find(is_it).map(|(id, reading)| (*id, *reading));
        };
        let stat = stat.ok()?;
        let (run_ns, wait_ns) = match thread.schedstat() {
            Ok(times) => (times.sum_exec_runtime, times.run_delay),
            Err(_) => ((stat.utime + stat.stime) * ns_per_tick(), 0),
        };
        // A voluntary switch is a sleep: yielding counts as being preempted.
        let sleeps = thread.status().ok().and_then(|status| status.voluntary_ctxt_switches);
        let id = TaskId { tid: thread.tid as u32, start: stat.starttime };
        let cpu = stat.processor.unwrap_or(0).max(0) as u32;
        let speed = u64::from(self.speeds.get(cpu as usize).copied().unwrap_or(1024));
        let last = of_program.and_then(|last| last.tasks.get(&id));
        let before = last.copied().unwrap_or_default();
        let received_ns = before.received_ns + run_ns.saturating_sub(before.run_ns) * speed / 1024;
        let reading = TaskReading {
            process: thread.pid as u32,
            cpu,
            queue: u64::from(id.tid),
            run_ns,
            stolen_ns: 0,
            received_ns,
            wait_ns,
            sleeps: sleeps.unwrap_or(0),
            samples: 0,
            changes: 0,
            spun: 0,
            runnable: stat.state == 'R',
        };
        Some((id, reading))
    }
}

/// The times of each CPU, by its number. (Do not count the lines of /proc/stat: an offline CPU has
/// none.)
fn cpu_times(stat: &str) -> impl Iterator<Item = (u32, CpuReading)> {
    stat.lines().filter_map(|line| {
        // The line of the sum over all CPUs has no number.
        let mut words = line.strip_prefix("cpu")?.split(' ');
        let cpu = words.next()?.parse().ok()?;
        let mut times = words.map(|ticks| ticks.parse().unwrap_or(0) * ns_per_tick()).skip(3);
        let mut next_ns = || times.next().unwrap_or(0);
        let (idle_ns, iowait_ns) = (next_ns(), next_ns());
        let (irq_ns, softirq_ns, steal_ns) = (next_ns(), next_ns(), next_ns());
        let idle_ns = idle_ns + iowait_ns;
        let reading = CpuReading { irq_ns, softirq_ns, steal_ns, idle_ns, ..CpuReading::default() };
        Some((cpu, reading))
    })
}

/// Time in which no task ran.
fn taken(reading: &CpuReading) -> u64 {
    reading.irq_ns + reading.softirq_ns + reading.steal_ns + reading.idle_ns
}

/// Run time and wait time of the observed tasks on one CPU in the interval.
fn observed_share(
    cpu: u32,
    now: &BTreeMap<u32, ProgramReading>,
    then: &BTreeMap<u32, ProgramReading>,
    interval_ns: u64,
) -> (u64, u64) {
    let tasks = now.iter().flat_map(|(program, now)| {
        let then = then.get(program);
        now.tasks.iter().map(move |(id, task)| {
            let before = then.and_then(|then| then.tasks.get(id)).copied();
            (task, before.unwrap_or_else(|| task.before(interval_ns)))
        })
    });
    tasks.filter(|(task, _)| task.cpu == cpu).fold((0, 0), |(run, wait), (task, before)| {
        (
            run + task.run_ns.saturating_sub(before.run_ns),
            wait + task.wait_ns.saturating_sub(before.wait_ns),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_belong_to_the_cpu_in_the_line() {
        // CPU 1 is offline.
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 10\n\
            cpu2 10 0 30 40 0 60 70 80 0 0\nintr 5 0 1\nctxt 7\n";
        let times: BTreeMap<u32, CpuReading> = cpu_times(stat).collect();
        assert_eq!(times.keys().copied().collect::<Vec<_>>(), [0, 2]);
        let ticks = |ns: u64| ns / ns_per_tick();
        let of = |cpu: u32| {
            let CpuReading { idle_ns, irq_ns, softirq_ns, steal_ns, .. } = times[&cpu];
            [idle_ns, irq_ns, softirq_ns, steal_ns].map(ticks)
        };
        assert_eq!((of(0), of(2)), ([9, 6, 7, 8], [40, 60, 70, 80]));
    }

    #[test]
    fn a_program_that_joins_late_does_not_bring_its_past_along() {
        let task = TaskReading { cpu: 0, run_ns: 3_600_000, wait_ns: 7, ..Default::default() };
        let tasks = [(TaskId { tid: 7, start: 1 }, task)].into();
        let now: BTreeMap<u32, ProgramReading> =
            [(1, ProgramReading { tasks, ..Default::default() })].into();
        assert_eq!(observed_share(0, &now, &BTreeMap::new(), 1000), (1000, 7));
        assert_eq!(observed_share(0, &now, &now, 1000), (0, 0));
    }
}
