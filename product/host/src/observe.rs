//! The observer: takes readings from one of the three sources, and makes the snapshot of a program. When
//! a daemon that gave the figures is gone, counting goes on with /proc.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

use evenkeel_capability::{Snapshot, TaskId};
use evenkeel_cbinfo::{Cbinfo, TaskEvent, Unsupported};
use evenkeel_control::Peer;
use evenkeel_journal::{TaskRef, effective_cpuset};
use evenkeel_machine::{Cpu, CpuSet, Machine};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::approximate::Approximate;
use crate::clock::monotonic_ns;
use crate::exact::Exact;
use crate::figures::{Figures, Owner};
use crate::reading::{CpuFacts, Freedom, Reading, TaskReading};
use crate::served::{Served, ServedError};

/// The source of figures that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccountingChoice {
    /// cbinfo where possible, else that of a daemon, else /proc.
    #[default]
    Auto,
    /// cbinfo, or that of a daemon, or an error.
    Cbinfo,
    /// /proc only.
    Procfs,
}

/// The source of figures in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Accounting {
    /// Exact, by BPF (cbinfo).
    Cbinfo,
    /// Exact, by the cbinfo of a daemon, which hands this process the figures of its user's tasks.
    Daemon,
    /// Approximate, from /proc.
    #[default]
    Procfs,
    /// None: the program ended before it was observed, or the CPUs look alike so far.
    None,
}

impl Accounting {
    /// Whether the figures are exact.
    pub fn is_exact(self) -> bool {
        matches!(self, Self::Cbinfo | Self::Daemon)
    }
}

impl std::fmt::Display for Accounting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cbinfo => "cbinfo",
            Self::Daemon => "the daemon's cbinfo",
            Self::Procfs => "/proc",
            Self::None => "nothing",
        })
    }
}

