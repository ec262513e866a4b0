//! Readings from cbinfo: exact, but the process must be allowed to load BPF programs.

use evenkeel_capability::TaskId;
use evenkeel_cbinfo::{Cbinfo, Error, TaskAccount, TaskEvent, Waiting};

use crate::clock::ns_per_tick;
use crate::reading::{CpuReading, ProgramReading, Reading, TaskReading};
use crate::watch::Watch;

pub(crate) struct Exact {
    cbinfo: Cbinfo,
    ns_per_tick: u64,
    watch: Watch,
}

impl Exact {
    pub(crate) fn open(speeds: &[u32]) -> Result<Self, Error> {
        let cbinfo = Cbinfo::open(speeds)?;
        let watch = Watch::default();
        Ok(Self { cbinfo, ns_per_tick: ns_per_tick(), watch })
    }

    pub(crate) fn cbinfo(&mut self) -> &mut Cbinfo {
        &mut self.cbinfo
    }

    pub(crate) fn events(&mut self) -> Result<Vec<TaskEvent>, Error> {
        let events = self.cbinfo.events()?;
        for event in &events {
            if let TaskEvent::Exec { tgid } = event {
                self.watch.note_exec(*tgid);
            }
        }
        Ok(events)
    }

    pub(crate) fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Ends the window in which barriers are counted, if it is time.
    pub(crate) fn close_due_window(&mut self, now_ns: u64) {
        self.with_waiting(|watch, waiting| watch.close_due_window(waiting, now_ns));
    }

    /// Begins a window in which barriers are counted, if it is time.
    pub(crate) fn open_due_window(&mut self, now_ns: u64) {
        self.with_waiting(|watch, waiting| {
            watch.open_due_window(waiting, now_ns);
            Ok(())
        });
    }

    /// Does something with what sees waiting. Where that is not possible, all else goes on.
    fn with_waiting(&mut self, act: impl FnOnce(&mut Watch, &mut Waiting) -> Result<(), Error>) {
        if !self.watch.is_active() || self.watch.has_given_up() {
            return;
        }
        let done = self.cbinfo.waiting().and_then(|waiting| act(&mut self.watch, waiting));
        if let Err(why) = done {
            self.watch.give_up(&why);
            self.cbinfo.unload_waiting();
        }
    }

    pub(crate) fn forget(&mut self, program: u32) -> Result<(), Error> {
        self.watch.forget(program);
        self.with_waiting(Watch::rest_without_programs);
        self.cbinfo.forget(program)
    }

    pub(crate) fn window_due_ns(&self) -> Option<u64> {
        self.watch.due_ns()
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
        let mut reading = Reading { at_ns, cpus, programs: programs.collect() };
        self.with_waiting(|watch, waiting| watch.step(waiting, &reading));
        self.watch.fill(&mut reading);
        Ok(reading)
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
            sleeps: task.sleeps,
            samples: task.samples,
            changes: task.changes,
            spun: task.spun,
            runnable: task.runnable,
        };
        (id, reading)
    }
}
