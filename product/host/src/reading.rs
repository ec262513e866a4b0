//! Readings: cumulative figures of CPUs and tasks at one moment, the same for each source (`exact`,
//! `served`, `approximate`), and the snapshot between two readings.

use std::collections::BTreeMap;
use std::rc::Rc;

use evenkeel_capability::{Barriers, CpuView, ONE_SLEEP_NS, Seen, Snapshot, TaskId, TaskView};
use evenkeel_machine::CpuSet;
use serde::{Deserialize, Serialize};

use crate::competitors::Own;
use crate::waits::{Share, Spinning, ThreadTimes, Waits};

/// All counters at one moment. Only differences between two readings mean something.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// Monotonic clock.
    pub at_ns: u64,
    /// By CPU number.
    pub cpus: BTreeMap<u32, CpuReading>,
    /// By program.
    pub programs: BTreeMap<u32, ProgramReading>,
}

/// The counters of a program.
#[derive(Debug, Clone, Default)]
pub struct ProgramReading {
    /// Its tasks.
    pub tasks: BTreeMap<TaskId, TaskReading>,
    /// Time that its tasks were on each CPU, in nanoseconds. (The time since the reading before
    /// counts for the CPU where the task is now.)
    pub used_ns: BTreeMap<u32, u64>,
    /// What was found of its waiting; `None` while it is not looked for.
    pub watched: Option<Watched>,
}

/// What was found of a program's waiting, since it is looked for.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    /// For how long its tasks were sampled.
    pub sampled_ns: u64,
    /// Barriers that it passed while they were counted ...
    pub barriers: u64,
    /// ... and for how long they were.
    pub observed_ns: u64,
    /// Why spinning cannot be told from work now, if it cannot.
    pub unverified: Option<Rc<str>>,
    /// If it cannot: samples come in by which it may be told soon.
    pub may_be_told: bool,
    /// How often other places were found where its tasks wait.
    pub changes: u64,
}

/// Where a CPU's time went, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuReading {
    /// Interrupt handlers.
    pub irq_ns: u64,
    /// Softirqs.
    pub softirq_ns: u64,
    /// The hypervisor, for other guests.
    pub steal_ns: u64,
    /// Real-time and deadline tasks.
    pub rt_ns: u64,
    /// Idle.
    pub idle_ns: u64,
    /// Fair-class tasks of programs that are not observed.
    pub foreign_ns: u64,
    /// Tasks of all observed programs: the sum of their [`ProgramReading::used_ns`].
    pub observed_ns: u64,
    /// Runnable fair-class tasks over time (task-nanoseconds), the observed programs' included.
    pub fair_runnable_ns: u64,
    /// The same for real-time tasks.
    pub rt_runnable_ns: u64,
}

/// The counters of a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskReading {
    /// Its process.
    pub process: u32,
    /// CPU that it is on.
    pub cpu: u32,
    /// Its place in the runqueue: the smallest runs first.
    pub queue: u64,
    /// Time on a CPU, less what irq, softirq and steal took meanwhile.
    pub run_ns: u64,
    /// Time that irq, softirq and steal took while it was on a CPU.
    pub stolen_ns: u64,
    /// `run_ns` weighted by the speed of the CPUs.
    pub received_ns: u64,
    /// Time runnable but not running.
    pub wait_ns: u64,
    /// How often it went to sleep; in exact figures, sleeps with less than 5 ms in between are one.
    pub sleeps: u64,
    /// How often it was found on a CPU, while its waiting was looked for ...
    pub samples: u64,
    /// ... and how many of these samples found it spinning.
    pub spun: u64,
    /// How many of them found otherwise than the one before.
    pub changes: u64,
    /// It is runnable now.
    pub runnable: bool,
}

impl CpuReading {
    /// These counters as those that were `last` when they were `first`.
    pub(crate) fn continued(&self, last: &Self, first: &Self) -> Self {
        let go_on = |of: fn(&Self) -> u64| of(last) + of(self).saturating_sub(of(first));
        Self {
            irq_ns: go_on(|one| one.irq_ns),
            softirq_ns: go_on(|one| one.softirq_ns),
            steal_ns: go_on(|one| one.steal_ns),
            rt_ns: go_on(|one| one.rt_ns),
            idle_ns: go_on(|one| one.idle_ns),
            foreign_ns: go_on(|one| one.foreign_ns),
            observed_ns: self.observed_ns,
            fair_runnable_ns: go_on(|one| one.fair_runnable_ns),
            rt_runnable_ns: go_on(|one| one.rt_runnable_ns),
        }
    }
}

