//! Readings from cbinfo: exact, but the process must be allowed to load BPF programs.

use evenkeel_capability::TaskId;
use evenkeel_cbinfo::{Cbinfo, Error, TaskAccount, TaskEvent};

use crate::clock::ns_per_tick;
use crate::reading::{CpuReading, ProgramReading, Reading, TaskReading};

pub(crate) struct Exact {
    cbinfo: Cbinfo,
    ns_per_tick: u64,
}

impl Exact {
    pub(crate) fn open(speeds: &[u32]) -> Result<Self, Error> {
        Ok(Self { cbinfo: Cbinfo::open(speeds)?, ns_per_tick: ns_per_tick() })
    }

    pub(crate) fn cbinfo(&mut self) -> &mut Cbinfo {
        &mut self.cbinfo
    }

    pub(crate) fn events(&mut self) -> Result<Vec<TaskEvent>, Error> {
        self.cbinfo.events()
    }

    pub(crate) fn read(&mut self, at_ns: u64) -> Result<Reading, Error> {
        let cpus = self
            .cbinfo
            .cpus()
            .into_iter()
            .map(|account| {
                let reading = CpuReading {
                    irq_ns: account.noise.irq_ns,
                    softirq_ns: account.noise.softirq_ns,
                    steal_ns: account.noise.steal_ns,
                    rt_ns: account.noise.rt_ns,
                    idle_ns: account.idle_ns,
                    foreign_ns: account.foreign_ns,
                    observed_ns: 0,
                    fair_runnable_ns: account.fair_runnable_ns,
                    rt_runnable_ns: account.rt_runnable_ns,
                };
                (account.cpu, reading)
            })
            .collect();
        // Sorted: a tree is built faster from sorted tasks than task by task.
        let mut tasks = self.cbinfo.tasks()?;
        tasks.sort_unstable_by_key(|task| (task.program, task.tid));
        let of_programs = tasks.chunk_by(|one, next| one.program == next.program);
        let programs = of_programs.filter_map(|of| {
            let tasks = of.iter().map(|task| self.task(task)).collect();
            Some((of.first()?.program, ProgramReading { tasks, ..ProgramReading::default() }))
        });
        Ok(Reading { at_ns, cpus, programs: programs.collect() })
    }

    fn task(&self, task: &TaskAccount) -> (TaskId, TaskReading) {
        // The journal names a task by its start time in /proc, which is in ticks.
        let id = TaskId { tid: task.tid, start: task.start_boottime_ns / self.ns_per_tick };
        let reading = TaskReading {
            process: task.tgid,
            cpu: task.cpu,
            queue: task.vruntime,
            run_ns: task.run_ns,
            stolen_ns: task.stolen_ns,
            received_ns: task.received_ns,
            wait_ns: task.wait_ns,
            switches: task.switches,
            runnable: task.runnable,
        };
        (id, reading)
    }
}
