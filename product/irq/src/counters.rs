//! Loads and attaches `bpf/irq/irq.bpf.c`, and reads its sums.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use bytemuck::Pod;
use evenkeel_cbinfo::Unsupported;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel};

use crate::layout::{
    NET_RX, RawConsumerKey, RawInfo, RawLine, RawNapi, RawNapiKey, RawSoftirqs, SOFTIRQS,
};
use crate::totals::{LineTotals, NapiTotals, PerCpu, SoftirqTotals, Totals};

/// The kernel's directory of lines.
const LINES: &str = "/proc/irq";
/// 1 on kernels with PREEMPT_RT.
const REAL_TIME: &str = "/sys/kernel/realtime";
/// Lines that may appear while the programs run.
const SPARE_LINES: u32 = 256;
/// The program that sees which CPUs receive, for a kernel since 6.3.
const ON_RECEIVE: &str = "on_receive";

/// The object's bytes, aligned as an ELF file must be.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/irq.bpf.o")));

/// Why interrupts are not measured exactly.
#[derive(Debug, thiserror::Error)]
pub enum CountersError {
    /// Not possible on this kernel or for this user.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// Softirqs leave their CPU.
    #[error(
        "this kernel is built with PREEMPT_RT, where softirqs are threads: top shows their time"
    )]
    RealTime,
    /// libbpf or the kernel refused.
    #[error("irq: {what}: {source} (run again with -vv for the kernel's words)")]
    Bpf {
        /// The step that failed.
        what: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
    /// The BPF object is not what this version expects.
    #[error("irq: {0} in the BPF object is not what it should be: rebuild evenkeel")]
    Mismatch(&'static str),
}

fn bpf(what: &'static str) -> impl FnOnce(libbpf_rs::Error) -> CountersError {
    move |source| CountersError::Bpf { what, source }
}

/// Exact counters that run. Dropping them detaches all programs.
pub struct Counters {
    _links: Vec<Link>,
    /// Of the program that sees which CPUs receive; none: consumers are not watched.
    consumers_link: Option<Link>,
    lines: MapHandle,
    napis: MapHandle,
    infos: MapHandle,
    softirqs: MapHandle,
    /// None: consumers cannot be watched.
    consumers: Option<MapHandle>,
    object: Object,
}

impl Counters {
    /// Loads and attaches them. `can_watch_consumers`: also loads the program that sees on which CPU
    /// each NAPI instance's packets are received, which `watch_consumers` attaches. No kernel before 6.3
    /// has its tracepoint.
    ///
    /// # Errors
    /// All of [`CountersError`].
    pub fn open(can_watch_consumers: bool) -> Result<Self, CountersError> {
        evenkeel_cbinfo::support()?;
        if fs::read_to_string(REAL_TIME).is_ok_and(|text| text.trim() == "1") {
            return Err(CountersError::RealTime);
        }
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| {
            tracing::debug!("libbpf: {}", text.trim_end());
        })));
        let mut open = ObjectBuilder::default()
            .name("irq")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .map_err(bpf("opening the object"))?;
        for mut map in open.maps_mut().filter(|map| map.name() == "lines") {
            map.set_max_entries(count_lines() + SPARE_LINES).map_err(bpf("sizing the counters"))?;
        }
        for mut program in open.progs_mut().filter(|program| program.name() == ON_RECEIVE) {
            program.set_autoload(can_watch_consumers);
        }
        let object = open.load().map_err(bpf("loading the programs"))?;
        let mut links = Vec::new();
        // Exits before entries: an exit without its entry counts nothing.
        for is_entry in [false, true] {
            for program in object.progs_mut() {
                let name = program.name().to_string_lossy().into_owned();
                if name != ON_RECEIVE && name.ends_with("_entry") == is_entry {
                    links.push(program.attach().map_err(bpf("attaching to interrupts"))?);
                }
            }
        }
        Ok(Self {
            lines: map::<RawLine>(&object, "lines")?,
            napis: map::<RawNapi>(&object, "napis")?,
            infos: map::<RawInfo>(&object, "infos")?,
            softirqs: map::<RawSoftirqs>(&object, "softirqs")?,
            consumers: match can_watch_consumers {
                true => Some(map::<u64>(&object, "consumers")?),
                false => None,
            },
            _links: links,
            consumers_link: None,
            object,
        })
    }

    /// From now on sees on which CPUs packets are received. That costs something at each call that
    /// receives. Where it cannot be seen, nothing happens.
    ///
    /// # Errors
    /// The kernel refuses to attach the program.
    pub(crate) fn watch_consumers(&mut self) -> Result<(), CountersError> {
        if self.consumers.is_none() || self.consumers_link.is_some() {
            return Ok(());
        }
        for program in self.object.progs_mut().filter(|program| program.name() == ON_RECEIVE) {
            self.consumers_link = Some(program.attach().map_err(bpf("attaching to receptions"))?);
        }
        Ok(())
    }

    /// All sums since [`Counters::open`].
    ///
    /// # Errors
    /// The kernel refuses to show a map.
    pub(crate) fn read(&self) -> Result<Totals, CountersError> {
        let mut lines: BTreeMap<u32, LineTotals> = BTreeMap::new();
        for (line, cpus) in entries::<u32, RawLine>(&self.lines, "lines")? {
            let of = |field: fn(&RawLine) -> u64| cpus.iter().map(field).collect::<PerCpu>();
            let totals = LineTotals {
                interrupts: of(|raw| raw.handled),
                ns: of(|raw| raw.handler_ns + raw.softirq_ns),
            };
            lines.insert(line, totals);
        }
        let mut napis: BTreeMap<u64, NapiTotals> = BTreeMap::new();
        for (key, cpus) in entries::<RawNapiKey, RawNapi>(&self.napis, "napis")? {
            let of = |field: fn(&RawNapi) -> u64| cpus.iter().map(field).collect::<PerCpu>();
            let polls = of(|raw| raw.polls);
            let napi = napis.entry(key.napi).or_default();
            if let Some(line) = key.raiser.checked_sub(1) {
                *napi.raisers.entry(line).or_default() += polls.sum();
            }
            napi.polls += &polls;
            napi.packets += &of(|raw| raw.packets);
            napi.ns += &of(|raw| raw.softirq_ns);
        }
        for (address, napi) in &mut napis {
            if let Some(info) = lookup::<RawInfo>(&self.infos, &address.to_ne_bytes(), "infos")? {
                let length = info.device.iter().position(|byte| *byte == 0).unwrap_or(16);
                napi.device = String::from_utf8_lossy(&info.device[..length]).into_owned();
                napi.napi_id = info.napi_id as u32;
                napi.net_ns = info.net_ns;
                napi.thread = i32::try_from(info.thread).ok().filter(|thread| *thread > 0);
                napi.line = info.line.checked_sub(1);
            }
        }
        self.add_consumers(&mut napis)?;
        let cpus = self.softirqs()?;
        let softirqs = SoftirqTotals {
            ns: cpus.iter().map(|raw| raw.ns.iter().sum()).collect(),
            net_rx: cpus.iter().map(|raw| raw.runs[NET_RX % SOFTIRQS]).collect(),
        };
        Ok(Totals { lines, napis, softirqs })
    }
}

