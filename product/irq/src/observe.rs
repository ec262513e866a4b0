//! Two readings, and the snapshot of the interval between them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_journal::{Irqbalance, Standing, affinity, effective_cpuset, find_irqbalance};
use evenkeel_machine::{CpuSet, Machine};

use crate::counters::{Counters, CountersError};
use crate::decide::{Aim, can_move, plan_for};
use crate::devices;
use crate::gauge::Gauge;
use crate::snapshot::{Accounting, Cpu, Held, Napi, Snapshot, Source, SourceId};
use crate::spread::is_hot;
use crate::sysfs::{self, Line};
use crate::threads::{Thread, Threads};
use crate::totals::{NapiTotals, SoftirqTotals, Totals};

/// Why nothing is observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The CPUs are not known.
    #[error(transparent)]
    Machine(#[from] evenkeel_machine::Error),
    /// The counters cannot be read.
    #[error(transparent)]
    Counters(#[from] crate::counters::CountersError),
}

/// What sources that this process has moved were allowed before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Originals {
    /// The lines.
    pub lines: BTreeMap<u32, OriginalLine>,
    /// The CPUs of kernel threads, by number.
    pub threads: BTreeMap<i32, CpuSet>,
}

/// What a line that was moved was allowed before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginalLine {
    /// The names of its handlers.
    pub name: String,
    /// Its affinity of before.
    pub before: CpuSet,
    /// The affinity that it was given. If it has another one, an administrator has set that since.
    pub set: CpuSet,
}

impl Originals {
    /// Of the lines that stand as an earlier `evenkeel irq once` left them. Its threads stay: for a
    /// later run they are where their user pinned them.
    pub fn of(standing: &Standing) -> Self {
        let mut originals = Self::default();
        standing.lines.iter().for_each(|line| originals.add(line));
        originals
    }

    /// Adds a later move of a line. What it was allowed before an earlier one is older.
    pub(crate) fn add(&mut self, line: &evenkeel_journal::Line) {
        let is_earlier =
            |known: &&OriginalLine| known.name == line.name && known.set == line.before;
        let earlier = self.lines.get(&line.number).filter(is_earlier);
        let before = earlier.map_or(&line.before, |earlier| &earlier.before).clone();
        let original = OriginalLine { name: line.name.clone(), before, set: line.set.clone() };
        self.lines.insert(line.number, original);
    }

    /// What a line was allowed before, if it still is as it was moved.
    fn before(&self, number: u32, line: &Line) -> Option<&CpuSet> {
        let original = self.lines.get(&number)?;
        let is_as_set = original.name == line.name && original.set == line.mask;
        is_as_set.then_some(&original.before)
    }
}

/// Observes interrupts from its making on.
pub struct Observer {
    machine: Machine,
    counters: Result<Counters, String>,
    aim: Aim,
    threads: Threads,
    gauge: Gauge,
    /// Of the last interval.
    taken_pct: BTreeMap<u32, f64>,
    /// None: the last interval was too quiet for it to be read.
    last: Option<Reading>,
    /// An irqbalance that ran when it was looked for last.
    irqbalance: Option<Irqbalance>,
    /// Lines are moved although irqbalance runs: it is told to leave these alone.
    takes_over: bool,
}

/// What was counted until a moment.
#[derive(Clone)]
struct Reading {
    at: Instant,
    totals: Totals,
    threads: Vec<(Thread, u64)>,
}

impl Observer {
    /// Observes exactly where BPF may be loaded, else by counts.
    ///
    /// # Errors
    /// All of [`ObserveError`].
    pub fn start(aim: Aim) -> Result<Self, ObserveError> {
        let machine = Machine::from_sysfs(Path::new("/"))?;
        let counters = open(aim).map_err(|why| why.to_string());
        let mut threads = Threads::default();
        let gauge = Gauge::read(counters.as_ref().ok(), &mut threads)?;
        let last = Some(read(&counters, &threads)?);
        Ok(Self {
            machine,
            counters,
            aim,
            threads,
            gauge,
            taken_pct: BTreeMap::new(),
            last,
            irqbalance: None,
            takes_over: false,
        })
    }

    /// Why nothing is measured exactly; `None`: it is.
    pub fn unmeasured(&self) -> Option<&str> {
        self.counters.as_ref().err().map(String::as_str)
    }