impl TaskReading {
    fn continued(&self, last: &Self, first: &Self) -> Self {
        let go_on = |of: fn(&Self) -> u64| of(last) + of(self).saturating_sub(of(first));
        Self {
            run_ns: go_on(|one| one.run_ns),
            stolen_ns: go_on(|one| one.stolen_ns),
            received_ns: go_on(|one| one.received_ns),
            wait_ns: go_on(|one| one.wait_ns),
            sleeps: go_on(|one| one.sleeps),
            ..*self
        }
    }

    /// The counters of a new task at the beginning of an interval of this length. /proc counts from the
    /// start of a task, and not from when its program joined.
    pub(crate) fn before(&self, interval_ns: u64) -> Self {
        // As many as exact figures can have: sleeps within a moment are one.
        let most_sleeps = 1 + interval_ns / ONE_SLEEP_NS;
        Self {
            run_ns: self.run_ns.saturating_sub(interval_ns),
            stolen_ns: self.stolen_ns.saturating_sub(interval_ns),
            received_ns: self.received_ns.saturating_sub(interval_ns),
            wait_ns: self.wait_ns.saturating_sub(interval_ns),
            sleeps: self.sleeps.saturating_sub(most_sleeps),
            ..Self::default()
        }
    }

    /// Time on a CPU, all included.
    pub(crate) fn on_cpu_ns(&self) -> u64 {
        self.run_ns + self.stolen_ns
    }

    /// The part of its run time since `earlier` in which it spun, by its samples.
    fn spun_since_ns(&self, earlier: &Self) -> u64 {
        let run_ns = u128::from(self.run_ns.saturating_sub(earlier.run_ns));
        let spun = u128::from(self.spun.saturating_sub(earlier.spun));
        let samples = u128::from(self.samples.saturating_sub(earlier.samples));
        // A part of the run time: it fits.
        (run_ns * spun.min(samples)).checked_div(samples).unwrap_or(0) as u64
    }

    /// Whether it was not runnable for a moment since `earlier`.
    fn has_slept_since(&self, earlier: &Self) -> bool {
        !self.runnable
            && self.sleeps == earlier.sleeps
            && self.on_cpu_ns() == earlier.on_cpu_ns()
            && self.wait_ns == earlier.wait_ns
    }
}

impl ProgramReading {
    /// What could be seen of its waiting since `earlier`.
    fn seen_since(&self, earlier: &Self, interval_ns: u64) -> Seen {
        let Some(now) = &self.watched else { return Seen::default() };
        let nothing = Watched::default();
        let then = earlier.watched.as_ref().unwrap_or(&nothing);
        let sampled_ns = now.sampled_ns.saturating_sub(then.sampled_ns);
        let observed_ns = now.observed_ns.saturating_sub(then.observed_ns);
        let count = now.barriers.saturating_sub(then.barriers);
        let is_sampled = sampled_ns >= interval_ns / SAMPLED_SHARE;
        let spinning = now.unverified.is_none() && is_sampled;
        Seen {
            spinning,
            may_be_told: !spinning && now.may_be_told && is_sampled,
            redefined: now.changes != then.changes,
            asked: false,
            barriers: (observed_ns > 0)
                .then(|| Barriers { count: u32::try_from(count).unwrap_or(u32::MAX), observed_ns }),
        }
    }

    /// Its tasks, each with its counters at `earlier`, which was so long ago. A new task has counters
    /// from zero, and did no more than fits into that time.
    fn tasks_since<'r>(
        &'r self,
        earlier: &'r Self,
        interval_ns: u64,
    ) -> impl Iterator<Item = (TaskId, &'r TaskReading, TaskReading)> {
        // Both are in the order of ids: one walk along both instead of a search for each.
        let mut before = earlier.tasks.iter().peekable();
        self.tasks.iter().map(move |(id, now)| {
            while before.next_if(|(other, _)| *other < id).is_some() {}
            let then = before.next_if(|(other, _)| *other == id).map(|(_, then)| *then);
            (*id, now, then.unwrap_or_else(|| now.before(interval_ns)))
        })
    }
}

/// An interval of which less was sampled tells nothing of spinning: 1/2.
const SAMPLED_SHARE: u64 = 2;

/// The properties of a CPU that do not change.
#[derive(Debug, Clone, Copy)]
pub struct CpuFacts {
    /// Relative speed, 1..=1024.
    pub speed: u32,
    /// Physical core.
    pub core: u32,
    /// NUMA node.
    pub node: u32,
    /// Place by the energy that work needs there, where known: 0 needs the least.
    pub energy_rank: Option<u32>,
}

/// What a task may do, which only the acting side knows.
#[derive(Debug, Clone, Default)]
pub struct Freedom {
    /// CPUs that its user allows.
    pub allowed: CpuSet,
    /// It must not be moved.
    pub fixed: bool,
}

