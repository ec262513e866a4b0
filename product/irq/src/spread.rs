//! Which buckets of an RSS indirection table lead to which queue, and why. Pure: no I/O, no clock.
//!
//! A line moves all packets of its queue at once: where one queue alone fills a CPU, or where a line
//! cannot be moved, that levels nothing. Then some of the queue's buckets are moved to another queue
//! of the same card, of which the line is on the CPU with the least load:
//!
//! 1. Buckets are moved only when no move of a line or a thread helps the CPU with the largest share any
//!    more, and interrupts take at least `HOT_PCT` of that CPU.
//! 2. The largest share must become smaller by the same margin as for a move of a line.
//! 3. A queue without a bucket gets none: an administrator has taken it out of the table. And no queue
//!    loses its last one.
//! 4. A queue stays as it is if most of what it brings is received on its own CPU, where that is
//!    watched. The aim `level` does not watch it: one small reception would keep a busy queue where it
//!    is.
//!
//! What a bucket brings is not measured. Each counts as one, and as `CONNECTION` more for each TCP
//! connection of this host that is known to be in it. Whether the guess was right is seen afterwards
//! ([`Trial`]): a change that did not level is taken back.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use crate::margin::{CONSUMER_PCT, margin_ns};
use crate::snapshot::{Device, Held, Snapshot, Source, SourceId};
use crate::sysfs;

/// Below this share of a CPU, in percent, no table is changed.
const HOT_PCT: u64 = 10;
/// A bucket with a connection counts as so many without.
const CONNECTION: u64 = 16;
/// A plan has at most so many changes of tables.
const MOST_CHANGES: usize = 16;
/// Below this time of both queues, in percent of the interval, a round does not show what a change did.
const LEAST_SEEN_PCT: u64 = 2;

/// Buckets that are moved from one queue of a device to another one.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Spread {
    /// The device.
    pub device: String,
    /// The line of the queue that loses buckets, as the kernel names it.
    pub name: String,
    /// That queue.
    pub from_queue: u32,
    /// The queue that gets the buckets.
    pub to_queue: u32,
    /// The CPU of the first queue.
    pub from: u32,
    /// The CPU of the second queue.
    pub to: u32,
    /// The buckets.
    pub buckets: Vec<u32>,
    /// How many buckets the first queue has before.
    pub of_buckets: usize,
    /// What the buckets are expected to bring, in percent of a CPU.
    pub pct: f64,
    /// The share of `from` before, in percent.
    pub from_pct: f64,
    /// The larger of the two shares afterwards, in percent, as expected.
    pub after_pct: f64,
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, name, from_queue, to_queue, from, to, of_buckets, .. } = self;
        let (count, from_pct, after_pct) = (self.buckets.len(), self.from_pct, self.after_pct);
        write!(
            f,
            "{device}: {count} of {of_buckets} buckets of queue {from_queue} ({name}, CPU {from}) -> \
             queue {to_queue} (CPU {to}), because interrupts take {from_pct:.1} % of CPU {from} and \
             moving a line does not level that; afterwards about {after_pct:.1} % of either"
        )
    }
}

impl Spread {
    /// The change that takes this one back.
    pub fn reversed(&self) -> Self {
        Self {
            from_queue: self.to_queue,
            to_queue: self.from_queue,
            from: self.to,
            to: self.from,
            ..self.clone()
        }
    }
}

/// A device with a busy queue of which the table stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StayingTable {
    /// The device.
    pub device: String,
    /// Why.
    pub why: Unspread,
}

/// Why the table of a device with a busy queue stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unspread {
    /// The device has no indirection table.
    NoTable,
    /// The queue has one bucket.
    OneBucket,
    /// The device has no other queue with a bucket on a CPU that takes part.
    NoOtherQueue,
    /// What the queue brings is received on its own CPU.
    AtHome,
    /// No part of the buckets makes the largest share clearly smaller.
    NoGain,
}