    /// The machine, as it was when it was read last.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// What handlers and softirqs took of each online CPU between the last two calls of
    /// [`Observer::observe`], in percent; empty where that is not measured.
    pub fn taken_pct(&self) -> &BTreeMap<u32, f64> {
        &self.taken_pct
    }

    /// From now on sees on which CPUs packets are received, where the kernel can show it. With the aim
    /// `source-aware` that is so from the start; to level it is not needed.
    pub fn watch_consumers(&mut self) {
        if let Ok(counters) = &mut self.counters
            && let Err(why) = counters.watch_consumers()
        {
            tracing::debug!("{why}");
        }
    }

    /// Has lines moved although irqbalance runs.
    pub fn take_over(&mut self) {
        self.takes_over = true;
    }

    /// What happened in the interval since the last call, if anything could be moved for it; `None`:
    /// nothing could, or the interval before was too quiet to be read, so that this one has no
    /// beginning. At rest this reads next to nothing. `protected` and `originals` as for
    /// [`Observer::snapshot`].
    ///
    /// # Errors
    /// All of [`ObserveError`].
    pub fn observe(
        &mut self,
        protected: &CpuSet,
        originals: &Originals,
    ) -> Result<Option<Snapshot>, ObserveError> {
        let now = Gauge::read(self.counters.as_ref().ok(), &mut self.threads)?;
        let burden = now.since(&self.gauge);
        if self.counters.is_ok() {
            self.taken_pct = now.taken_pct(&self.gauge, &self.machine.online());
        }
        self.gauge = now;
        if !can_move(burden, self.aim, !protected.is_empty()) {
            self.last = None;
            return Ok(None);
        }
        if self.last.is_none() {
            self.last = Some(read(&self.counters, &self.threads)?);
            return Ok(None);
        }
        // A queue that has nothing to do may get buckets of a busy one.
        let may_spread = self.aim == Aim::Level && is_hot(burden.largest_ns, burden.interval_ns);
        let which = if may_spread { Lines::BusyDevices } else { Lines::Busy };
        let mut snapshot = self.snapshot_of(protected, originals, false, which)?;
        let is_line = |id: SourceId| matches!(id, SourceId::Line(_));
        if may_spread {
            snapshot.devices = devices::of(&snapshot);
        }
        let plan = plan_for(&snapshot, self.aim);
        // The list of all connections may be long: it is read only where it makes a difference.
        if !plan.spreads.is_empty() {
            devices::add_connections(&mut snapshot.devices);
        }
        let moves_line =
            !plan.spreads.is_empty() || plan.moves.iter().any(|step| is_line(step.source));
        // To look for it takes a look at every process: only where it makes a difference.
        if moves_line && !self.takes_over && self.irqbalance_runs() {
            let lines = snapshot.sources.iter_mut().filter(|source| is_line(source.id));
            lines.for_each(|line| {
                line.held.get_or_insert(Held::Irqbalance);
            });
        }
        Ok(Some(snapshot))
    }

    /// Whether an irqbalance runs. The process that was found last is looked at first.
    fn irqbalance_runs(&mut self) -> bool {
        let runs = |one: &Irqbalance| {
            let command = std::fs::read_to_string(format!("/proc/{}/comm", one.pid));
            command.is_ok_and(|command| command.trim() == "irqbalance")
        };
        if !self.irqbalance.as_ref().is_some_and(runs) {
            self.irqbalance = find_irqbalance(Path::new("/")).into_iter().next();
        }
        self.irqbalance.is_some()
    }

    /// What happened since the last call, or since the start. `protected` are the CPUs of `--for`;
    /// `originals` is of the sources that this process has moved.
    ///
    /// # Errors
    /// All of [`ObserveError`].
    pub fn snapshot(
        &mut self,
        protected: &CpuSet,
        originals: &Originals,
    ) -> Result<Snapshot, ObserveError> {
        self.threads.refresh();
        let has_irqbalance = !self.takes_over && irqbalance_runs();
        let mut snapshot = self.snapshot_of(protected, originals, has_irqbalance, Lines::All)?;
        snapshot.devices = devices::all();
        devices::add_connections(&mut snapshot.devices);
        Ok(snapshot)
    }

