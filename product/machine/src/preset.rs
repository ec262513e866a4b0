//! Presets: machines that come with evenkeel, as machine files in `presets/`. Those of paper 002, a few
//! common shapes, and one with measured costs.

use crate::error::Error;
use crate::machine::Machine;

/// The name and the file of every preset.
const FILES: [(&str, &str); 7] = [
    ("amc1", include_str!("../presets/amc1.toml")),
    ("amc2", include_str!("../presets/amc2.toml")),
    ("amc3", include_str!("../presets/amc3.toml")),
    ("small", include_str!("../presets/small.toml")),
    ("hybrid", include_str!("../presets/hybrid.toml")),
    ("server", include_str!("../presets/server.toml")),
    ("measured", include_str!("../presets/measured.toml")),
];

/// The names of the presets.
pub const PRESETS: [&str; FILES.len()] = {
    let mut names = [""; FILES.len()];
    let mut at = 0;
    while at < FILES.len() {
        names[at] = FILES[at].0;
        at += 1;
    }
    names
};

impl Machine {
    /// A machine that comes with evenkeel: one of [`PRESETS`].
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPreset`], which lists the names that there are.
    pub fn preset(name: &str) -> Result<Machine, Error> {
        let (_, text) = FILES.iter().find(|(known, _)| *known == name).ok_or_else(|| {
            Error::UnknownPreset { name: name.to_owned(), known: PRESETS.join(", ") }
        })?;
        Machine::parse_toml(text, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuset::CpuSet;
    use crate::speed::SpeedOrigin;

    #[test]
    fn unknown_names_list_the_known_ones() {
        let error = Machine::preset("amc4").unwrap_err().to_string();
        assert_eq!(
            error,
            "no machine preset \"amc4\": the presets are amc1, amc2, amc3, small, hybrid, server, \
             measured"
        );
    }

    #[test]
    fn the_machines_of_paper_002() {
        // Cores, nodes, and the sizes of the memory access level groups.
        for (name, cpus, nodes, groups) in [
            ("amc1", 32, 16, &[1, 16][..]),
            ("amc2", 64, 32, &[1, 8, 32]),
            ("amc3", 128, 32, &[1, 2, 4, 8, 16, 32]),
        ] {
            let machine = Machine::preset(name).unwrap();
            assert_eq!((machine.cpus.len(), machine.nodes.len()), (cpus, nodes), "{name}");
            assert_eq!(machine.online().len(), cpus);
            assert!(!machine.is_smt() && machine.is_asymmetric());
            let levels = machine.distance_levels();
            assert_eq!(levels.len(), groups.len(), "{name}");
            for node in &machine.nodes {
                let of = |wanted| {
                    move |cpu: &u32| {
                        Machine::cpu(wanted, *cpu).is_some_and(|cpu| cpu.capability == 1024)
                    }
                };
                let fast = node.cpus.iter().filter(of(&machine)).count();
                assert_eq!((fast * 2, node.cpus.len()), (cpus / nodes, cpus / nodes));
                for (level, size) in levels.iter().zip(groups) {
                    let near: Vec<usize> =
                        (0..nodes).filter(|to| node.distances[*to] <= *level).collect();
                    assert_eq!(near.len(), *size, "{name} node {} level {level}", node.id);
                    // Groups are aligned: all nodes of a group see the same group.
                    assert_eq!(near[0], node.id as usize / size * size);
                }
            }
            let slow: CpuSet =
                machine.cpus.iter().filter(|c| c.capability == 512).map(|c| c.id).collect();
            assert_eq!(slow.len() * 2, cpus);
            let node_1 = machine.node(1).unwrap();
            assert_eq!(machine.llc_cpus(node_1.cpus.iter().next().unwrap()), node_1.cpus);
        }
    }

    #[test]
    fn common_shapes() {
        let small = Machine::preset("small").unwrap();
        assert_eq!((small.cpus.len(), small.nodes.len()), (2, 1));
        assert!(!small.is_asymmetric() && !small.is_smt());
        assert_eq!(small.speed, SpeedOrigin::Equal);

        let hybrid = Machine::preset("hybrid").unwrap();
        assert_eq!((hybrid.cpus.len(), hybrid.online_cores()), (24, 16));
        assert!(hybrid.is_asymmetric() && hybrid.is_smt());
        assert_eq!(hybrid.cpu(15).unwrap().siblings.to_string(), "14-15");
        assert_eq!(hybrid.cpu(16).unwrap().siblings.to_string(), "16");
        assert_eq!(hybrid.llc_cpus(0).len(), 24);

        let server = Machine::preset("server").unwrap();
        assert_eq!((server.cpus.len(), server.online_cores()), (128, 64));
        assert!(!server.is_asymmetric() && server.is_smt());
        assert_eq!(server.cpu(0).unwrap().siblings.to_string(), "0,64");
        assert_eq!(server.node(1).unwrap().cpus.to_string(), "32-63,96-127");
        assert_eq!(server.llc_cpus(server.cpu(40).unwrap().llc).to_string(), "40-47,104-111");
        assert_eq!(server.distance(0, 1), Some(32));
        assert_eq!(server.distance(0, 2), None);
    }
}