impl Counters {
    /// How long handlers and softirqs kept each CPU, in ns, since [`Counters::open`].
    ///
    /// # Errors
    /// The kernel refuses to show the map.
    pub(crate) fn busy_ns(&self) -> Result<PerCpu, CountersError> {
        let cpus = self.softirqs()?;
        Ok(cpus.iter().map(|raw| raw.ns.iter().sum::<u64>() + raw.handler_ns).collect())
    }

    /// The sums of each possible CPU.
    fn softirqs(&self) -> Result<Vec<RawSoftirqs>, CountersError> {
        let each = self.softirqs.lookup_percpu(&[0; 4], MapFlags::ANY);
        let each = each.map_err(bpf("reading the softirqs"))?.unwrap_or_default();
        each.iter()
            .map(|bytes| bytemuck::try_pod_read_unaligned::<RawSoftirqs>(bytes))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| CountersError::Mismatch("softirqs"))
    }

    /// Adds what each instance brought, by the CPUs that received it.
    fn add_consumers(&self, napis: &mut BTreeMap<u64, NapiTotals>) -> Result<(), CountersError> {
        let Some(consumers) = &self.consumers else { return Ok(()) };
        for key in distinct(consumers.keys(), consumers.max_entries()) {
            let Some(bytes) = lookup::<u64>(consumers, &key, "consumers")? else { continue };
            let key: RawConsumerKey = bytemuck::try_pod_read_unaligned(&key)
                .map_err(|_| CountersError::Mismatch("consumers"))?;
            for napi in napis.values_mut().filter(|napi| napi.napi_id == key.napi_id) {
                napi.received_bytes.add(key.cpu, bytes);
            }
        }
        Ok(())
    }
}