    fn snapshot_of(
        &mut self,
        protected: &CpuSet,
        originals: &Originals,
        has_irqbalance: bool,
        which: Lines,
    ) -> Result<Snapshot, ObserveError> {
        if sysfs::online(Path::new("/")).is_some_and(|online| online != self.machine.online()) {
            self.machine = Machine::from_sysfs(Path::new("/"))?;
        }
        let now = read(&self.counters, &self.threads)?;
        let before = self.last.replace(now.clone()).unwrap_or_else(|| now.clone());
        let online = self.machine.online();
        let totals = now.totals.since(&before.totals);
        let is_exact = self.counters.is_ok();
        let of_device = sysfs::devices(Path::new("/"));
        let lines = match which {
            Lines::All => sysfs::lines(Path::new("/")),
            Lines::Busy => sysfs::some_lines(Path::new("/"), busy_lines(&totals)),
            Lines::BusyDevices => {
                let busy = busy_lines(&totals);
                sysfs::some_lines(Path::new("/"), with_siblings(busy, &of_device))
            }
        };
        let states = (is_exact, has_irqbalance);
        let mut sources = line_sources((lines, &of_device), &totals, &online, originals, states);
        let before_ns: BTreeMap<_, u64> =
            before.threads.iter().map(|(thread, ns)| (thread.task, *ns)).collect();
        for (thread, ns) in &now.threads {
            let ran_ns = ns.saturating_sub(before_ns.get(&thread.task).copied().unwrap_or(*ns));
            sources.extend(thread_source(thread, ran_ns, &totals, &online, originals));
        }
        sources.extend(loose_sources(&totals, &sources));
        let isolated = self.machine.isolated();
        let cpu = |number| Cpu {
            number,
            isolated: isolated.contains(number),
            protected: protected.contains(number),
            other_ns: other_ns(&totals.softirqs, &sources, number),
            net_rx: totals.softirqs.net_rx.get(number),
        };
        Ok(Snapshot {
            interval_ns: now.at.saturating_duration_since(before.at).as_nanos() as u64,
            accounting: match &self.counters {
                Ok(_) => Accounting::Exact,
                Err(why) => Accounting::Counts(why.clone()),
            },
            cpus: online.iter().map(cpu).collect(),
            sources,
            devices: Vec::new(),
        })
    }
}

/// Which lines a snapshot has.
#[derive(Debug, Clone, Copy)]
enum Lines {
    All,
    /// Those that interrupted, or have NAPI instances that were polled.
    Busy,
    /// The same, and all lines of their devices.
    BusyDevices,
}

/// These lines, and all others of their devices.
fn with_siblings(lines: BTreeSet<u32>, of_device: &BTreeMap<u32, String>) -> BTreeSet<u32> {
    let devices: BTreeSet<&String> = lines.iter().filter_map(|line| of_device.get(line)).collect();
    let siblings = of_device.iter().filter(|(_, device)| devices.contains(device));
    siblings.map(|(line, _)| *line).chain(lines.iter().copied()).collect()
}

fn busy_lines(totals: &Totals) -> BTreeSet<u32> {
    let interrupted = totals.lines.iter().filter(|(_, line)| line.interrupts.sum() > 0);
    let polled = totals.napis.values().filter(|napi| napi.polls.sum() > 0);
    let polled = polled.filter_map(NapiTotals::line);
    interrupted.map(|(number, _)| *number).chain(polled).collect()
}

/// Loads the counters; with the aim `source-aware`, consumers are watched from the start.
fn open(aim: Aim) -> Result<Counters, CountersError> {
    match (Counters::open(true), aim) {
        (Ok(mut counters), Aim::SourceAware) => {
            counters.watch_consumers()?;
            Ok(counters)
        }
        // A kernel before 6.3 shows no receptions: moves that level need none.
        (Err(CountersError::Bpf { .. }), Aim::Level) => Counters::open(false),
        (opened, _) => opened,
    }
}

/// Observes for this long what moves with this aim depend on. `originals` is of what stands as an
/// earlier `evenkeel irq once` left it.
///
/// # Errors
/// All of [`ObserveError`].
pub fn watch(
    time: Duration,
    aim: Aim,
    protected: &CpuSet,
    originals: &Originals,
) -> Result<Snapshot, ObserveError> {
    let mut observer = Observer::start(aim)?;
    std::thread::sleep(time);
    observer.snapshot(protected, originals)
}

