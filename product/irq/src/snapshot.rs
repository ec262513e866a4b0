//! What was observed in one interval: the CPUs, and each source of interrupt work with its time on each
//! of them. Values only: `observe` makes them, `decide` judges them.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::Serialize;

/// A source of interrupt work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceId {
    /// An interrupt line, with the softirqs that it causes.
    Line(u32),
    /// The kernel thread of a NAPI instance.
    Thread(i32),
    /// A NAPI instance without a known line or thread, by its place in the list.
    Napi(u32),
}

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Thread(pid) => write!(f, "thread {pid}"),
            Self::Napi(_) => f.write_str("softirq"),
        }
    }
}

/// Why a source stays where it is, whatever it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// The kernel lets nothing but its driver set the affinity.
    Managed,
    /// No second CPU is allowed.
    OneCpu,
    /// No affinity decides where it runs.
    NoAffinity,
    /// Its time is not known.
    Unmeasured,
    /// irqbalance moves it.
    Irqbalance,
    /// Another process has moved it since this one did.
    LetGo,
    /// The kernel has refused to move it.
    Refused,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Managed => "managed: the kernel refuses another affinity",
            Self::OneCpu => {
                "its affinity has one CPU, set by a user or left by irqbalance: write more CPUs to \
                 smp_affinity_list (of a thread: taskset) to have it moved"
            }
            Self::NoAffinity => "runs where packets are sent to it: no affinity moves it",
            Self::Unmeasured => "its time is not known without BPF",
            Self::Irqbalance => "irqbalance moves it (unless started with --banirq)",
            Self::LetGo => "another process has moved it",
            Self::Refused => "the kernel has refused to move it",
        })
    }
}

/// A NAPI instance that is polled for a source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Napi {
    /// Its network device; empty where it has none.
    pub device: String,
    /// Its number; 0: it has none (queues for sending).
    pub napi_id: u32,
    /// Packets in the interval.
    pub packets: u64,
    /// Polls in the interval.
    pub polls: u64,
    /// Bytes that it brought in the interval, by the CPU on which a thread received them: a sample;
    /// empty where consumers are not watched.
    pub received_bytes: BTreeMap<u32, u64>,
}

/// A network device, and how its card spreads packets over its queues.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// How many receive queues it has; `None`: its driver does not tell.
    pub queues: Option<u32>,
    /// The function by which packets are hashed; `None`: it has no indirection table.
    pub hash: Option<String>,
    /// The RSS indirection table: the queue of each bucket. Empty: it has none.
    pub table: Vec<u32>,
    /// How many TCP connections of this host are in a bucket, by bucket; empty where that is not known.
    pub connections: BTreeMap<u32, u32>,
}

/// One source.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Source {
    /// What it is.
    pub id: SourceId,
    /// As the kernel names it.
    pub name: String,
    /// The network device that it belongs to, if any.
    pub device: Option<String>,
    /// The queue of that device, where its name tells.
    pub queue: Option<u32>,
    /// The online CPUs that it may be moved to.
    pub allowed: CpuSet,
    /// Where it runs now: one CPU, but for lines that the hardware spreads.
    pub effective: CpuSet,
    /// Interrupts in the interval.
    pub interrupts: u64,
    /// Time in the interval on each CPU, in ns; empty where it is not known.
    pub ns: BTreeMap<u32, u64>,
    /// The NAPI instances that are polled for it.
    pub napis: Vec<Napi>,
    /// Why it stays.
    pub held: Option<Held>,
}

impl Source {
    /// Its time on all CPUs, in ns.
    pub fn total_ns(&self) -> u64 {
        self.ns.values().sum()
    }

    /// Its packets in the interval.
    pub fn packets(&self) -> u64 {
        self.napis.iter().map(|napi| napi.packets).sum()
    }

    /// The CPU on which most of what it brought is received, and its share of that in percent.
    pub fn consumer(&self) -> Option<(u32, u64)> {
        let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
        for (cpu, bytes) in self.napis.iter().flat_map(|napi| &napi.received_bytes) {
            *sums.entry(*cpu).or_default() += bytes;
        }
        let all: u64 = sums.values().sum();
        let (cpu, most) = sums.into_iter().max_by_key(|(cpu, bytes)| (*bytes, u32::MAX - cpu))?;
        Some((cpu, (u128::from(most) * 100 / u128::from(all.max(1))) as u64))
    }

    /// The CPU that it burdens: the one effective CPU, or the one with most of its time.
    pub fn home(&self) -> Option<u32> {
        let most = self.ns.iter().max_by_key(|(_, ns)| **ns).map(|(cpu, _)| *cpu);
        let one = self.effective.iter().next().filter(|_| self.effective.len() == 1);
        one.or(most)
    }
}

/// One online CPU.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Cpu {
    /// Its number.
    pub number: u32,
    /// Kept free of unbound work at boot (isolcpus and the like): nothing is moved here.
    pub isolated: bool,
    /// A program is to be protected from interrupts here (`--for`).
    pub protected: bool,
    /// Time of softirqs that belongs to no source, in ns of the interval: timers, RCU, the scheduler's.
    pub other_ns: u64,
    /// How often NET_RX ran in the interval.
    pub net_rx: u64,
}

/// Where the figures come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Accounting {
    /// BPF: each line's and each instance's time.
    Exact,
    /// /sys/kernel/irq and /proc/softirqs: counts only, and why. The times of kernel threads are exact
    /// there, too.
    Counts(String),
}

/// One interval.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Snapshot {
    /// Its length, in ns.
    pub interval_ns: u64,
    /// Where the figures come from.
    pub accounting: Accounting,
    /// The online CPUs, ascending.
    pub cpus: Vec<Cpu>,
    /// All sources.
    pub sources: Vec<Source>,
    /// The network devices, where indirection tables matter; else none.
    pub devices: Vec<Device>,
}

impl Snapshot {
    /// What interrupts took of each CPU, in ns of the interval.
    pub fn loads(&self) -> BTreeMap<u32, u64> {
        let mut loads: BTreeMap<u32, u64> =
            self.cpus.iter().map(|cpu| (cpu.number, cpu.other_ns)).collect();
        for (cpu, ns) in self.sources.iter().flat_map(|source| &source.ns) {
            if let Some(load) = loads.get_mut(cpu) {
                *load += ns;
            }
        }
        loads
    }

    /// Has all the time of a source on this CPU, as after a move.
    pub(crate) fn relocate(&mut self, source: SourceId, to: u32) {
        for it in self.sources.iter_mut().filter(|it| it.id == source) {
            it.ns = [(to, it.total_ns())].into();
            it.effective = [to].into_iter().collect();
        }
    }

    /// Keeps a source where it is.
    pub(crate) fn hold(&mut self, source: SourceId, held: Held) {
        for it in self.sources.iter_mut().filter(|it| it.id == source) {
            it.held = Some(held);
        }
    }

    /// A part of the interval, in percent.
    pub fn percent(&self, ns: u64) -> f64 {
        ns as f64 * 100.0 / self.interval_ns.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_with_one_cpu_names_both_causes_and_the_remedy() {
        let why = Held::OneCpu.to_string();
        let words = ["a user", "irqbalance", "smp_affinity_list", "taskset"];
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
}
