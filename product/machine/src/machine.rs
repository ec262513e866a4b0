//! The machine: its CPUs and NUMA nodes. Data only; other files make machines from a sysfs, a file or a
//! preset.

use serde::Serialize;

use crate::costs::Costs;
use crate::cpuset::CpuSet;
use crate::speed::{SpeedOrigin, SpeedSources};

/// The distance of a node to itself: the kernel's `LOCAL_DISTANCE`.
pub const LOCAL_DISTANCE: u32 = 10;
/// The distance to any other node where nothing is known: the kernel's `REMOTE_DISTANCE`.
pub const REMOTE_DISTANCE: u32 = 20;
/// The largest distance: firmware and kernel keep it in 8 bits.
pub const MAX_DISTANCE: u32 = 255;

/// A machine: all CPUs that are present (online or not) and all NUMA nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Its name in reports: the preset, the file's `name`, or the directory's name.
    pub name: String,
    /// Where the capabilities of the CPUs come from.
    pub speed: SpeedOrigin,
    /// The CPUs, ascending by id; at least one is online.
    pub cpus: Vec<Cpu>,
    /// The NUMA nodes, ascending by id; at least one.
    pub nodes: Vec<Node>,
    /// What scheduling costs, for simulations; a real machine has the defaults.
    pub costs: Costs,
}

/// A logical CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cpu {
    /// The kernel's number, 0..=[`crate::MAX_CPU`].
    pub id: u32,
    /// Whether it runs tasks at all.
    pub online: bool,
    /// Whether it was taken out of load balancing by the administrator (`isolcpus=` or an
    /// isolated cpuset partition): no task may be migrated to it unless its user asks.
    pub isolated: bool,
    /// The physical core: the lowest CPU of `siblings`, so unique in the machine.
    pub core: u32,
    /// The SMT siblings including this CPU. The kernel does not show the siblings of an offline CPU,
    /// so in a machine from sysfs it is alone in its core.
    pub siblings: CpuSet,
    /// The domain of the last-level cache: the lowest CPU that shares it, so unique in the machine.
    pub llc: u32,
    /// The domain of the level-2 cache: the lowest CPU that shares it; `None` if unknown.
    pub l2: Option<u32>,
    /// The id of its NUMA node.
    pub node: u32,
    /// Relative speed in 1..=[`crate::CAPABILITY_SCALE`], where the fastest online CPU has
    /// [`crate::CAPABILITY_SCALE`].
    pub capability: u32,
    /// The figures from which a capability can be computed.
    pub sources: SpeedSources,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The kernel's number; numbers need not be consecutive.
    pub id: u32,
    /// Its CPUs, offline ones included; empty for a node that is only memory.
    pub cpus: CpuSet,
    /// Its memory in bytes, where known.
    pub memory_bytes: Option<u64>,
    /// Distances to all nodes in the order of [`Machine::nodes`], each
    /// [`LOCAL_DISTANCE`]..=[`MAX_DISTANCE`]; [`LOCAL_DISTANCE`] to itself.
    pub distances: Vec<u32>,
}

impl Machine {
    /// The CPU with this id, if it is present.
    pub fn cpu(&self, id: u32) -> Option<&Cpu> {
        let index = self.cpus.binary_search_by_key(&id, |cpu| cpu.id).ok()?;
        self.cpus.get(index)
    }

    /// The node with this id.
    pub fn node(&self, id: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// All CPUs that are present.
    pub fn present(&self) -> CpuSet {
        self.cpus.iter().map(|cpu| cpu.id).collect()
    }

    /// The CPUs that run tasks.
    pub fn online(&self) -> CpuSet {
        self.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect()
    }

    /// The CPUs to which no task may be migrated unless its user asks.
    pub fn isolated(&self) -> CpuSet {
        self.cpus.iter().filter(|cpu| cpu.isolated).map(|cpu| cpu.id).collect()
    }

    /// The CPUs of a last-level cache domain ([`Cpu::llc`]); empty if there is no such domain.
    pub fn llc_cpus(&self, llc: u32) -> CpuSet {
        self.cpus.iter().filter(|cpu| cpu.llc == llc).map(|cpu| cpu.id).collect()
    }

    /// The number of physical cores with at least one CPU online.
    pub fn online_cores(&self) -> usize {
        let cores: CpuSet = self.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.core).collect();
        cores.len()
    }

    /// Whether two online CPUs share a core.
    pub fn is_smt(&self) -> bool {
        self.online_cores() < self.online().len()
    }

    /// Whether online CPUs differ in capability.
    pub fn is_asymmetric(&self) -> bool {
        let mut online = self.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.capability);
        let first = online.next();
        online.any(|capability| Some(capability) != first)
    }

    /// The distance from node `from` to node `to`, in [`LOCAL_DISTANCE`]..=[`MAX_DISTANCE`]; `None` if
    /// either does not exist.
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        let to = self.nodes.iter().position(|node| node.id == to)?;
        self.node(from)?.distances.get(to).copied()
    }

    /// The distinct distances between nodes in ascending order, the local one first: the memory
    /// access levels of paper 002.
    pub fn distance_levels(&self) -> Vec<u32> {
        let mut levels: Vec<u32> =
            self.nodes.iter().flat_map(|node| node.distances.iter().copied()).collect();
        levels.sort_unstable();
        levels.dedup();
        levels
    }
}
