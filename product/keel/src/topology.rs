//! The machine as the keel sees it: CPUs in an order in which every core, cache and node is a
//! contiguous range, and for each CPU the domains that it belongs to, the smallest first.

use std::collections::BTreeMap;

use evenkeel_machine::{Cpu, Machine};

use crate::layout::{MAX_CPUS, MAX_LEVELS, MAX_NODES, MAX_RANGES, RawCpu, RawDomain, RawRange};
use crate::options::Capacities;

/// Levels below the distances between nodes: core, cache, node.
const LOCAL_LEVELS: usize = 3;
/// The levels among these with CPUs that share a cache: core and cache.
const SHARED_LEVELS: usize = 2;

/// Why the keel does not fit a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// More CPUs than the keel was built for.
    #[error(
        "CPU {cpu}: the keel was built for CPU numbers below {MAX_CPUS} (MAX_CPUS in bpf/keel/intf.h)"
    )]
    TooManyCpus {
        /// The highest CPU.
        cpu: u32,
    },
    /// A machine of more parts than the keel was built for.
    #[error(
        "the machine has more cores, caches and nodes than the keel was built for: {ranges} groups, \
         at most {MAX_RANGES} (MAX_RANGES in bpf/keel/intf.h)"
    )]
    TooManyGroups {
        /// The number of groups that it needs.
        ranges: usize,
    },
    /// A capacity for a CPU that is not there.
    #[error("capacity of CPU {cpu}: there is no such CPU; this machine has {present}")]
    NoSuchCpu {
        /// The CPU, as the user named it.
        cpu: u32,
        /// The CPUs of this machine.
        present: evenkeel_machine::CpuSet,
    },
}

/// The parts of `struct keel_topology`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    pub cpu_at: Vec<u16>,
    pub cpus: Vec<RawCpu>,
    pub ranges: Vec<RawRange>,
    /// By the numbers of two nodes; 0: unknown.
    pub distances: Vec<u8>,
    /// The CPUs of each last-level cache, by position.
    pub caches: Vec<RawRange>,
    /// The same, one bit for each CPU number.
    pub cache_cpus: Vec<[u64; MAX_CPUS / 64]>,
    /// Whether the domains of level 0 are cores of several hardware threads.
    pub smt: bool,
    /// Levels in use.
    pub levels: u32,
    /// CPU numbers are below this.
    pub cpu_numbers: u32,
    /// Positions are below this.
    pub online: u32,
}

/// The groups of a level, and which of them make up a domain.
struct Level {
    /// The range of each group.
    groups: Vec<RawRange>,
    /// The groups of each domain.
    domains: Vec<Vec<usize>>,
    /// The domain of each CPU, by position.
    domain_of: Vec<usize>,
    shared: bool,
}

impl Level {
    /// Whether there is anything to balance between.
    fn divides(&self) -> bool {
        self.domains.iter().any(|groups| groups.len() > 1)
    }
}

impl Topology {
    /// Orders and groups the online CPUs.
    ///
    /// # Errors
    /// [`TopologyError`]
    pub(crate) fn new(machine: &Machine, capacities: &Capacities) -> Result<Self, TopologyError> {
        for cpu in capacities.0.keys() {
            if machine.cpu(*cpu).is_none() {
                return Err(TopologyError::NoSuchCpu { cpu: *cpu, present: machine.present() });
            }
        }
        if let Some(cpu) = machine.cpus.iter().find(|cpu| cpu.id as usize >= MAX_CPUS) {
            return Err(TopologyError::TooManyCpus { cpu: cpu.id });
        }
        let mut online: Vec<&Cpu> = machine.cpus.iter().filter(|cpu| cpu.online).collect();
        online.sort_by_key(|cpu| (cpu.node, cpu.llc, cpu.core, cpu.id));

        let mut levels = local_levels(&online);
        let (caches, cache_of) = ranges(&online, &|cpu| (cpu.node, cpu.llc));
        let smt = levels.first().is_some_and(Level::divides);
        levels.retain(Level::divides);
        levels.extend(node_levels(machine, &online, MAX_LEVELS - levels.len()));
        let mut topology = Self {
            cpu_at: online.iter().map(|cpu| cpu.id as u16).collect(),
            cpus: vec![RawCpu::default(); MAX_CPUS],
            ranges: Vec::new(),
            distances: distances(machine),
            cache_cpus: vec![[0; MAX_CPUS / 64]; MAX_CPUS],
            caches,
            smt,
            levels: levels.len() as u32,
            online: online.len() as u32,
            cpu_numbers: machine.cpus.iter().map(|cpu| cpu.id + 1).max().unwrap_or(0),
        };
        for (position, cpu) in online.iter().enumerate() {
            if let Some(raw) = topology.cpus.get_mut(cpu.id as usize) {
                raw.position = position as u16;
                raw.node = cpu.node as u16;
                raw.cache = cache_of[position] as u16;
            }
            if let Some(bits) = topology.cache_cpus.get_mut(cache_of[position]) {
                bits[cpu.id as usize / 64] |= 1 << (cpu.id % 64);
            }
        }
        for (index, level) in levels.iter().enumerate() {
            topology.add_level(index, level)?;
        }
        topology.cpu_at.resize(MAX_CPUS, 0);
        topology.ranges.resize(MAX_RANGES, RawRange::default());
        topology.caches.resize(MAX_CPUS, RawRange::default());
        Ok(topology)
    }

