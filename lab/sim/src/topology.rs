//! The distances between CPUs, in tables: cores, last-level caches, nodes (kernel: sched domains,
//! `ext_idle.c`).

use evenkeel_machine::{LOCAL_DISTANCE, Machine};

use crate::mask::Mask;

/// How far apart two CPUs are: how far a task migrated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The same CPU.
    Same,
    /// SMT siblings.
    Core,
    /// Cores that share the last-level cache.
    Cache,
    /// Caches of one node.
    Node,
    /// Two nodes: the number of distances of the machine that are smaller.
    Remote(u8),
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Same => f.write_str("same"),
            Self::Core => f.write_str("core"),
            Self::Cache => f.write_str("cache"),
            Self::Node => f.write_str("node"),
            Self::Remote(level) => write!(f, "remote{level}"),
        }
    }
}

/// Which CPUs share a core, a cache or a node. Offline CPUs are included.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    /// By CPU number; none: there is no such CPU.
    places: Vec<Option<Place>>,
    caches: Vec<Mask>,
    nodes: Vec<Mask>,
    /// By pairs of nodes: how much farther than the own node, in thousandths of the local distance.
    farther_milli: Vec<u64>,
    /// By pairs of nodes: how many distances are smaller.
    levels: Vec<u8>,
    has_smt: bool,
}

#[derive(Debug, Clone)]
struct Place {
    core: u32,
    siblings: Vec<u32>,
    cache: usize,
    node: usize,
    energy_rank: Option<u32>,
}

impl Topology {
    pub fn new(machine: &Machine) -> Self {
        let size = machine.cpus.iter().map(|cpu| cpu.id as usize + 1).max().unwrap_or_default();
        let mut topology = Self {
            places: vec![None; size],
            caches: Vec::new(),
            nodes: vec![Mask::EMPTY; machine.nodes.len()],
            farther_milli: Vec::new(),
            levels: Vec::new(),
            has_smt: false,
        };
        let ranks = machine.energy_ranks().map(|found| found.ranks).unwrap_or_default();
        let mut keys: Vec<(u32, u32)> = Vec::new();
        for cpu in &machine.cpus {
            let node =
                machine.nodes.iter().position(|node| node.id == cpu.node).unwrap_or_default();
            let key = (cpu.node, cpu.llc);
            let cache = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                keys.push(key);
                topology.caches.push(Mask::EMPTY);
                keys.len() - 1
            });
            topology.caches[cache].set(cpu.id);
            topology.nodes[node].set(cpu.id);
            let siblings: Vec<u32> = cpu.siblings.iter().collect();
            topology.has_smt |= siblings.len() > 1;
            let energy_rank = ranks.get(&cpu.id).copied();
            topology.places[cpu.id as usize] =
                Some(Place { core: cpu.core, siblings, cache, node, energy_rank });
        }
        let distances = machine.distance_levels();
        for node in &machine.nodes {
            for distance in &node.distances {
                let farther = u64::from(distance.saturating_sub(LOCAL_DISTANCE));
                topology.farther_milli.push(farther * 1000 / u64::from(LOCAL_DISTANCE));
                let smaller = distances.iter().filter(|other| *other < distance).count();
                topology.levels.push(smaller as u8);
            }
        }
        topology
    }

    /// All CPU numbers are below this.
    pub fn cpus(&self) -> usize {
        self.places.len()
    }

    /// Whether there is such a CPU.
    pub fn has(&self, cpu: u32) -> bool {
        self.place(cpu).is_some()
    }

    fn place(&self, cpu: u32) -> Option<&Place> {
        self.places.get(cpu as usize)?.as_ref()
    }

    pub fn has_smt(&self) -> bool {
        self.has_smt
    }

    /// The CPUs of its core, itself included.
    pub fn siblings(&self, cpu: u32) -> &[u32] {
        self.place(cpu).map_or(&[], |place| &place.siblings)
    }

    pub fn shares_cache(&self, a: u32, b: u32) -> bool {
        match (self.place(a), self.place(b)) {
            (Some(a), Some(b)) => a.cache == b.cache,
            _ => false,
        }
    }

    /// The CPUs that share its last-level cache.
    pub fn cache_mask(&self, cpu: u32) -> &Mask {
        self.place(cpu).map_or(&Mask::EMPTY, |place| &self.caches[place.cache])
    }

    /// The number of its core: that of the core's first CPU.
    pub fn core(&self, cpu: u32) -> Option<usize> {
        self.place(cpu).map(|place| place.core as usize)
    }

    /// The number of its last-level cache.
    pub fn cache(&self, cpu: u32) -> Option<usize> {
        self.place(cpu).map(|place| place.cache)
    }

    /// The number of last-level caches.
    pub fn caches(&self) -> usize {
        self.caches.len()
    }

    /// The CPUs of its node.
    pub fn node_mask(&self, cpu: u32) -> &Mask {
        self.place(cpu).map_or(&Mask::EMPTY, |place| &self.nodes[place.node])
    }

    /// Its node, by position in the machine.
    pub fn node(&self, cpu: u32) -> u32 {
        self.place(cpu).map_or(0, |place| place.node as u32)
    }

    /// Its place by the energy that its work needs, where known.
    pub fn energy_rank(&self, cpu: u32) -> Option<u32> {
        self.place(cpu)?.energy_rank
    }

    /// How much farther a node is than the CPU's own node, in thousandths of the local distance.
    pub fn farther_milli(&self, cpu: u32, node: u32) -> u64 {
        let at = self.node(cpu) as usize * self.nodes.len() + node as usize;
        self.farther_milli.get(at).copied().unwrap_or_default()
    }

    pub fn level(&self, from: u32, to: u32) -> Level {
        if from == to {
            return Level::Same;
        }
        let (Some(a), Some(b)) = (self.place(from), self.place(to)) else { return Level::Node };
        if a.core == b.core {
            Level::Core
        } else if a.cache == b.cache {
            Level::Cache
        } else if a.node == b.node {
            Level::Node
        } else {
            Level::Remote(self.levels[a.node * self.nodes.len() + b.node])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_distances_follow_the_machine() {
        let server = Topology::new(&Machine::preset("server").unwrap());
        assert_eq!(server.cpus(), 128);
        assert!(server.has_smt());
        for (to, level) in [
            (0, Level::Same),
            (64, Level::Core),
            (1, Level::Cache),
            (8, Level::Node),
            (32, Level::Remote(1)),
        ] {
            assert_eq!(server.level(0, to), level, "{to}");
        }
        assert_eq!(server.cache_mask(0).to_set().to_string(), "0-7,64-71");
        assert_eq!((server.farther_milli(0, 0), server.farther_milli(0, 1)), (0, 2200));
        let amc3 = Topology::new(&Machine::preset("amc3").unwrap());
        assert_eq!(amc3.level(0, 127), Level::Remote(5));
        assert_eq!(amc3.level(0, 4), Level::Remote(1));
        assert!(!amc3.has(128));
    }
}
