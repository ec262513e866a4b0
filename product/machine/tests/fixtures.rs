//! The sysfs of real machines is read as these machines are.

#![allow(clippy::unwrap_used, reason = "a failing test helper shall panic")]

mod common;

use std::fs;
use std::path::Path;

use common::{assert_rules, read, unpack};
use evenkeel_machine::{
    CoreType, Cpu, EnergyOrigin, Error, Machine, PRESETS, SpeedOrigin, SpeedSource,
};

const FIXTURES: [&str; 7] = [
    "amd-numa-sparse",
    "arm-two-cores",
    "fake-capacity-numa",
    "intel-hybrid-lakefield",
    "intel-smt-nehalem",
    "offline-cpus",
    "power9-memory-nodes",
];

fn capabilities(machine: &Machine) -> Vec<u32> {
    machine.cpus.iter().map(|cpu| cpu.capability).collect()
}

fn cpu(machine: &Machine, id: u32) -> &Cpu {
    machine.cpus.iter().find(|cpu| cpu.id == id).unwrap_or(&machine.cpus[0])
}

#[test]
fn every_fixture_and_preset_keeps_the_rules() {
    for name in FIXTURES {
        assert_rules(&read(name));
    }
    for name in PRESETS {
        let machine = Machine::preset(name).unwrap();
        assert_eq!(machine.name, name);
        assert_rules(&machine);
    }
}

#[test]
fn intel_hybrid_lakefield_is_read() {
    let machine = read("intel-hybrid-lakefield");
    assert_eq!((machine.cpus.len(), machine.online_cores(), machine.nodes.len()), (5, 5, 1));
    assert!(machine.is_asymmetric() && !machine.is_smt());
    assert_eq!(machine.speed, SpeedOrigin::Cppc);
    // One P-core at highest_perf 43, four E-cores at 28.
    let by_cppc = capabilities(&machine);
    assert_eq!(by_cppc.iter().filter(|capability| **capability == 1024).count(), 1);
    assert_eq!(by_cppc.iter().filter(|capability| **capability == 667).count(), 4);
    // By frequency (3.0 and 2.8 GHz) they look almost equal.
    let by_frequency = capabilities(&machine.with_speed(&SpeedSource::MaxFrequency).unwrap());
    assert_eq!(by_frequency.iter().filter(|capability| **capability == 956).count(), 4);
    let by_bogomips = machine.with_speed(&SpeedSource::Bogomips).unwrap();
    assert!(!by_bogomips.is_asymmetric());
    assert!(matches!(
        machine.with_speed(&SpeedSource::CpuCapacity),
        Err(Error::SpeedMissing { cpu: 0, origin: SpeedOrigin::CpuCapacity, .. })
    ));
    assert_eq!(machine.llc_cpus(0).to_string(), "0-4");
    assert_eq!(machine.nodes[0].memory_bytes, Some(3_857_124 * 1024));
}

#[test]
fn newer_kernels_show_the_core_types_of_a_hybrid() {
    let (root, _) = unpack("intel-hybrid-lakefield");
    for (kind, cpus) in [("cpu_core", "4\n"), ("cpu_atom", "0-3\n")] {
        fs::create_dir_all(root.path().join("sys/devices").join(kind)).unwrap();
        fs::write(root.path().join("sys/devices").join(kind).join("cpus"), cpus).unwrap();
    }
    let machine = Machine::from_sysfs(root.path()).unwrap();
    assert_eq!(cpu(&machine, 4).sources.core_type, Some(CoreType::Performance));
    assert_eq!(cpu(&machine, 3).sources.core_type, Some(CoreType::Efficient));
    assert_rules(&machine);
}

/// Writes an energy model with one domain for CPUs 0 to 3 and one for CPU 4, each with a slower state
/// that does not count, and a device that is no CPU.
fn write_energy_model(root: &Path, costs: [u64; 2], performance: Option<u64>) {
    let model = root.join("sys/kernel/debug/energy_model");
    let state = |directory: &str, cost: u64| {
        let directory = model.join(directory);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("cost"), format!("{cost}\n")).unwrap();
        if let Some(performance) = performance {
            fs::write(directory.join("performance"), format!("{performance}\n")).unwrap();
        }
    };
    for (domain, cpus, cost) in [("cpu0", "0-3\n", costs[0]), ("cpu4", "4\n", costs[1])] {
        state(&format!("{domain}/ps:900000"), 1);
        state(&format!("{domain}/ps:3000000"), cost);
        fs::write(model.join(domain).join("cpus"), cpus).unwrap();
    }
    state("gpu/ps:500000", 3);
}

