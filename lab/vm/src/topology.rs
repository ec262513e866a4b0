//! The guest's CPUs, hardware threads, NUMA nodes, distances and memory, as QEMU's arguments.

use std::ffi::OsString;

/// The hardware of a guest. All nodes are alike, and each node is one socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// NUMA nodes, at least 1.
    pub nodes: u32,
    /// Cores of a node, at least 1.
    pub cores_per_node: u32,
    /// Hardware threads of a core, at least 1.
    pub threads_per_core: u32,
    /// Memory of all nodes together, in MiB.
    pub memory_mib: u32,
    /// `distances[a][b]` as the kernel shows them (10: the same node); empty: 20 between any two nodes.
    pub distances: Vec<Vec<u8>>,
}

impl Topology {
    /// One node of single-threaded cores.
    pub fn flat(cpus: u32) -> Self {
        Self::numa(1, cpus)
    }

    /// Several nodes of single-threaded cores, all at the same distance from each other.
    pub fn numa(nodes: u32, cores_per_node: u32) -> Self {
        Self { nodes, cores_per_node, threads_per_core: 1, memory_mib: 2048, distances: Vec::new() }
    }

    /// A ring of nodes: each step along the ring adds 10 to the distance (10, 20, 30 with four nodes).
    pub fn ring(nodes: u32, cores_per_node: u32) -> Self {
        let steps = |a: u32, b: u32| {
            let apart = a.abs_diff(b);
            apart.min(nodes - apart)
        };
        let distance = |a, b| 10 * (steps(a, b) + 1).min(25) as u8;
        let row = |a| (0..nodes).map(|b| distance(a, b)).collect();
        Self { distances: (0..nodes).map(row).collect(), ..Self::numa(nodes, cores_per_node) }
    }

    /// The number of CPUs.
    pub fn cpus(&self) -> u32 {
        self.nodes * self.cpus_per_node()
    }

    fn cpus_per_node(&self) -> u32 {
        self.cores_per_node * self.threads_per_core
    }

    /// QEMU's arguments.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut words = vec![
            "-m".to_owned(),
            format!("{}M", self.memory_mib),
            "-smp".to_owned(),
            format!(
                "{},sockets={},cores={},threads={}",
                self.cpus(),
                self.nodes,
                self.cores_per_node,
                self.threads_per_core
            ),
        ];
        // With one node the guest has no NUMA at all, like most small machines.
        if self.nodes > 1 {
            let memory = self.memory_mib / self.nodes;
            for node in 0..self.nodes {
                let first = node * self.cpus_per_node();
                let last = first + self.cpus_per_node() - 1;
                words.push("-object".to_owned());
                words.push(format!("memory-backend-ram,id=memory{node},size={memory}M"));
                words.push("-numa".to_owned());
                words.push(format!("node,nodeid={node},cpus={first}-{last},memdev=memory{node}"));
            }
            for (a, row) in self.distances.iter().enumerate() {
                for (b, distance) in row.iter().enumerate().filter(|(b, _)| *b != a) {
                    words.push("-numa".to_owned());
                    words.push(format!("dist,src={a},dst={b},val={distance}"));
                }
            }
        }
        words.into_iter().map(OsString::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(topology: &Topology) -> String {
        let words: Vec<_> =
            topology.arguments().into_iter().map(|word| word.into_string().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn a_machine_of_one_node_has_no_numa() {
        assert_eq!(line(&Topology::flat(4)), "-m 2048M -smp 4,sockets=1,cores=4,threads=1");
    }

    #[test]
    fn hardware_threads_count_as_cpus_of_their_node() {
        let smt = Topology { threads_per_core: 2, ..Topology::numa(2, 2) };
        assert_eq!(smt.cpus(), 8);
        assert!(line(&smt).contains("-smp 8,sockets=2,cores=2,threads=2"), "{}", line(&smt));
        assert!(line(&smt).contains("nodeid=1,cpus=4-7,memdev=memory1"), "{}", line(&smt));
    }

    #[test]
    fn the_opposite_node_of_a_ring_is_the_farthest() {
        let ring = Topology::ring(4, 1);
        let row = |a: usize| ring.distances[a].clone();
        assert_eq!(row(0), [10, 20, 30, 20]);
        assert_eq!(row(3), [20, 30, 20, 10]);
        assert!(line(&ring).contains("-numa dist,src=0,dst=2,val=30"), "{}", line(&ring));
    }
}