impl Reading {
    /// The tasks of a program, if it is known and has any.
    pub(crate) fn tasks_of(&self, program: u32) -> Option<&BTreeMap<TaskId, TaskReading>> {
        self.programs.get(&program).map(|now| &now.tasks)
    }

    /// How `program` waited since `earlier`.
    pub(crate) fn waits_since(&self, earlier: &Self, program: u32) -> Waits {
        let Some(now) = self.programs.get(&program) else { return Waits::default() };
        let Some(watched) = &now.watched else { return Waits::default() };
        let nothing = ProgramReading::default();
        let then = earlier.programs.get(&program).unwrap_or(&nothing);
        let interval_ns = self.at_ns.saturating_sub(earlier.at_ns);
        let seen = now.seen_since(then, interval_ns);
        let spinning = match &watched.unverified {
            Some(why) => Spinning::Unverified(why.to_string()),
            None if !seen.spinning => Spinning::NotLookedFor,
            None => {
                let (mut samples, mut spun) = (0, 0);
                for (_, now, then) in now.tasks_since(then, interval_ns) {
                    samples += now.samples.saturating_sub(then.samples);
                    spun += now.spun.saturating_sub(then.spun);
                }
                Spinning::Seen { samples, spun }
            }
        };
        Waits { spinning, barriers: seen.barriers }
    }

    /// Where the time of each task of `program` went since `earlier`, for tasks that were there then.
    pub fn threads_since(&self, earlier: &Self, program: u32) -> Vec<ThreadTimes> {
        let interval_ns = self.at_ns.saturating_sub(earlier.at_ns);
        let both = self.programs.get(&program).zip(earlier.programs.get(&program));
        let Some((now, then)) = both else { return Vec::new() };
        let is_seen = now.seen_since(then, interval_ns).spinning;
        now.tasks_since(then, interval_ns)
            .filter(|(id, _, _)| then.tasks.contains_key(id))
            .map(|(id, now, then)| {
                let since =
                    |counter: fn(&TaskReading) -> u64| counter(now).saturating_sub(counter(&then));
                let run_ns = since(|task| task.run_ns);
                let queued_ns = since(|task| task.stolen_ns) + since(|task| task.wait_ns);
                let spun = Share::of(since(|task| task.spun), since(|task| task.samples));
                ThreadTimes {
                    tid: id.tid,
                    run_ns,
                    spun: spun.filter(|_| is_seen),
                    queued_ns,
                    slept_ns: interval_ns.saturating_sub(run_ns + queued_ns),
                }
            })
            .collect()
    }

    /// Whether no task of `program` was runnable since `earlier`.
    pub(crate) fn has_slept_since(&self, earlier: &Self, program: u32) -> bool {
        let nothing = ProgramReading::default();
        let then = earlier.programs.get(&program).unwrap_or(&nothing);
        let now = self.programs.get(&program).unwrap_or(&nothing);
        let interval_ns = self.at_ns.saturating_sub(earlier.at_ns);
        now.tasks_since(then, interval_ns).all(|(_, now, then)| now.has_slept_since(&then))
    }

    /// The same as counters that go on from those of another source: `last` is its last reading, and
    /// `first` the first one of this source, taken at the same time.
    pub(crate) fn continued(mut self, last: &Self, first: &Self) -> Self {
        for (cpu, now) in &mut self.cpus {
            let then = first.cpus.get(cpu).copied().unwrap_or_default();
            *now = now.continued(&last.cpus.get(cpu).copied().unwrap_or_default(), &then);
        }
        for (program, now) in &mut self.programs {
            let known = |reading: &Self, id| {
                reading.programs.get(program).and_then(|of| of.tasks.get(id)).copied()
            };
            for (id, now) in &mut now.tasks {
                // A task that is new to both sources has counters from zero.
                if let Some(then) = known(first, id) {
                    *now = now.continued(&known(last, id).unwrap_or_default(), &then);
                }
            }
        }
        self
    }

    /// Adds the time of each program on each CPU to the sums of the reading before.
    pub(crate) fn go_on_from(&mut self, earlier: &Self) {
        let nothing = ProgramReading::default();
        let interval_ns = self.at_ns.saturating_sub(earlier.at_ns);
        for (cpu, now) in &mut self.cpus {
            now.observed_ns = earlier.cpus.get(cpu).map_or(0, |then| then.observed_ns);
        }
        for (program, now) in &mut self.programs {
            let then = earlier.programs.get(program).unwrap_or(&nothing);
            let mut used_ns = then.used_ns.clone();
            for (_, task, before) in now.tasks_since(then, interval_ns) {
                let more_ns = task.on_cpu_ns().saturating_sub(before.on_cpu_ns());
                if more_ns == 0 {
                    continue;
                }
                *used_ns.entry(task.cpu).or_default() += more_ns;
                if let Some(cpu) = self.cpus.get_mut(&task.cpu) {
                    cpu.observed_ns += more_ns;
                }
            }
            now.used_ns = used_ns;
        }
    }