fn count_lines() -> u32 {
    fs::read_dir(Path::new(LINES)).map_or(0, |entries| entries.count() as u32)
}

/// A map of the object, with values of this type.
fn map<Value>(object: &Object, name: &'static str) -> Result<MapHandle, CountersError> {
    let found = object.maps().find(|map| map.name() == name);
    let handle = found.map(|map| MapHandle::try_from(&map)).transpose();
    let handle = handle.map_err(bpf("opening a map"))?.ok_or(CountersError::Mismatch(name))?;
    if handle.value_size() as usize != size_of::<Value>() {
        return Err(CountersError::Mismatch(name));
    }
    Ok(handle)
}

/// The keys of a hash with so many entries at most. An entry that is replaced meanwhile begins the walk
/// anew: no key counts twice, and it ends after twice as many.
fn distinct(keys: impl Iterator<Item = Vec<u8>>, entries: u32) -> BTreeSet<Vec<u8>> {
    keys.take(2 * entries as usize).collect()
}

/// The entries of a hash with values for each CPU.
fn entries<Key: Pod, Value: Pod>(
    map: &MapHandle,
    name: &'static str,
) -> Result<Vec<(Key, Vec<Value>)>, CountersError> {
    let mut entries = Vec::new();
    for key in distinct(map.keys(), map.max_entries()) {
        // Dropped from the hash since: it was the oldest.
        let Some(cpus) =
            map.lookup_percpu(&key, MapFlags::ANY).map_err(bpf("reading the counters"))?
        else {
            continue;
        };
        let read = |bytes: &Vec<u8>| bytemuck::try_pod_read_unaligned(bytes);
        let values = cpus.iter().map(read).collect::<Result<_, _>>();
        let key = bytemuck::try_pod_read_unaligned(&key);
        match (key, values) {
            (Ok(key), Ok(values)) => entries.push((key, values)),
            _ => return Err(CountersError::Mismatch(name)),
        }
    }
    Ok(entries)
}

fn lookup<Value: Pod>(
    map: &MapHandle,
    key: &[u8],
    name: &'static str,
) -> Result<Option<Value>, CountersError> {
    let found = map.lookup(key, MapFlags::ANY).map_err(bpf("reading the counters"))?;
    found
        .map(|bytes| bytemuck::try_pod_read_unaligned(&bytes))
        .transpose()
        .map_err(|_| CountersError::Mismatch(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_that_begins_anew_ends_and_counts_no_key_twice() {
        let keys = [vec![1], vec![2], vec![3]];
        let walked = distinct(keys.iter().cloned().cycle(), 3);
        assert_eq!(walked, BTreeSet::from(keys));
    }
}