#[test]
fn the_energy_model_tells_what_work_costs() {
    let (root, _) = unpack("intel-hybrid-lakefield");
    assert_eq!(Machine::from_sysfs(root.path()).unwrap().energy_ranks(), None);
    write_energy_model(root.path(), [40, 100], Some(500));
    let machine = Machine::from_sysfs(root.path()).unwrap();
    assert_rules(&machine);
    assert_eq!(cpu(&machine, 4).sources.energy_per_work, Some(100));
    let found = machine.energy_ranks().unwrap();
    assert_eq!(found.origin, EnergyOrigin::Model);
    assert_eq!(found.ranks, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1)].into());

    // In older kernels the cost is that of the whole CPU: 40 for a quarter of the capacity is more than
    // 100 for all of it.
    let (root, _) = unpack("intel-hybrid-lakefield");
    write_energy_model(root.path(), [40, 100], None);
    for (cpu, capacity) in [(0, 256), (1, 256), (2, 256), (3, 256), (4, 1024)] {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity");
        fs::write(root.path().join(file), format!("{capacity}\n")).unwrap();
    }
    let machine = Machine::from_sysfs(root.path()).unwrap();
    assert_eq!(cpu(&machine, 0).sources.energy_per_work, Some(160));
    assert_eq!(machine.energy_ranks().unwrap().ranks[&4], 0);
}

#[test]
fn intel_smt_nehalem_is_read() {
    let machine = read("intel-smt-nehalem");
    assert_eq!((machine.cpus.len(), machine.online_cores(), machine.nodes.len()), (8, 4, 1));
    assert!(machine.is_smt() && !machine.is_asymmetric());
    assert_eq!(cpu(&machine, 5).siblings.to_string(), "1,5");
    assert_eq!((cpu(&machine, 5).core, cpu(&machine, 5).llc), (1, 0));
    // Only 5 of 8 CPUs have a frequency: no source is complete.
    assert_eq!(machine.speed, SpeedOrigin::Equal);
    assert!(machine.with_speed(&SpeedSource::MaxFrequency).is_err());
    // The firmware says 0.
    assert_eq!(machine.nodes[0].distances, [10]);
}

#[test]
fn cpus_of_an_offline_node_belong_to_another_node() {
    let machine = read("offline-cpus");
    assert_eq!((machine.cpus.len(), machine.online_cores()), (24, 17));
    assert_eq!(machine.online().to_string(), "4-20");
    assert!(machine.isolated().is_empty());
    assert!(!machine.is_smt() && !machine.is_asymmetric());
    // Node 0 is offline: its CPUs belong to the other node, but have a cache of their own.
    assert_eq!(machine.nodes.len(), 1);
    assert_eq!((machine.nodes[0].id, &machine.nodes[0].distances), (1, &vec![10]));
    assert_eq!(cpu(&machine, 4).node, 1);
    let llc = |id| machine.llc_cpus(cpu(&machine, id).llc);
    assert_eq!(llc(4).intersection(&machine.online()).to_string(), "4,6,8,10,12,14,16,18,20");
    assert_eq!(llc(5).intersection(&machine.online()).to_string(), "5,7,9,11,13,15,17,19");
}

#[test]
fn amd_numa_with_sparse_nodes_is_read() {
    let machine = read("amd-numa-sparse");
    assert_eq!((machine.cpus.len(), machine.online_cores(), machine.nodes.len()), (48, 48, 8));
    let ids: Vec<u32> = machine.nodes.iter().map(|node| node.id).collect();
    assert_eq!(ids, [0, 1, 2, 33, 34, 45, 72, 73]);
    assert_eq!(machine.distance_levels(), [10, 16, 22]);
    assert_eq!((machine.distance(0, 72), machine.distance(0, 33)), (Some(16), Some(22)));
    assert_eq!(machine.distance(0, 3), None);
    assert_eq!(cpu(&machine, 20).node, 33);
    assert_eq!(machine.llc_cpus(6).to_string(), "6-11");
    assert_eq!(machine.speed, SpeedOrigin::MaxFrequency);
    assert!(!machine.is_asymmetric() && !machine.is_smt());
    assert_eq!(machine.node(33).and_then(|node| node.memory_bytes), Some(16 << 30));
}