    fn add_level(&mut self, index: usize, level: &Level) -> Result<(), TopologyError> {
        let mut raw = Vec::with_capacity(level.domains.len());
        for groups in &level.domains {
            let ranges = groups.iter().filter_map(|group| level.groups.get(*group));
            let cpus = ranges.clone().map(|range| range.count).sum();
            let domain = RawDomain {
                first_range: self.ranges.len() as u16,
                ranges: groups.len() as u16,
                cpus,
                shared: u16::from(level.shared),
            };
            // A single group is no domain: there is nothing to balance between.
            if groups.len() > 1 {
                self.ranges.extend(ranges);
                raw.push(domain);
            } else {
                raw.push(RawDomain::default());
            }
            if self.ranges.len() > MAX_RANGES {
                return Err(TopologyError::TooManyGroups { ranges: self.ranges.len() });
            }
        }
        for (position, domain) in level.domain_of.iter().enumerate() {
            let cpu = self.cpu_at.get(position).map(|cpu| usize::from(*cpu));
            let slot = cpu.and_then(|cpu| self.cpus.get_mut(cpu)?.domain.get_mut(index));
            if let (Some(slot), Some(domain)) = (slot, raw.get(*domain)) {
                *slot = *domain;
            }
        }
        Ok(())
    }
}

/// CPUs with the same key belong to the same group.
type Key = fn(&Cpu) -> (u32, u32, u32, u32);

/// CPUs in a core, cores in a cache, caches in a node.
fn local_levels(online: &[&Cpu]) -> Vec<Level> {
    // Firmware may report a cache that spans nodes; a group never spans them.
    let keys: [Key; LOCAL_LEVELS + 1] = [
        |cpu| (cpu.node, cpu.llc, cpu.core, cpu.id),
        |cpu| (cpu.node, cpu.llc, cpu.core, 0),
        |cpu| (cpu.node, cpu.llc, 0, 0),
        |cpu| (cpu.node, 0, 0, 0),
    ];
    keys.windows(2)
        .enumerate()
        .filter_map(|(level, pair)| {
            let [group_key, domain_key] = pair else { return None };
            let (groups, _) = ranges(online, group_key);
            let (spans, domain_of) = ranges(online, domain_key);
            let domains = spans
                .iter()
                .map(|span| {
                    let inside =
                        |range: &RawRange| range.first.wrapping_sub(span.first) < span.count;
                    (0..groups.len()).filter(|group| inside(&groups[*group])).collect()
                })
                .collect();
            Some(Level { groups, domains, domain_of, shared: level < SHARED_LEVELS })
        })
        .collect()
}

/// One level for each distance between nodes (paper 002's memory access levels), at most `room` levels.
/// A domain holds the nodes within that distance of a node.
fn node_levels(machine: &Machine, online: &[&Cpu], room: usize) -> Vec<Level> {
    let (groups, group_of) = ranges(online, &|cpu| (cpu.node, 0, 0, 0));
    let nodes: Vec<u32> = groups
        .iter()
        .filter_map(|range| online.get(usize::from(range.first)).map(|cpu| cpu.node))
        .collect();
    let mut distances: Vec<u32> = machine.distance_levels().into_iter().skip(1).collect();
    if nodes.len() < 2 {
        return Vec::new();
    }
    if distances.len() > room {
        // The largest distance holds all nodes; the distances just below it are dropped.
        distances.drain(room - 1..distances.len() - 1);
    }
    let mut levels: Vec<Level> = Vec::new();
    let mut reached: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for distance in distances {
        let is_within = |from: u32, to: u32| {
            from == to || machine.distance(from, to).is_some_and(|there| there <= distance)
        };
        let mut domains = Vec::with_capacity(nodes.len());
        for (from, reached) in nodes.iter().zip(&mut reached) {
            let domain: Vec<usize> =
                (0..nodes.len()).filter(|to| is_within(*from, nodes[*to])).collect();
            // A distance that adds no node gives this node no domain.
            domains.push(if domain == *reached { Vec::new() } else { domain.clone() });
            *reached = domain;
        }
        let (groups, domain_of) = (groups.clone(), group_of.clone());
        levels.push(Level { groups, domains, domain_of, shared: false });
    }
    levels.retain(Level::divides);
    levels
}

/// The distance of each node's memory from each node's CPUs. All are unknown where the number of a node
/// exceeds the table, because the keel would confuse that node with another.
fn distances(machine: &Machine) -> Vec<u8> {
    let mut table = vec![0; MAX_NODES * MAX_NODES];
    let numbers: Vec<usize> = machine.nodes.iter().map(|node| node.id as usize).collect();
    if numbers.iter().any(|number| *number >= MAX_NODES) {
        return table;
    }
    for node in &machine.nodes {
        let cpus_at = node.id as usize;
        for (memory_at, distance) in numbers.iter().zip(&node.distances) {
            let at = memory_at * MAX_NODES + cpus_at;
            if let Some(slot) = table.get_mut(at) {
                *slot = u8::try_from(*distance).unwrap_or(u8::MAX);
            }
        }
    }
    table
}

/// The ranges of CPUs with equal keys, and for each position the number of its range.
fn ranges<K: Ord>(online: &[&Cpu], key: &dyn Fn(&Cpu) -> K) -> (Vec<RawRange>, Vec<usize>) {
    let mut numbers: BTreeMap<K, usize> = BTreeMap::new();
    let mut ranges: Vec<RawRange> = Vec::new();
    let mut range_of = Vec::with_capacity(online.len());
    for (position, cpu) in online.iter().enumerate() {
        let number = *numbers.entry(key(cpu)).or_insert(ranges.len());
        match ranges.get_mut(number) {
            Some(range) => range.count += 1,
            None => ranges.push(RawRange { first: position as u16, count: 1 }),
        }
        range_of.push(number);
    }
    (ranges, range_of)
}

#[cfg(test)]
mod tests;