impl fmt::Display for Unspread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTable => "it has no RSS indirection table: its packets cannot be spread anew",
            Self::OneBucket => "its busy queue has one bucket of the RSS indirection table",
            Self::NoOtherQueue => {
                "no other queue in its RSS indirection table has its line on another CPU that may take \
                 interrupts"
            }
            Self::AtHome => "what its busy queue brings is received on the CPU of that queue",
            Self::NoGain => "no other spread of its buckets makes the largest share clearly smaller",
        })
    }
}

/// A receive queue while changes are planned.
struct Queue<'a> {
    device: &'a Device,
    source: &'a Source,
    number: u32,
    cpu: u32,
    /// Time on its CPU of the buckets below, in ns.
    ns: u64,
    /// What each counts as, and its number; those that count most first.
    buckets: Vec<(u64, u32)>,
    /// How many buckets it has, those that were moved to it included.
    count: usize,
}

impl<'a> Queue<'a> {
    /// The queue of a source, if it is one of a device; with its buckets, if that has a table.
    fn of(source: &'a Source, devices: &'a [Device]) -> Option<Self> {
        let is_line = matches!(source.id, SourceId::Line(_));
        let number = source.queue.filter(|_| is_line && sysfs::is_for_receiving(&source.name))?;
        let name = source.device.as_deref()?;
        let device = devices.iter().find(|device| device.name == name)?;
        let cpu = source.home()?;
        let numbers = (0..).zip(&device.table).filter(|(_, queue)| **queue == number);
        let weight = |bucket: u32| {
            let connections = device.connections.get(&bucket).copied().unwrap_or(0);
            1 + CONNECTION * u64::from(connections)
        };
        let mut buckets: Vec<(u64, u32)> =
            numbers.map(|(bucket, _): (u32, _)| (weight(bucket), bucket)).collect();
        buckets.sort_by_key(|(weight, bucket)| (Reverse(*weight), *bucket));
        let ns = source.ns.get(&cpu).copied().unwrap_or(0);
        Some(Self { device, source, number, cpu, ns, count: buckets.len(), buckets })
    }

    fn weight(&self) -> u64 {
        self.buckets.iter().map(|(weight, _)| weight).sum()
    }

    /// Whether another process, or irqbalance, decides about its line.
    fn is_of_another(&self) -> bool {
        matches!(self.source.held, Some(Held::LetGo | Held::Irqbalance | Held::Unmeasured))
    }

    fn is_at_home(&self) -> bool {
        let consumer = self.source.consumer();
        consumer.is_some_and(|(cpu, pct)| cpu == self.cpu && pct >= CONSUMER_PCT)
    }

    /// The buckets that bring at most this much, those that count most first; never all.
    fn pick_buckets(&self, most_ns: u64) -> (Vec<u32>, u64) {
        let all = self.weight();
        let most = (u128::from(most_ns) * u128::from(all) / u128::from(self.ns.max(1))) as u64;
        let (mut picked, mut weight) = (Vec::new(), 0_u64);
        for (of_bucket, bucket) in &self.buckets {
            if picked.len() + 1 < self.count && weight + of_bucket <= most {
                picked.push(*bucket);
                weight += of_bucket;
            }
        }
        picked.sort_unstable();
        (picked, (u128::from(self.ns) * u128::from(weight) / u128::from(all.max(1))) as u64)
    }
}

/// A change that could be made: the places of both queues, the buckets, and their time in ns.
struct Change {
    from: usize,
    to: usize,
    buckets: Vec<u32>,
    ns: u64,
    after_ns: u64,
}

/// Whether interrupts take so much of a CPU that a table might be changed.
pub(crate) fn is_hot(largest_ns: u64, interval_ns: u64) -> bool {
    largest_ns >= interval_ns / 100 * HOT_PCT
}