fn read(counters: &Result<Counters, String>, threads: &Threads) -> Result<Reading, ObserveError> {
    let root = Path::new("/");
    let totals = match counters {
        Ok(counters) => counters.read()?,
        Err(_) => Totals {
            lines: sysfs::counts(root),
            napis: BTreeMap::new(),
            softirqs: SoftirqTotals { net_rx: sysfs::net_rx(root), ..SoftirqTotals::default() },
        },
    };
    let threads = threads.iter().filter_map(|thread| Some((thread.clone(), thread.run_ns()?)));
    Ok(Reading { at: Instant::now(), totals, threads: threads.collect() })
}

fn napi_of(totals: &NapiTotals) -> Napi {
    Napi {
        device: totals.device.clone(),
        napi_id: totals.napi_id,
        packets: totals.packets.sum(),
        polls: totals.polls.sum(),
        received_bytes: totals.received_bytes.iter().collect(),
    }
}

fn line_sources(
    (lines, devices): (BTreeMap<u32, Line>, &BTreeMap<u32, String>),
    totals: &Totals,
    online: &CpuSet,
    originals: &Originals,
    (is_exact, has_irqbalance): (bool, bool),
) -> Vec<Source> {
    let mut sources = Vec::new();
    for (number, mut line) in lines {
        if let Some(before) = originals.before(number, &line) {
            line.mask = before.clone();
        }
        let counted = totals.lines.get(&number).cloned().unwrap_or_default();
        let of_line = totals.napis.values().filter(|napi| napi.line() == Some(number));
        let polled: Vec<&NapiTotals> = of_line.filter(|napi| napi.thread.is_none()).collect();
        let mut ns = counted.ns.clone();
        polled.iter().for_each(|napi| ns += &napi.ns);
        let device = devices.get(&number).cloned();
        let allowed = line.allowed(online);
        let held = match () {
            () if line.managed => Some(Held::Managed),
            () if !is_exact => Some(Held::Unmeasured),
            () if allowed.len() < 2 => Some(Held::OneCpu),
            () if has_irqbalance => Some(Held::Irqbalance),
            () => None,
        };
        sources.push(Source {
            id: SourceId::Line(number),
            queue: device.as_ref().and_then(|_| sysfs::queue(&line.name)),
            name: line.name,
            device,
            allowed,
            effective: line.effective,
            interrupts: counted.interrupts.sum(),
            ns: ns.iter().collect(),
            napis: polled.into_iter().map(napi_of).collect(),
            held,
        });
    }
    sources
}

fn thread_source(
    thread: &Thread,
    ran_ns: u64,
    totals: &Totals,
    online: &CpuSet,
    originals: &Originals,
) -> Option<Source> {
    let mask = match originals.threads.get(&thread.task.tid) {
        Some(original) => original.clone(),
        None => affinity::get(thread.task.tid).ok()?,
    };
    let allowed = mask.intersection(&effective_cpuset(thread.task.tid)).intersection(online);
    let napi = totals.napis.values().find(|napi| napi.thread == Some(thread.task.tid));
    let cpu = thread.cpu()?;
    Some(Source {
        id: SourceId::Thread(thread.task.tid),
        name: thread.name.clone(),
        device: Some(thread.device.clone()),
        queue: None,
        effective: [cpu].into_iter().collect(),
        interrupts: 0,
        ns: by_cpu(ran_ns, napi, cpu),
        napis: napi.map(napi_of).into_iter().collect(),
        held: (allowed.len() < 2).then_some(Held::OneCpu),
        allowed,
    })
}

/// A thread's run time, divided over the CPUs as its polls are; without them, on the CPU that it is on.
fn by_cpu(ran_ns: u64, napi: Option<&NapiTotals>, cpu: u32) -> BTreeMap<u32, u64> {
    let polls = napi.map(|napi| (napi.polls.sum(), &napi.polls)).filter(|(sum, _)| *sum > 0);
    match polls {
        Some((sum, each)) => {
            let part = |polls| (u128::from(ran_ns) * u128::from(polls) / u128::from(sum)) as u64;
            each.iter().map(|(cpu, polls)| (cpu, part(polls))).collect()
        }
        None if ran_ns == 0 => BTreeMap::new(),
        None => [(cpu, ran_ns)].into(),
    }
}

