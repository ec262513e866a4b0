//! Which buckets of an RSS indirection table lead to the queue of the CPU that receives what they bring,
//! with the aim `source-aware`: a line takes all flows of its queue along, and here single flows of it
//! are received elsewhere. Pure: no I/O, no clock.
//!
//! 1. A bucket is moved if most of what it brings (`CONSUMER_PCT`) is received on one CPU, and arrives
//!    by the queue that the table has for it. Where it arrives by another one, the card hashes otherwise
//!    than is assumed, and the bucket stays.
//! 2. It goes to a queue of the same card of which the line is on that CPU. A queue without a bucket
//!    gets none, because an administrator has taken it out of the table; no queue loses its last one.
//! 3. Buckets that go from one queue to the same other one are moved together, if what they bring takes
//!    at least `MARGIN_PCT` of a CPU, and if interrupts would not fill the other CPU.
//!
//! Whether the packets arrive by the other queue is seen afterwards (`spread::Trial`): some drivers
//! accept a table and do not use it. A packet of a moved flow may once overtake one that still is in its
//! queue of before.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::margin::{CONSUMER_PCT, FULL_PCT, MARGIN_PCT};
use crate::reason::Reason;
use crate::snapshot::{Device, Snapshot, Source, SourceId};
use crate::spread::Spread;
use crate::sysfs;

/// The line of a receive queue.
struct Line<'a> {
    source: &'a Source,
    cpu: u32,
}

/// Buckets that go from one queue to the same other one.
#[derive(Default)]
struct Group {
    /// What each brings, in ns, and its number.
    buckets: Vec<(u64, u32)>,
}

impl Group {
    fn ns(&self) -> u64 {
        self.buckets.iter().map(|(ns, _)| ns).sum()
    }
}

/// The changes of tables that bring flows to their consumers, those that take most first. `targets` are
/// the CPUs that take part.
pub(crate) fn follow(snapshot: &Snapshot, targets: &[u32]) -> Vec<Spread> {
    let least_ns = snapshot.interval_ns / 100 * MARGIN_PCT;
    let mut loads = snapshot.loads();
    let mut steps = Vec::new();
    for device in snapshot.devices.iter().filter(|device| !device.received.is_empty()) {
        let Some(lines) = lines(device, &snapshot.sources) else { continue };
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        device.table.iter().for_each(|queue| *counts.entry(*queue).or_default() += 1);
        let mut groups: Vec<_> = groups(device, &lines, targets).into_iter().collect();
        groups.sort_by_key(|(queues, group)| (Reverse(group.ns()), *queues));
        for ((from_queue, to_queue), mut group) in groups {
            let (Some(from), Some(to)) = (lines.get(&from_queue), lines.get(&to_queue)) else {
                continue;
            };
            let of_buckets = counts.get(&from_queue).copied().unwrap_or(0);
            // The last bucket of a queue stays: that which brings least.
            group.buckets.sort_by_key(|(ns, bucket)| (Reverse(*ns), *bucket));
            group.buckets.truncate(of_buckets.saturating_sub(1));
            let load = |cpu: u32| loads.get(&cpu).copied().unwrap_or(0);
            let ns = group.ns();
            let (from_ns, to_ns) = (load(from.cpu), load(to.cpu) + ns);
            let is_little = group.buckets.is_empty() || ns < least_ns;
            if is_little || snapshot.percent(to_ns) > FULL_PCT {
                continue;
            }
            let left_ns = from_ns.saturating_sub(ns);
            let mut buckets: Vec<u32> = group.buckets.iter().map(|(_, bucket)| *bucket).collect();
            buckets.sort_unstable();
            *counts.entry(from_queue).or_default() -= buckets.len();
            *counts.entry(to_queue).or_default() += buckets.len();
            loads.insert(from.cpu, left_ns);
            loads.insert(to.cpu, to_ns);
            steps.push(Spread {
                device: device.name.clone(),
                name: from.source.name.clone(),
                from_queue,
                to_queue,
                from: from.cpu,
                to: to.cpu,
                reason: Reason::Source,
                buckets,
                of_buckets,
                pct: snapshot.percent(ns),
                from_pct: snapshot.percent(from_ns),
                after_pct: snapshot.percent(left_ns.max(to_ns)),
            });
        }
    }
    steps
}

/// The line of each receive queue of a device; `None`: two lines name the same queue, so that it is not
/// known which one has it.
fn lines<'a>(device: &Device, sources: &'a [Source]) -> Option<BTreeMap<u32, Line<'a>>> {
    let mut lines = BTreeMap::new();
    for source in sources {
        let is_of_queue = matches!(source.id, SourceId::Line(_))
            && source.device.as_ref() == Some(&device.name)
            && sysfs::is_for_receiving(&source.name);
        let place = source.queue.zip(source.home()).filter(|_| is_of_queue);
        let Some((queue, cpu)) = place else { continue };
        if lines.insert(queue, Line { source, cpu }).is_some() {
            return None;
        }
    }
    Some(lines)
}

/// The buckets that are received elsewhere, by the queue that has them and the one that they go to.
fn groups(
    device: &Device,
    lines: &BTreeMap<u32, Line<'_>>,
    targets: &[u32],
) -> BTreeMap<(u32, u32), Group> {
    let queue_of = |bucket: u32| device.table.get(bucket as usize).copied();
    let mut brought: BTreeMap<u32, u64> = BTreeMap::new();
    for (bucket, received) in &device.received {
        if let Some(queue) = queue_of(*bucket) {
            *brought.entry(queue).or_default() += received.bytes();
        }
    }
    let mut groups: BTreeMap<(u32, u32), Group> = BTreeMap::new();
    for (bucket, received) in &device.received {
        let Some(from_queue) = queue_of(*bucket) else { continue };
        let Some(from) = lines.get(&from_queue) else { continue };
        let Some((cpu, share_pct)) = received.consumer() else { continue };
        let is_clear = share_pct >= CONSUMER_PCT && received.share_pct(from_queue) >= CONSUMER_PCT;
        let is_movable = cpu != from.cpu && targets.contains(&cpu) && !from.source.is_of_another();
        if !is_clear || !is_movable {
            continue;
        }
        let is_there =
            |(queue, line): &(&u32, &Line<'_>)| line.cpu == cpu && device.table.contains(queue);
        let Some((to_queue, _)) = lines.iter().find(is_there) else { continue };
        let all = u128::from(brought.get(&from_queue).copied().unwrap_or(0).max(1));
        let queue_ns = from.source.ns.get(&from.cpu).copied().unwrap_or(0);
        let ns = (u128::from(queue_ns) * u128::from(received.bytes()) / all) as u64;
        groups.entry((from_queue, *to_queue)).or_default().buckets.push((ns, *bucket));
    }
    groups
}
