//! Unpacks the machines of `tests/fixtures/machines`, and the rules that every machine keeps.
#![allow(clippy::unwrap_used, reason = "a failing test helper shall panic")]

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_machine::{
    CAPABILITY_SCALE, CpuSet, LOCAL_DISTANCE, MAX_DISTANCE, Machine, SpeedOrigin,
};
use tempfile::TempDir;

/// Unpacks a fixture; gives the directory (which lives as long as the value) and its files.
pub fn unpack(name: &str) -> (TempDir, Vec<PathBuf>) {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/machines")
        .join(name)
        .with_extension("sysfs");
    let root = TempDir::with_prefix("machine-").unwrap();
    let mut files = Vec::new();
    for line in fs::read_to_string(packed).unwrap().lines() {
        let (path, content) = line.split_once('\t').unwrap();
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let content = content.replace("\\n", "\n").replace("\\0", "\0").replace("\\\\", "\\");
        fs::write(&path, content).unwrap();
        files.push(path);
    }
    (root, files)
}

/// Reads a fixture.
pub fn read(name: &str) -> Machine {
    Machine::from_sysfs(unpack(name).0.path()).unwrap()
}

/// Panics unless the machine keeps every rule that its documentation promises.
pub fn assert_rules(machine: &Machine) {
    let present = machine.present();
    assert!(machine.cpus.windows(2).all(|pair| pair[0].id < pair[1].id));
    assert!(machine.nodes.windows(2).all(|pair| pair[0].id < pair[1].id));
    let online = machine.cpus.iter().filter(|cpu| cpu.online);
    assert_eq!(online.map(|cpu| cpu.capability).max(), Some(CAPABILITY_SCALE));
    if machine.speed == SpeedOrigin::Equal {
        assert!(!machine.is_asymmetric());
    }
    for cpu in &machine.cpus {
        assert!((1..=CAPABILITY_SCALE).contains(&cpu.capability));
        assert!(cpu.siblings.contains(cpu.id));
        assert_eq!(cpu.siblings.iter().next(), Some(cpu.core));
        for sibling in cpu.siblings.iter() {
            assert_eq!(machine.cpu(sibling).unwrap().siblings, cpu.siblings);
        }
        let llc = machine.llc_cpus(cpu.llc);
        assert_eq!(llc.iter().next(), Some(cpu.llc));
        assert!(llc.contains(cpu.id) && cpu.siblings.is_subset(&llc));
        assert!(machine.node(cpu.node).unwrap().cpus.contains(cpu.id));
    }
    let mut placed = CpuSet::new();
    for (at, node) in machine.nodes.iter().enumerate() {
        assert!(placed.intersection(&node.cpus).is_empty());
        placed = placed.union(&node.cpus);
        assert_eq!(node.distances.len(), machine.nodes.len());
        assert_eq!(node.distances[at], LOCAL_DISTANCE);
        assert!(node.distances.iter().all(|d| (LOCAL_DISTANCE..=MAX_DISTANCE).contains(d)));
    }
    assert_eq!(placed, present);
    let text = machine.to_toml();
    assert_eq!(&Machine::parse_toml(&text, "round trip").unwrap(), machine, "{text}");
}