/// The changes of tables that level what was observed, and devices with a busy queue that stay as they
/// are. `targets` are the CPUs that take part.
pub(crate) fn plan_spreads(
    snapshot: &Snapshot,
    targets: &[u32],
) -> (Vec<Spread>, Vec<StayingTable>) {
    let mut loads = snapshot.loads();
    let mut made: Vec<Spread> = Vec::new();
    let mut stays: Vec<StayingTable> = Vec::new();
    let sources = snapshot.sources.iter();
    let mut queues: Vec<Queue<'_>> =
        sources.filter_map(|source| Queue::of(source, &snapshot.devices)).collect();
    drop_ambiguous(&mut queues);
    while made.len() < MOST_CHANGES {
        let load = |cpu: u32| loads.get(&cpu).copied().unwrap_or(0);
        let hottest = targets.iter().copied().max_by_key(|cpu| (load(*cpu), u32::MAX - cpu));
        let Some(hottest) = hottest.filter(|cpu| is_hot(load(*cpu), snapshot.interval_ns)) else {
            break;
        };
        let mut best: Option<Change> = None;
        let of_hottest = queues.iter().enumerate().filter(|(_, queue)| queue.cpu == hottest);
        for from in of_hottest.map(|(place, _)| place) {
            match find_change(&queues, from, &loads, targets, snapshot.interval_ns) {
                Ok(change) => {
                    if best.as_ref().is_none_or(|best| change.after_ns < best.after_ns) {
                        best = Some(change);
                    }
                }
                Err(Some(why)) if made.is_empty() => {
                    let device = &queues[from].device.name;
                    if !stays.iter().any(|known| known.device == *device) {
                        stays.push(StayingTable { device: device.clone(), why });
                    }
                }
                Err(_) => {}
            }
        }
        let Some(change) = best else { break };
        made.push(describe(&change, &queues, &loads, snapshot));
        let (from, to) = (queues[change.from].cpu, queues[change.to].cpu);
        if let Some(load) = loads.get_mut(&from) {
            *load = load.saturating_sub(change.ns);
        }
        if let Some(load) = loads.get_mut(&to) {
            *load += change.ns;
        }
        let moved = change.buckets.len();
        queues[change.to].count += moved;
        let queue = &mut queues[change.from];
        queue.ns = queue.ns.saturating_sub(change.ns);
        queue.count -= moved;
        queue.buckets.retain(|(_, bucket)| !change.buckets.contains(bucket));
    }
    stays.retain(|table| !made.iter().any(|step| step.device == table.device));
    (made, stays)
}

/// Drops devices of which two lines name the same queue: it is not known which one has it.
fn drop_ambiguous(queues: &mut Vec<Queue<'_>>) {
    let mut counts: BTreeMap<(String, u32), usize> = BTreeMap::new();
    for queue in queues.iter() {
        *counts.entry((queue.device.name.clone(), queue.number)).or_default() += 1;
    }
    counts.retain(|_, count| *count > 1);
    queues.retain(|queue| !counts.keys().any(|(device, _)| *device == queue.device.name));
}

