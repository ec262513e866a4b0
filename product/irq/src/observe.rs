//! Two readings, and the snapshot of the interval between them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_journal::{Standing, affinity, effective_cpuset, find_irqbalance};
use evenkeel_machine::{CpuSet, Machine};

use crate::counters::Counters;
use crate::snapshot::{Accounting, Cpu, Held, Napi, Snapshot, Source, SourceId};
use crate::sysfs;
use crate::threads::{self, Thread};
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
    /// The affinities of lines.
    pub lines: BTreeMap<u32, CpuSet>,
    /// The CPUs of kernel threads, by number.
    pub threads: BTreeMap<i32, CpuSet>,
}

impl Originals {
    /// Of the lines that stand as an earlier `evenkeel irq once` left them. Its threads stay: for a
    /// later run they are where their user pinned them.
    pub fn of(standing: &Standing) -> Self {
        let lines = standing.lines.iter().map(|line| (line.number, line.before.clone()));
        Self { lines: lines.collect(), ..Self::default() }
    }
}

/// Observes interrupts from its making on.
pub struct Observer {
    machine: Machine,
    counters: Result<Counters, String>,
    last: Reading,
    /// Lines are moved although irqbalance runs: it is told to leave these alone.
    takes_over: bool,
}

/// What was counted until a moment.
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
    pub fn start() -> Result<Self, ObserveError> {
        let machine = Machine::from_sysfs(Path::new("/"))?;
        let counters = Counters::open().map_err(|why| why.to_string());
        let last = read(&counters)?;
        Ok(Self { machine, counters, last, takes_over: false })
    }

    /// Has lines moved although irqbalance runs.
    pub fn take_over(&mut self) {
        self.takes_over = true;
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
        if sysfs::online(Path::new("/")).is_some_and(|online| online != self.machine.online()) {
            self.machine = Machine::from_sysfs(Path::new("/"))?;
        }
        let now = read(&self.counters)?;
        let before = std::mem::replace(&mut self.last, now);
        let now = &self.last;
        let online = self.machine.online();
        let totals = now.totals.since(&before.totals);
        let is_exact = self.counters.is_ok();
        let has_irqbalance = !self.takes_over && irqbalance_runs();
        let mut sources = line_sources(&totals, &online, originals, (is_exact, has_irqbalance));
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
        })
    }
}

/// Observes for this long. `originals` is of what stands as an earlier `evenkeel irq once` left it.
///
/// # Errors
/// All of [`ObserveError`].
pub fn watch(
    time: Duration,
    protected: &CpuSet,
    originals: &Originals,
) -> Result<Snapshot, ObserveError> {
    let mut observer = Observer::start()?;
    std::thread::sleep(time);
    observer.snapshot(protected, originals)
}

fn read(counters: &Result<Counters, String>) -> Result<Reading, ObserveError> {
    let root = Path::new("/");
    let totals = match counters {
        Ok(counters) => counters.read()?,
        Err(_) => Totals {
            lines: sysfs::counts(root),
            napis: BTreeMap::new(),
            softirqs: SoftirqTotals { net_rx: sysfs::net_rx(root), ..SoftirqTotals::default() },
        },
    };
    let threads = threads::all().into_iter().filter_map(|thread| {
        let ns = thread.run_ns()?;
        Some((thread, ns))
    });
    Ok(Reading { at: Instant::now(), totals, threads: threads.collect() })
}

fn napi_of(totals: &NapiTotals) -> Napi {
    Napi {
        device: totals.device.clone(),
        napi_id: totals.napi_id,
        packets: totals.packets.sum(),
        polls: totals.polls.sum(),
    }
}

fn line_sources(
    totals: &Totals,
    online: &CpuSet,
    originals: &Originals,
    (is_exact, has_irqbalance): (bool, bool),
) -> Vec<Source> {
    let root = Path::new("/");
    let devices = sysfs::devices(root);
    let mut sources = Vec::new();
    for (number, mut line) in sysfs::lines(root) {
        if let Some(original) = originals.lines.get(&number) {
            line.mask = original.clone();
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
    fn a_threads_time_is_divided_as_its_polls_are() {
        let polls = [1, 0, 3].into_iter().collect();
        let napi = NapiTotals { polls, ..NapiTotals::default() };
        assert_eq!(by_cpu(400, Some(&napi), 7), [(0, 100), (2, 300)].into());
        assert_eq!(by_cpu(400, None, 7), [(7, 400)].into());
        assert_eq!(by_cpu(400, Some(&NapiTotals::default()), 7), [(7, 400)].into());
        assert!(by_cpu(0, None, 7).is_empty());
    }
}