/// Instances of which neither line nor thread is known, and that were polled.
fn loose_sources(totals: &Totals, known: &[Source]) -> Vec<Source> {
    let has_line = |line| known.iter().any(|source| source.id == SourceId::Line(line));
    let loose = totals.napis.values().filter(|napi| {
        napi.thread.is_none() && napi.polls.sum() > 0 && !napi.line().is_some_and(has_line)
    });
    let source = |(number, napi): (u32, &NapiTotals)| Source {
        id: SourceId::Napi(number),
        name: match (napi.device.as_str(), napi.napi_id) {
            ("", _) => "backlog".to_owned(),
            (device, 0) => device.to_owned(),
            (device, napi_id) => format!("{device}-{napi_id}"),
        },
        device: Some(napi.device.clone()).filter(|device| !device.is_empty()),
        queue: None,
        allowed: CpuSet::new(),
        effective: napi.polls.iter().map(|(cpu, _)| cpu).collect(),
        interrupts: 0,
        ns: napi.ns.iter().collect(),
        napis: vec![napi_of(napi)],
        held: Some(Held::NoAffinity),
    };
    (0..).zip(loose).map(source).collect()
}

/// What softirqs took of a CPU, without what sources account for: handlers are no softirqs, so this may
/// undercount.
fn other_ns(softirqs: &SoftirqTotals, sources: &[Source], cpu: u32) -> u64 {
    let of_softirqs = sources.iter().filter(|source| !matches!(source.id, SourceId::Thread(_)));
    let known: u64 = of_softirqs.filter_map(|source| source.ns.get(&cpu)).sum();
    softirqs.ns.get(cpu).saturating_sub(known)
}

/// Whether irqbalance runs, by the name of its process or by its socket.
pub fn irqbalance_runs() -> bool {
    !find_irqbalance(Path::new("/")).is_empty()
}

/// The CPUs that are online.
pub fn online_cpus() -> Option<CpuSet> {
    sysfs::online(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_line_was_allowed_before_counts_only_while_it_is_as_it_was_moved() {
        let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
        let moved = |before: &str, set: &str| evenkeel_journal::Line {
            root: "/".into(),
            number: 7,
            name: "eth0".to_owned(),
            before: cpus(before),
            replaces: None,
            set: cpus(set),
            time_ns: 5,
        };
        let before = |originals: &Originals, name: &str, mask: &str| {
            let line = Line { name: name.to_owned(), mask: cpus(mask), ..Line::default() };
            originals.before(7, &line).map(CpuSet::to_string)
        };
        let standing = Standing { lines: vec![moved("0-3", "1")], ..Standing::default() };
        let mut originals = Originals::of(&standing);
        assert_eq!(before(&originals, "eth0", "1").as_deref(), Some("0-3"));
        // An administrator has pinned it since; another line has its number.
        assert_eq!(before(&originals, "eth0", "2"), None);
        assert_eq!(before(&originals, "nvme0", "1"), None);
        // Moved again.
        originals.add(&moved("1", "3"));
        assert_eq!(before(&originals, "eth0", "3").as_deref(), Some("0-3"));
        // Moved from where an administrator put it.
        originals.add(&moved("0-1", "0"));
        assert_eq!(before(&originals, "eth0", "0").as_deref(), Some("0-1"));
    }

    #[test]
    fn a_busy_line_brings_those_of_its_device() {
        let of_device = [(1, "eth0"), (2, "eth0"), (3, "eth1")];
        let of_device = of_device.map(|(line, device)| (line, device.to_owned())).into();
        assert_eq!(with_siblings([2, 9].into(), &of_device), [1, 2, 9].into());
        assert!(with_siblings(BTreeSet::new(), &of_device).is_empty());
    }

    #[test]
    fn a_threads_time_is_divided_as_its_polls_are() {
        let polls = [1, 0, 3].into_iter().collect();
        let napi = NapiTotals { polls, ..NapiTotals::default() };
        assert_eq!(by_cpu(400, Some(&napi), 7), [(0, 100), (2, 300)].into());
        assert_eq!(by_cpu(400, None, 7), [(7, 400)].into());
        assert_eq!(by_cpu(400, Some(&NapiTotals::default()), 7), [(7, 400)].into());
        assert!(by_cpu(0, None, 7).is_empty());
    }
}