/// The best change that takes from this queue; or why there is none, if that is to be said.
fn find_change(
    queues: &[Queue<'_>],
    from: usize,
    loads: &BTreeMap<u32, u64>,
    targets: &[u32],
    interval_ns: u64,
) -> Result<Change, Option<Unspread>> {
    let queue = &queues[from];
    let load = |cpu: u32| loads.get(&cpu).copied().unwrap_or(0);
    let largest_ns = load(queue.cpu);
    let margin_ns = margin_ns(interval_ns, largest_ns);
    if queue.ns < margin_ns || queue.is_of_another() {
        return Err(None);
    }
    if queue.device.table.is_empty() {
        return Err(Some(Unspread::NoTable));
    }
    if queue.is_at_home() {
        return Err(Some(Unspread::AtHome));
    }
    // It may be busy with what is in no bucket of its own: with sending, or with another's flows.
    if queue.count < 2 {
        return Err(Some(Unspread::OneBucket));
    }
    let others = queues.iter().enumerate().filter(|(_, other)| {
        let is_in_table = other.device.name == queue.device.name && other.count > 0;
        is_in_table && other.cpu != queue.cpu && targets.contains(&other.cpu)
    });
    let coolest = others.min_by_key(|(_, other)| (load(other.cpu), other.number));
    let (to, other) = coolest.ok_or(Some(Unspread::NoOtherQueue))?;
    let (buckets, ns) = queue.pick_buckets(largest_ns.saturating_sub(load(other.cpu)) / 2);
    let after_ns = largest_ns.saturating_sub(ns).max(load(other.cpu) + ns);
    if buckets.is_empty() || after_ns + margin_ns > largest_ns {
        return Err(Some(Unspread::NoGain));
    }
    Ok(Change { from, to, buckets, ns, after_ns })
}

fn describe(
    change: &Change,
    queues: &[Queue<'_>],
    loads: &BTreeMap<u32, u64>,
    snapshot: &Snapshot,
) -> Spread {
    let (from, to) = (&queues[change.from], &queues[change.to]);
    Spread {
        device: from.device.name.clone(),
        name: from.source.name.clone(),
        from_queue: from.number,
        to_queue: to.number,
        from: from.cpu,
        to: to.cpu,
        buckets: change.buckets.clone(),
        of_buckets: from.count,
        pct: snapshot.percent(change.ns),
        from_pct: snapshot.percent(loads.get(&from.cpu).copied().unwrap_or(0)),
        after_pct: snapshot.percent(change.after_ns),
    }
}

/// A change that was made, until a round shows what it did.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trial {
    /// The change.
    pub step: Spread,
    /// The part of the load of both CPUs that the larger of the two loads may have: halfway from what it
    /// was to what was expected.
    most: f64,
}

impl Trial {
    /// The trial of a change that is planned for this snapshot.
    pub fn new(step: &Spread, snapshot: &Snapshot) -> Self {
        let loads = snapshot.loads();
        let load = |cpu: u32| loads.get(&cpu).copied().unwrap_or(0);
        let moved_ns = (step.pct / 100.0 * snapshot.interval_ns as f64) as u64;
        let before = part_of_larger(load(step.from), load(step.to));
        let hoped =
            part_of_larger(load(step.from).saturating_sub(moved_ns), load(step.to) + moved_ns);
        Self { step: step.clone(), most: (before + hoped) / 2.0 }
    }

    /// What a later interval shows of the change.
    pub fn look(&self, snapshot: &Snapshot) -> Shown {
        let Spread { from_queue, to_queue, from, to, .. } = self.step;
        let (Some(one), Some(other)) =
            (self.line_of(from_queue, snapshot), self.line_of(to_queue, snapshot))
        else {
            return Shown::NoMore;
        };
        if one.home() != Some(from) || other.home() != Some(to) {
            return Shown::NoMore;
        }
        // What the CPUs do for others says nothing of these queues.
        if one.total_ns() + other.total_ns() < snapshot.interval_ns / 100 * LEAST_SEEN_PCT {
            return Shown::Nothing;
        }
        let loads = snapshot.loads();
        let load = |cpu: u32| loads.get(&cpu).copied().unwrap_or(0);
        if part_of_larger(load(from), load(to)) <= self.most {
            Shown::Levelled
        } else {
            Shown::NotLevelled
        }
    }

    fn line_of<'s>(&self, number: u32, snapshot: &'s Snapshot) -> Option<&'s Source> {
        snapshot.sources.iter().find(|source| {
            let is_line = matches!(source.id, SourceId::Line(_));
            let is_queue = source.queue == Some(number) && sysfs::is_for_receiving(&source.name);
            is_line && is_queue && source.device.as_deref() == Some(&*self.step.device)
        })
    }
}

/// What an interval shows of a change that is on trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// It has levelled the two CPUs.
    Levelled,
    /// It has not.
    NotLevelled,
    /// Nothing: hardly a packet came by the two queues.
    Nothing,
    /// Nothing any more: one of the queues has another CPU now.
    NoMore,
}

/// The part that the larger of two loads has of both, from 0.5 to 1.
fn part_of_larger(one: u64, other: u64) -> f64 {
    one.max(other) as f64 / (one + other).max(1) as f64
}
