//! Machine files: which are refused, and with which message; round trips of any machine; and a sysfs
//! with any content.

mod common;

use std::fs;

use common::{assert_rules, read, unpack};
use evenkeel_machine::{
    CoreType, Costs, Cpu, CpuSet, Error, Machine, Node, SpeedOrigin, SpeedSource, SpeedSources,
};
use proptest::prelude::*;

fn refusal(text: &str) -> String {
    match Machine::parse_toml(text, "m.toml") {
        Ok(_) => String::from("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn most_fields_of_a_file_have_defaults() {
    let machine = Machine::parse_toml("name = 'x'\nkinds = [{ cpus = '0-3' }]", "x").unwrap();
    assert_eq!((machine.cpus.len(), machine.nodes.len()), (4, 1));
    assert_eq!((machine.speed, machine.is_asymmetric()), (SpeedOrigin::Equal, false));
    assert_eq!(machine.llc_cpus(0).len(), 4);
    let text = "name = 'x'\nkinds = [{ cpus = '0', max_freq_khz = 2000 }, \
                { cpus = '1', max_freq_khz = 1000 }]";
    let machine = Machine::parse_toml(text, "x").unwrap();
    assert_eq!(machine.speed, SpeedOrigin::MaxFrequency);
    assert_eq!(machine.cpu(1).map(|cpu| cpu.capability), Some(512));
    let big = Machine::preset("server").unwrap().to_toml();
    let hybrid = read("intel-hybrid-lakefield").to_toml();
    assert!(hybrid.lines().count() < 15, "{hybrid}");
    assert!(big.lines().count() < 30 && big.lines().all(|line| line.len() <= 100), "{big}");
}

#[test]
fn wrong_files_are_refused_with_file_field_and_rule() {
    let head = "name = 'x'\nkinds = [{ cpus = '0-3' }]\n";
    for (tail, words) in [
        ("nodes = [{ id = 0, cpus = '0-2', distances = [10] }]", "nodes: CPUs 3 are in no node"),
        ("nodes = [{ id = 0, cpus = '0-4', distances = [10] }]", "nodes[0]: CPUs 4 are not in k"),
        (
            "nodes = [{ id = 0, cpus = '0-3', distances = [10, 20] }]",
            "nodes[0].distances: has 2 of 1 entries: give one a node",
        ),
        (
            "nodes = [{ id = 0, cpus = '0-3', distances = [20] }]",
            "nodes[0].distances: entry 0 is the node itself and must be 10",
        ),
        (
            "nodes = [{ id = 1, cpus = '0-3', distances = [10, 20] }, \
             { id = 1, cpus = '', distances = [20, 10] }]",
            "nodes[1].id: 1 does not ascend",
        ),
        (
            "nodes = [{ id = 0, cpus = '0-3', distances = [10, 9] }, \
             { id = 1, cpus = '', distances = [20, 10] }]",
            "nodes[0].distances: 9 is outside of 10..=255",
        ),
        (
            "nodes = [{ id = 0, cpus = '0-3', distances = [10, 20] }, \
             { id = 1, cpus = '3', distances = [20, 10] }]",
            "nodes[1]: CPUs 3 are in an earlier entry too",
        ),
        ("cores = ['0-1', '1-2']", "cores[1]: CPUs 1 are in an earlier entry too"),
        ("cores = ['']", "cores[0]: names no CPU"),
        ("cores = ['0-1']\nllcs = ['0,2', '1,3']", "cores[0]: CPUs 0-1 do not share one last"),
        ("llcs = ['8']", "llcs[0]: CPUs 8 are not in kinds"),
        ("offline = '0-3'", "kinds: no CPU is online"),
        ("offline = '9'", "offline: CPUs 9 are not in kinds"),
        ("isolated = 'x'", "\"x\" is not a CPU list"),
        ("speed = 'cppc'", "speed: says where capabilities come from, but no kind has one"),
        ("speed = 'fast'", "unknown variant `fast`"),
        ("colour = 'red'", "unknown field `colour`"),
        ("[", "TOML parse error at line 3"),
    ] {
        let error = refusal(&format!("{head}{tail}"));
        assert!(error.starts_with("machine file m.toml: ") && error.contains(words), "{error}");
    }
    for (kinds, words) in [
        ("", "kinds: no CPU is online"),
        ("{ cpus = '0', capability = 0 }", "kinds[0].capability: 0 is outside of 1..=1024"),
        ("{ cpus = '0', capability = 1025 }", "kinds[0].capability: 1025 is outside"),
        ("{ cpus = '0', capability = 512 }", "kinds: the fastest online CPU needs capability 1024"),
        ("{ cpus = '0', capability = 1024 }, { cpus = '1' }", "kinds[1].capability: is missing"),
        ("{ cpus = '0' }, { cpus = '0-1' }", "kinds[1]: CPUs 0 are in an earlier entry too"),
        ("{ cpus = '0', bogomips = nan }", "kinds[0].bogomips: is not above 0"),
        ("{ cpus = '0', cores = 3 }", "unknown field `cores`"),
        ("{ capability = 3 }", "missing field `cpus`"),
    ] {
        let error = refusal(&format!("name = 'x'\nkinds = [{kinds}]"));
        assert!(error.starts_with("machine file m.toml: ") && error.contains(words), "{error}");
    }
}

#[test]
fn a_file_on_disk_is_read_or_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("m.toml");
    assert!(matches!(Machine::from_toml(&path), Err(Error::Read { .. })));
    let machine = Machine::preset("amc3").unwrap();
    fs::write(&path, machine.to_toml()).unwrap();
    assert_eq!(Machine::from_toml(&path).unwrap(), machine);
    fs::write(&path, "name = 1").unwrap();
    let error = Machine::from_toml(&path).unwrap_err().to_string();
    assert!(error.contains("m.toml"), "{error}");
}

/// Random properties of a CPU: its core, cache and node, its state and its figures.
type Drawn =
    (u32, usize, bool, bool, u32, (Option<u32>, Option<u32>, Option<u64>, Option<f64>, u8));

fn drawn() -> impl Strategy<Value = Drawn> {
    let figures = (
        prop::option::of(1u32..),
        prop::option::of(1u32..),
        prop::option::of(1u64..1 << 62),
        prop::option::of(f64::MIN_POSITIVE..f64::MAX),
        0u8..4,
    );
    (0u32..20, 0usize..5, any::<bool>(), any::<bool>(), 1u32..=1024, figures)
}

/// Any machine: CPU numbers with gaps, cores of any size, two caches per node, nodes without CPUs.
fn machines() -> impl Strategy<Value = Machine> {
    let distances = prop::collection::vec(10u32..=255, 25);
    let memory = prop::collection::vec(prop::option::of(0u64..1 << 62), 5);
    let cpus = prop::collection::btree_map(0u32..300, drawn(), 1..40);
    ("\\PC{0,12}", cpus, distances, memory).prop_map(|(name, drawn, distances, memory)| {
        let set = |of: &dyn Fn(&Drawn) -> bool| -> CpuSet {
            drawn.iter().filter(|(_, drawn)| of(drawn)).map(|(id, _)| *id).collect()
        };
        let first = |set: &CpuSet| set.iter().next().unwrap_or_default();
        let nodes = (0..5).map(|at| {
            let mut row = distances[at * 5..at * 5 + 5].to_vec();
            row[at] = 10;
            let (cpus, memory_bytes) = (set(&|cpu| cpu.1 == at), memory[at]);
            Node { id: at as u32 * 7, cpus, memory_bytes, distances: row }
        });
        let cpus = drawn.iter().enumerate().map(|(at, (&id, cpu))| {
            let (core, node, offline, isolated, capability, figures) = *cpu;
            let (cpu_capacity, cppc_highest_perf, max_freq_khz, bogomips, kind) = figures;
            let energy_per_work = max_freq_khz.map(|khz| khz / 1000);
            let core_type = match kind {
                0 => None,
                1 => Some(CoreType::Performance),
                2 => Some(CoreType::Efficient),
                _ => Some(CoreType::LowPower),
            };
            let siblings = set(&|other| (other.0, other.1) == (core, node));
            Cpu {
                id,
                online: at == 0 || !offline,
                isolated,
                core: first(&siblings),
                // Of every third node nothing is known.
                l2: (node % 3 > 0).then(|| first(&siblings)),
                siblings,
                llc: first(&set(&|other| (other.0 % 2, other.1) == (core % 2, node))),
                node: node as u32 * 7,
                capability: if at == 0 { 1024 } else { capability },
                sources: SpeedSources {
                    cpu_capacity,
                    cppc_highest_perf,
                    max_freq_khz,
                    bogomips,
                    core_type,
                    energy_per_work,
                },
            }
        });
        let speed = SpeedOrigin::Calibrated;
        let costs =
            Costs { tick_ns: 1_000_000, switch_ns: u64::from(distances[0]), ..Costs::default() };
        Machine { name, speed, cpus: cpus.collect(), nodes: nodes.collect(), costs }
    })
}

proptest! {
    #[test]
    fn any_machine_round_trips(machine in machines()) {
        assert_rules(&machine);
    }

    #[test]
    fn any_source_keeps_the_rules(machine in machines()) {
        for source in [
            SpeedSource::Auto,
            SpeedSource::CpuCapacity,
            SpeedSource::Cppc,
            SpeedSource::MaxFrequency,
            SpeedSource::Bogomips,
        ] {
            if let Ok(machine) = machine.with_speed(&source) {
                assert_rules(&machine);
            }
        }
    }

    #[test]
    fn no_file_panics(
        text in "(name = 'x'\n)?(kinds|nodes|cores| = |\\[|\\]|\\{|cpus|'0-3'|,|\n){0,20}"
    ) {
        let _ = Machine::parse_toml(&text, "x");
    }
}

#[test]
fn no_sysfs_content_panics() {
    let content = prop_oneof![
        Just(None), // no such file
        "[-0-9a-f,x \n]{0,12}".prop_map(|text| Some(text.into_bytes())),
        prop::collection::vec(any::<u8>(), 0..12).prop_map(Some),
        "[0-9]{1,30}".prop_map(|text| Some(text.into_bytes())),
        (0u32..9, 0u32..9).prop_map(|(a, b)| Some(format!("{a},{b}\n").into_bytes())),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), content), 1..6);
    for name in ["intel-smt-nehalem", "fake-capacity-numa"] {
        let (root, files) = unpack(name);
        let mut runner = proptest::test_runner::TestRunner::default();
        let result = runner.run(&changes, |changes| {
            let mut before = Vec::new();
            for (file, content) in &changes {
                let file = file.get(&files);
                before.push((file, fs::read(file)));
                match content {
                    Some(content) => fs::write(file, content).unwrap(),
                    None => drop(fs::remove_file(file)),
                }
            }
            if let Ok(machine) = Machine::from_sysfs(root.path()) {
                assert_rules(&machine);
            }
            // In reverse, because the same file may have been changed twice.
            for (file, content) in before.into_iter().rev() {
                match content {
                    Ok(content) => fs::write(file, content).unwrap(),
                    Err(_) => drop(fs::remove_file(file)),
                }
            }
            Ok(())
        });
        assert!(result.is_ok(), "{name}: {result:?}");
    }
}