/// Programs cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// Exact accounting was asked for and is not possible.
    #[error(transparent)]
    Exact(#[from] evenkeel_cbinfo::Error),
    /// The same, and the daemon has no figures either.
    #[error(transparent)]
    Served(#[from] ServedError),
    /// /proc cannot be read.
    #[error("cannot read /proc: {0}; mount it (mount -t proc proc /proc)")]
    Procfs(#[from] procfs::ProcError),
}

enum Source {
    Exact(Box<Exact>),
    Served(Box<Served>),
    Approximate(Approximate),
    /// The exact one, unloaded for a while: nothing is counted.
    Resting,
}

/// Where one source ended and the next one began, at the same moment.
struct Change {
    last: Rc<Reading>,
    first: Reading,
}

/// Observes programs: processes and all their descendants.
pub struct Observer {
    source: Source,
    choice: AccountingChoice,
    why_not_exact: Option<String>,
    /// The daemon ended, or refused, while the program ran; or there was a rest.
    change: Option<Change>,
    /// By CPU number.
    facts: BTreeMap<u32, CpuFacts>,
    last: Rc<Reading>,
    /// It was said that runtimes have no effect.
    has_warned: bool,
}

impl Observer {
    /// Starts to observe the machine, without a program.
    ///
    /// # Errors
    /// `choice` asks for exact accounting and that is not possible, or /proc cannot be read.
    pub fn new(machine: &Machine, choice: AccountingChoice) -> Result<Self, ObserveError> {
        Self::with_daemons(machine, choice, &[])
    }

    /// The same; without the privilege for cbinfo, the daemons at these sockets are asked in turn.
    ///
    /// # Errors
    /// `choice` asks for exact accounting and that is not possible, or /proc cannot be read.
    pub fn with_daemons(
        machine: &Machine,
        choice: AccountingChoice,
        sockets: &[PathBuf],
    ) -> Result<Self, ObserveError> {
        let facts = facts_of(machine);
        let (source, why_not_exact) = find_source(machine, choice, sockets, &facts)?;
        let (change, last) = (None, Rc::default());
        let has_warned = false;
        let mut observer = Self { source, choice, why_not_exact, change, facts, last, has_warned };
        observer.read()?;
        Ok(observer)
    }

    /// Takes the properties of CPUs that have come online.
    pub fn set_machine(&mut self, machine: &Machine) {
        self.facts = facts_of(machine);
        let speeds = speeds_of(machine);
        match &mut self.source {
            Source::Exact(exact) => exact.cbinfo().set_speeds(&speeds),
            Source::Served(served) => served.set_speeds(&self.facts),
            Source::Approximate(approximate) => approximate.set_speeds(speeds),
            Source::Resting => {}
        }
    }

    /// CPUs have come or gone. What was attached to a CPU that went is dead, also once the CPU is back.
    pub(crate) fn restart_watch(&mut self) {
        if let Source::Exact(exact) = &mut self.source {
            exact.watch().restart();
        }
    }

    /// Counts this process and its descendants for `program` (a number of the caller's choice) from the
    /// next reading on.
    ///
    /// # Errors
    /// The kernel cannot list its tasks.
    pub fn follow(&mut self, process: u32, program: u32) -> Result<(), ObserveError> {
        let refusal = match &mut self.source {
            Source::Exact(exact) => {
                exact.cbinfo().follow(process, program)?;
                return Ok(());
            }
            Source::Served(served) => served.follow(process, program).err(),
            Source::Approximate(_) | Source::Resting => None,
        };
        match refusal {
            Some(why) if self.choice == AccountingChoice::Cbinfo => return Err(why.into()),
            Some(why) => {
                tracing::info!("{why}");
                self.change_to_proc(monotonic_ns(), &why)?;
            }
            None => {}
        }
        if let Source::Approximate(approximate) = &mut self.source {
            approximate.follow(process, program);
        }
        Ok(())
    }

    /// Stops observing `program` from the next reading on.
    ///
    /// # Errors
    /// The kernel cannot list its tasks.
    pub fn forget(&mut self, program: u32) -> Result<(), ObserveError> {
        match &mut self.source {
            Source::Exact(exact) => exact.forget(program)?,
            // The daemon forgets it when this process ends.
            Source::Served(_) | Source::Resting => {}
            Source::Approximate(approximate) => approximate.forget(program),
        }
        Ok(())
    }

    /// The source in use.
    pub fn accounting(&self) -> Accounting {
        match self.source {
            Source::Exact(_) | Source::Resting => Accounting::Cbinfo,
            Source::Served(_) => Accounting::Daemon,
            Source::Approximate(_) => Accounting::Procfs,
        }
    }

    /// Why accounting is not exact.
    pub fn why_not_exact(&self) -> Option<&str> {
        self.why_not_exact.as_deref()
    }

    /// The exact accounting, if it is in use.
    pub fn cbinfo(&mut self) -> Option<&mut Cbinfo> {
        match &mut self.source {
            Source::Exact(exact) => Some(exact.cbinfo()),
            Source::Served(_) | Source::Approximate(_) | Source::Resting => None,
        }
    }

    /// Forks and execs of observed tasks since the last call; only with cbinfo.
    ///
    /// # Errors
    /// The events cannot be read.
    pub fn events(&mut self) -> Result<Vec<TaskEvent>, ObserveError> {
        match &mut self.source {
            Source::Exact(exact) => Ok(exact.events()?),
            Source::Served(_) | Source::Approximate(_) | Source::Resting => Ok(Vec::new()),
        }
    }

    /// Counts waiting in these files and functions as well, besides the runtimes that are known. Where
    /// the source tells no waiting from work, that is said, once.
    pub fn set_runtimes(&mut self, extra: &[String]) {
        if let Source::Exact(exact) = &mut self.source {
            exact.watch().set_runtimes(extra);
        } else if !extra.is_empty() && !std::mem::replace(&mut self.has_warned, true) {
            let source = self.accounting();
            tracing::warn!(
                "--runtimes has no effect: figures are from {source}, which does not tell here whether \
                 a thread waits or works; run as root, or give them to the daemon and run --join"
            );
        }
    }

    /// Looks for the waiting of a program while its intervals, such as this one, give a reason for it;
    /// closely while its tasks are exchanged, as they were at the end of the one before
    /// (`has_exchanged`).
    pub fn attend(&mut self, program: u32, snapshot: &Snapshot, has_exchanged: bool) {
        let now_ns = self.last.at_ns;
        if let Source::Exact(exact) = &mut self.source {
            exact.watch().attend(program, snapshot, has_exchanged, now_ns);
        }
    }

    /// When [`Observer::close_due_window`] is to be called, on the monotonic clock.
    pub fn window_due_ns(&self) -> Option<u64> {
        match &self.source {
            Source::Exact(exact) => exact.window_due_ns(),
            Source::Served(_) | Source::Approximate(_) | Source::Resting => None,
        }
    }

    /// Begins a window in which barriers are counted, if it is time. Call it last in a round.
    pub fn open_due_window(&mut self) {
        if let Source::Exact(exact) = &mut self.source {
            exact.open_due_window(monotonic_ns());
        }
    }

    /// Ends the window in which barriers are counted, if it is time.
    pub fn close_due_window(&mut self) {
        if let Source::Exact(exact) = &mut self.source {
            exact.close_due_window(monotonic_ns());
        }
    }

    /// The latest reading.
    pub fn last(&self) -> &Rc<Reading> {
        &self.last
    }

    /// CPUs that the program's cpuset allows now; `None` if it has no process.
    pub fn usable(&self, program: u32) -> Option<CpuSet> {
        let tasks = &self.last.programs.get(&program)?.tasks;
        tasks.iter().find_map(|(id, task)| {
            let cpus = effective_cpuset(task.process as i32);
            // A task that has ended has no cpuset: all online CPUs would seem to be allowed.
            is_alive(*id, task).then_some(cpus)
        })
    }

    /// The snapshot of `program` from `earlier` to the latest reading; `None` when no time has passed.
    pub fn snapshot(
        &self,
        earlier: &Reading,
        programs: &[u32],
        usable: &CpuSet,
        freedom: impl FnMut(TaskId, &TaskReading) -> Freedom,
    ) -> Option<Snapshot> {
        // For a CPU that sysfs does not show.
        let unknown = |core| CpuFacts { speed: 1024, core, node: 0, energy_rank: None };
        let facts = |cpu: u32| self.facts.get(&cpu).copied().unwrap_or_else(|| unknown(cpu));
        self.last.since(earlier, programs, usable, facts, freedom)
    }

    /// Takes a reading. If a daemon that gave the figures gives no more, this and all later readings are
    /// from /proc.
    ///
    /// # Errors
    /// The source cannot be read.
    pub fn read(&mut self) -> Result<&Rc<Reading>, ObserveError> {
        let at_ns = monotonic_ns();
        let change = &self.change;
        let go_on = |now: Reading| {
            change.iter().fold(now, |now, change| now.continued(&change.last, &change.first))
        };
        let mut now = match &mut self.source {
            Source::Resting => return Ok(&self.last),
            Source::Exact(exact) => go_on(exact.read(at_ns)?),
            Source::Served(served) => match served.read() {
                Ok(reading) => reading,
                Err(why) => {
                    tracing::warn!("{why}; from now on, figures are from /proc");
                    self.change_to_proc(at_ns, &why)?
                }
            },
            Source::Approximate(approximate) => go_on(approximate.read(at_ns)?),
        };
        now.go_on_from(&self.last);
        self.last = Rc::new(now);
        Ok(&self.last)
    }

    /// Unloads the exact accounting for a while, if it is the source: readings stay as the last one is.
    /// Returns whether it was.
    pub(crate) fn rest(&mut self) -> bool {
        let is_exact = matches!(self.source, Source::Exact(_));
        if is_exact {
            self.source = Source::Resting;
        }
        is_exact
    }

    /// Loads the exact accounting again after a rest, and follows `process` and its descendants for
    /// `program`, and all else that belonged to it before the rest. The counters stand where the last
    /// reading left them: the rest counts for nothing.
    ///
    /// # Errors
    /// It cannot be loaded any more, or cannot be read. The rest goes on.
    pub(crate) fn wake(
        &mut self,
        process: u32,
        program: u32,
        runtimes: &[String],
    ) -> Result<(), ObserveError> {
        let speeds = self.facts.iter().map(|(cpu, facts)| (*cpu, facts.speed)).collect();
        let mut exact = Exact::open(&without_gaps(&speeds))?;
        exact.watch().set_runtimes(runtimes);
        exact.cbinfo().follow(process, program)?;
        // Children that have lost their parent are found by the last reading alone.
        let found: BTreeSet<u32> = exact.cbinfo().tasks()?.iter().map(|task| task.tgid).collect();
        let before = self.last.programs.get(&program).into_iter().flat_map(|before| &before.tasks);
        let is_lost = |(id, task): &(&TaskId, &TaskReading)| {
            !found.contains(&task.process) && is_alive(**id, task)
        };
        let lost: BTreeSet<u32> = before.filter(is_lost).map(|(_, task)| task.process).collect();
        for process in lost {
            exact.cbinfo().follow(process, program)?;
        }
        let first = exact.read(monotonic_ns())?;
        let mut now = first.clone().continued(&self.last, &first);
        now.go_on_from(&self.last);
        self.change = Some(Change { last: Rc::clone(&self.last), first });
        self.source = Source::Exact(Box::new(exact));
        self.last = Rc::new(now);
        Ok(())
    }

    /// What `peer` may see of the figures of `program`, from a reading that is taken now; `None`
    /// where accounting is not by cbinfo.
    ///
    /// # Errors
    /// The source cannot be read.
    pub(crate) fn figures(
        &mut self,
        program: Option<u32>,
        peer: &Peer,
    ) -> Result<Option<Figures>, ObserveError> {
        if !matches!(self.source, Source::Exact(_)) {
            return Ok(None);
        }
        self.read()?;
        let speed_of = |cpu: u32| self.facts.get(&cpu).map_or(1024, |facts| facts.speed);
        Ok(Some(Figures::for_peer(&self.last, speed_of, program, peer, Owner::of)))
    }

    /// Takes /proc as the source from now on. Returns the first reading: its counters stand where the
    /// last reading left them.
    fn change_to_proc(&mut self, at_ns: u64, why: &ServedError) -> Result<Reading, ObserveError> {
        let speeds = self.facts.iter().map(|(cpu, facts)| (*cpu, facts.speed)).collect();
        let mut approximate = Approximate::new(without_gaps(&speeds));
        if let Source::Served(served) = &self.source
            && let Some((processes, program)) = served.followed()
        {
            processes.iter().for_each(|process| approximate.follow(*process, program));
        }
        // Children that have lost their parent are found by the last reading alone.
        for (program, reading) in &self.last.programs {
            let processes: BTreeSet<u32> =
                reading.tasks.values().map(|task| task.process).collect();
            processes.into_iter().for_each(|process| approximate.follow(process, *program));
        }
        let first = approximate.read(at_ns)?;
        let now = first.clone().continued(&self.last, &first);
        self.change = Some(Change { last: Rc::clone(&self.last), first });
        self.why_not_exact = Some(why.to_string());
        self.source = Source::Approximate(approximate);
        Ok(now)
    }
}

/// The best source that `choice` allows, and why it is not an exact one.
fn find_source(
    machine: &Machine,
    choice: AccountingChoice,
    sockets: &[PathBuf],
    facts: &BTreeMap<u32, CpuFacts>,
) -> Result<(Source, Option<String>), ObserveError> {
    let speeds = speeds_of(machine);
    if choice == AccountingChoice::Procfs {
        let why = "--accounting procfs was asked for".to_owned();
        return Ok((Source::Approximate(Approximate::new(speeds)), Some(why)));
    }
    let why = match Exact::open(&speeds) {
        Ok(exact) => return Ok((Source::Exact(Box::new(exact)), None)),
        Err(why) => why,
    };
    let (mut whys, mut refusal) = (why.to_string(), None);
    // Where the kernel lacks something, a daemon has no exact figures either; and in a PID namespace of
    // its own, this process has other numbers for its tasks.
    if matches!(why, evenkeel_cbinfo::Error::Unsupported(Unsupported::NoPrivilege)) {
        for socket in sockets.iter().filter(|socket| socket.exists()) {
            match Served::open(socket, facts) {
                Ok(served) => return Ok((Source::Served(Box::new(served)), None)),
                Err(why) => {
                    whys += &format!("; {why}");
                    refusal = Some(why);
                }
            }
        }
    }
    if choice == AccountingChoice::Cbinfo {
        return Err(refusal.map_or_else(|| why.into(), ObserveError::from));
    }
    // That it is not supported here is told where the figures are; that it should have worked and did
    // not is a fault.
    if !matches!(why, evenkeel_cbinfo::Error::Unsupported(_)) {
        tracing::warn!("no exact accounting, figures are from /proc: {why}");
    }
    Ok((Source::Approximate(Approximate::new(speeds)), Some(whys)))
}

/// Whether a task of a reading still exists.
fn is_alive(id: TaskId, task: &TaskReading) -> bool {
    let TaskId { tid, start } = id;
    let (tid, tgid) = (tid as i32, task.process as i32);
    TaskRef { tid, tgid, start_time_ticks: start }.is_alive()
}

/// By CPU number, without gaps.
fn speeds_of(machine: &Machine) -> Vec<u32> {
    without_gaps(&machine.cpus.iter().map(|cpu| (cpu.id, cpu.capability)).collect())
}

fn without_gaps(speeds: &BTreeMap<u32, u32>) -> Vec<u32> {
    let count = speeds.keys().next_back().map_or(0, |cpu| cpu + 1);
    (0..count).map(|cpu| speeds.get(&cpu).copied().unwrap_or(1024)).collect()
}

fn facts_of(machine: &Machine) -> BTreeMap<u32, CpuFacts> {
    let ranks = machine.energy_ranks().map(|found| found.ranks).unwrap_or_default();
    let facts = |cpu: &Cpu| {
        let Cpu { id, capability, core, node, .. } = cpu;
        let energy_rank = ranks.get(id).copied();
        (*id, CpuFacts { speed: *capability, core: *core, node: *node, energy_rank })
    };
    machine.cpus.iter().map(facts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::ProgramReading;

    const PROGRAM: u32 = 1;

    fn observer(tasks: &[TaskRef]) -> Observer {
        let reading = |task: &TaskRef| {
            let id = TaskId { tid: task.tid as u32, start: task.start_time_ticks };
            (id, TaskReading { process: task.tgid as u32, ..TaskReading::default() })
        };
        let tasks = tasks.iter().map(reading).collect();
        let program = ProgramReading { tasks, ..ProgramReading::default() };
        let programs = [(PROGRAM, program)].into();
        Observer {
            source: Source::Approximate(Approximate::new(vec![1024])),
            choice: AccountingChoice::Procfs,
            why_not_exact: None,
            change: None,
            facts: BTreeMap::new(),
            last: Rc::new(Reading { programs, ..Reading::default() }),
            has_warned: false,
        }
    }

    #[test]
    fn the_cpuset_of_a_program_is_that_of_a_task_that_lives() {
        let own = TaskRef::own_process().unwrap();
        // Another process had the number before.
        let ended = TaskRef { start_time_ticks: own.start_time_ticks - 1, ..own };
        assert_eq!(observer(&[ended]).usable(PROGRAM), None);
        assert_eq!(observer(&[ended, own]).usable(PROGRAM), Some(effective_cpuset(own.tid)));
        assert_eq!(observer(&[]).usable(PROGRAM), None);
    }
}