    /// The snapshot of `programs`, usually one, for the interval from `earlier` to `self` on the CPUs in
    /// `usable`; `None` when no time has passed. Tasks that are new since `earlier` are counted from
    /// zero, but for no longer than the interval. `freedom` is asked where a task may go, but not for a
    /// task that slept: no policy moves it. All other programs, observed or not, are foreign. A snapshot
    /// of several programs tells nothing of their waiting.
    pub fn since(
        &self,
        earlier: &Self,
        programs: &[u32],
        usable: &CpuSet,
        facts: impl Fn(u32) -> CpuFacts,
        mut freedom: impl FnMut(TaskId, &TaskReading) -> Freedom,
    ) -> Option<Snapshot> {
        let interval_ns = self.at_ns.checked_sub(earlier.at_ns).filter(|interval| *interval > 0)?;
        let nothing = ProgramReading::default();
        let ours: Vec<(&ProgramReading, &ProgramReading)> = programs
            .iter()
            .map(|program| {
                let now = self.programs.get(program).unwrap_or(&nothing);
                (now, earlier.programs.get(program).unwrap_or(&nothing))
            })
            .collect();
        let seen = match ours[..] {
            [(now, then)] => now.seen_since(then, interval_ns),
            _ => Seen::default(),
        };
        let mut own: BTreeMap<u32, Own> = BTreeMap::new();
        let tasks: Vec<TaskView> = ours
            .iter()
            .flat_map(|(now, then)| now.tasks_since(then, interval_ns))
            .map(|(id, now, then)| {
                let Freedom { allowed, fixed } =
                    if now.has_slept_since(&then) { Freedom::default() } else { freedom(id, now) };
                let sampled = |of: fn(&TaskReading) -> u64| {
                    if seen.spinning { of(now).saturating_sub(of(&then)) as u32 } else { 0 }
                };
                let view = TaskView {
                    id,
                    process: now.process,
                    cpu: now.cpu,
                    queue: now.queue,
                    run_ns: now.run_ns.saturating_sub(then.run_ns),
                    spun_ns: if seen.spinning { now.spun_since_ns(&then) } else { 0 },
                    samples: sampled(|task| task.samples),
                    changes: sampled(|task| task.changes),
                    received_ns: now.received_ns.saturating_sub(then.received_ns),
                    stolen_ns: now.stolen_ns.saturating_sub(then.stolen_ns),
                    wait_ns: now.wait_ns.saturating_sub(then.wait_ns),
                    sleeps: now.sleeps.saturating_sub(then.sleeps) as u32,
                    runnable: now.runnable,
                    allowed: allowed.intersection(usable),
                    fixed,
                    // No counter: `working_set` fills it in.
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
                // The counters of a CPU that has come online may go back to boot.
                let then = earlier.cpus.get(cpu).unwrap_or(now);
                let milli = |task_ns: u64| {
                    u32::try_from(task_ns.saturating_mul(1000) / interval_ns).unwrap_or(u32::MAX)
                };
                let runnable_ns = now.fair_runnable_ns.saturating_sub(then.fair_runnable_ns);
                let used_by = |reading: &ProgramReading| *reading.used_ns.get(cpu).unwrap_or(&0);
                let used =
                    ours.iter().map(|(now, then)| used_by(now).saturating_sub(used_by(then)));
                let used_ns: u64 = used.sum();
                let observed_ns = now.observed_ns.saturating_sub(then.observed_ns);
                let foreign_ns = now.foreign_ns.saturating_sub(then.foreign_ns)
                    + observed_ns.saturating_sub(used_ns);
                let own = own.get(cpu).copied().unwrap_or_default();
                let noise =
                    |reading: &CpuReading| reading.irq_ns + reading.softirq_ns + reading.steal_ns;
                let CpuFacts { speed, core, node, energy_rank } = facts(*cpu);
                CpuView {
                    cpu: *cpu,
                    core,
                    node,
                    speed,
                    energy_rank,
                    noise_ns: noise(now).saturating_sub(noise(then)),
                    rt_ns: now.rt_ns.saturating_sub(then.rt_ns),
                    idle_ns: now.idle_ns.saturating_sub(then.idle_ns),
                    foreign_milli: milli(own.competitors(interval_ns, foreign_ns, runnable_ns)),
                    rt_milli: milli(now.rt_runnable_ns.saturating_sub(then.rt_runnable_ns)),
                }
            })
            .collect();
        Some(Snapshot { interval_ns, cpus, tasks, seen })
    }
}

#[cfg(test)]
mod tests;