#[test]
fn amd_cppc_is_a_rank_and_not_read() {
    let (root, _) = unpack("amd-numa-sparse");
    for id in 0..48 {
        let cppc = root.path().join(format!("sys/devices/system/cpu/cpu{id}/acpi_cppc"));
        fs::create_dir_all(&cppc).unwrap();
        fs::write(cppc.join("highest_perf"), format!("{}\n", 166 + id)).unwrap();
    }
    let machine = Machine::from_sysfs(root.path()).unwrap();
    assert_eq!(machine.speed, SpeedOrigin::MaxFrequency);
    let error = machine.with_speed(&SpeedSource::Cppc).unwrap_err().to_string();
    assert!(error.contains("rank of preferred cores"), "{error}");
}

#[test]
fn power9_memory_nodes_have_no_cpus() {
    let machine = read("power9-memory-nodes");
    assert_eq!((machine.cpus.len(), machine.online_cores(), machine.nodes.len()), (32, 8, 8));
    assert_eq!(machine.online().to_string(), "0-15,88-103");
    assert!(machine.is_smt() && !machine.is_asymmetric());
    assert_eq!(cpu(&machine, 95).siblings.to_string(), "92-95");
    // Two cores share a last-level cache; this kernel shows only masks.
    assert_eq!(machine.llc_cpus(cpu(&machine, 95).llc).to_string(), "88-95");
    // The node's list goes up to 87; most of these CPUs are not present.
    assert_eq!(machine.nodes[0].cpus.to_string(), "0-15");
    let only_memory = machine.nodes.iter().filter(|node| node.cpus.is_empty());
    assert!(only_memory.clone().all(|node| node.memory_bytes == Some(15 << 30)));
    assert_eq!(only_memory.count(), 6);
    assert_eq!(machine.distance_levels(), [10, 40, 80]);
}

#[test]
fn cpu_capacity_comes_before_frequency() {
    let machine = read("fake-capacity-numa");
    assert_eq!((machine.cpus.len(), machine.online_cores(), machine.nodes.len()), (24, 12, 6));
    assert!(machine.is_asymmetric() && machine.is_smt());
    assert_eq!(machine.speed, SpeedOrigin::CpuCapacity);
    // 234 and 1025: scaled so that the fastest has 1024.
    assert_eq!((cpu(&machine, 0).capability, cpu(&machine, 12).capability), (234, 1024));
    assert_eq!(cpu(&machine, 12).sources.cpu_capacity, Some(1025));
    // Frequency says the opposite (3 and 2 GHz): capacity comes first.
    let by_frequency = machine.with_speed(&SpeedSource::MaxFrequency).unwrap();
    assert_eq!((cpu(&by_frequency, 0).capability, cpu(&by_frequency, 12).capability), (1024, 683));
    // CPUs 4-7 are in no node, 16-23 in several: the first takes them.
    let cpus: Vec<String> = machine.nodes.iter().map(|node| node.cpus.to_string()).collect();
    assert_eq!(cpus, ["0-7", "8-11", "", "20-23", "16-19", "12-15"]);
    assert_eq!(machine.distance_levels(), [10, 20, 30, 40, 50]);
}

#[test]
fn arm_without_caches_is_bounded_by_its_package() {
    let machine = read("arm-two-cores");
    assert_eq!((machine.cpus.len(), machine.online_cores(), machine.nodes.len()), (2, 2, 1));
    assert!(!machine.is_smt() && !machine.is_asymmetric());
    assert_eq!(machine.speed, SpeedOrigin::Equal);
    assert_eq!(cpu(&machine, 1).sources.bogomips, Some(1595.8));
    assert_eq!(machine.with_speed(&SpeedSource::Bogomips).unwrap().speed, SpeedOrigin::Bogomips);
    // No caches are known: the package bounds them. No nodes: one, with all memory.
    assert_eq!(machine.llc_cpus(0).to_string(), "0-1");
    assert_eq!(machine.nodes[0].memory_bytes, Some(280_840 * 1024));
}

#[test]
fn isolated_cpus_are_read_and_an_old_null_is_none() {
    let (root, _) = unpack("intel-smt-nehalem");
    let isolated = root.path().join("sys/devices/system/cpu/isolated");
    for (content, cpus) in [("2-3\n", "2-3"), ("(null)\n", ""), ("\n", "")] {
        fs::write(&isolated, content).unwrap();
        assert_eq!(Machine::from_sysfs(root.path()).unwrap().isolated().to_string(), cpus);
    }
}

#[test]
fn without_lists_the_directories_show_which_cpus_are_present() {
    let (root, _) = unpack("intel-smt-nehalem");
    let cpus = root.path().join("sys/devices/system/cpu");
    fs::remove_file(cpus.join("present")).unwrap();
    fs::remove_file(cpus.join("online")).unwrap();
    fs::write(cpus.join("cpu7/online"), "0\n").unwrap();
    let machine = Machine::from_sysfs(root.path()).unwrap();
    assert_eq!((machine.cpus.len(), machine.online().to_string().as_str()), (8, "0-6"));
    assert_rules(&machine);
}

#[test]
fn malformed_content_names_the_file_and_the_rule() {
    for (path, content, words) in [
        ("cpu/online", "0-x", "\"0-x\" is not a CPU list like 0-3,8"),
        ("cpu/cpu0/topology/thread_siblings_list", "0,a", "is not a CPU list"),
        ("cpu/cpu0/cache/index3/level", "three", "\"three\" is not a number"),
        ("cpu/cpu0/cpu_capacity", "4294967296", "is not a number below 2^32"),
        ("node/node0/distance", "10 far", "is not a row of distances like 10 20"),
        ("node/node0/meminfo", "Node 0 MemTotal: 5 MB", "is not like MemTotal: 1024 kB"),
    ] {
        let (root, _) = unpack("intel-smt-nehalem");
        let file = root.path().join("sys/devices/system").join(path);
        fs::write(&file, content).unwrap();
        let error = Machine::from_sysfs(root.path()).unwrap_err();
        assert!(matches!(&error, Error::Malformed { path, .. } if *path == file), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let (root, _) = unpack("fake-capacity-numa");
    fs::write(root.path().join("sys/devices/system/node/node0/cpumap"), "0x3").unwrap();
    let error = Machine::from_sysfs(root.path()).unwrap_err().to_string();
    assert!(error.contains("\"0x3\" is not a CPU mask like"), "{error}");
}

#[test]
fn an_empty_root_is_no_machine() {
    let root = tempfile::tempdir().unwrap();
    let error = Machine::from_sysfs(root.path()).unwrap_err();
    assert!(matches!(error, Error::NoCpus { .. }), "{error}");
}

#[test]
fn the_live_machine_keeps_the_rules() {
    let machine = Machine::from_sysfs("/".as_ref()).unwrap();
    assert_eq!(machine.name, "host");
    assert_rules(&machine);
}

/// Removes what the kernel does not show while a CPU is offline.
fn take_offline(root: &Path, cpu: u32, online: &str) {
    let cpus = root.join("sys/devices/system/cpu");
    fs::write(cpus.join("online"), online).unwrap();
    for directory in ["topology", "cache"] {
        fs::rename(cpus.join(format!("cpu{cpu}/{directory}")), root.join(directory)).unwrap();
    }
}

fn bring_online(root: &Path, cpu: u32, online: &str) {
    let cpus = root.join("sys/devices/system/cpu");
    fs::write(cpus.join("online"), online).unwrap();
    for directory in ["topology", "cache"] {
        fs::rename(root.join(directory), cpus.join(format!("cpu{cpu}/{directory}"))).unwrap();
    }
}

#[test]
fn a_cpu_that_comes_online_is_read_then() {
    let (root, _) = unpack("intel-hybrid-lakefield");
    let whole = Machine::from_sysfs(root.path()).unwrap();
    take_offline(root.path(), 4, "0-3\n");
    let without = Machine::from_sysfs(root.path()).unwrap();
    // The slow cores are the fastest that there are.
    assert_eq!(capabilities(&without)[..4], [1024; 4]);
    bring_online(root.path(), 4, "0-4\n");
    let again = without.read_again(root.path()).unwrap();
    assert_eq!(capabilities(&again), capabilities(&whole));
    assert_eq!((&again.name, again.speed), (&without.name, SpeedOrigin::Cppc));
    assert_rules(&again);

    // A speed that the user gave stays; a speed from another source is read again.
    let given = without.with_speed(&SpeedSource::Given([(0, 0.5), (4, 0.25)].into())).unwrap();
    let again = given.read_again(root.path()).unwrap();
    assert_eq!((capabilities(&again), again.speed), (capabilities(&given), SpeedOrigin::Given));
    let by_frequency = without.with_speed(&SpeedSource::MaxFrequency).unwrap();
    let again = by_frequency.read_again(root.path()).unwrap();
    assert_eq!(again.speed, SpeedOrigin::MaxFrequency);
    assert_eq!(capabilities(&again)[..4], [956; 4]);
}
