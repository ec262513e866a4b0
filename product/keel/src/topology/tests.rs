//! The topology of presets and of hand-made machines.

use evenkeel_machine::{CpuSet, PRESETS};

use super::*;

fn topology(machine: &Machine) -> Topology {
    Topology::new(machine, &Capacities::default()).unwrap()
}

fn cpus_of(topology: &Topology, range: RawRange) -> CpuSet {
    (range.first..range.first + range.count)
        .map(|position| u32::from(topology.cpu_at[usize::from(position)]))
        .collect()
}

/// The groups of a CPU's domain at a level.
fn groups(topology: &Topology, cpu: u32, level: usize) -> Vec<CpuSet> {
    let domain = topology.cpus[cpu as usize].domain[level];
    let first = usize::from(domain.first_range);
    let ranges = &topology.ranges[first..first + usize::from(domain.ranges)];
    ranges.iter().map(|range| cpus_of(topology, *range)).collect()
}

fn shown(topology: &Topology, cpu: u32) -> Vec<String> {
    (0..topology.levels as usize)
        .map(|level| {
            let groups = groups(topology, cpu, level);
            groups.iter().map(CpuSet::to_string).collect::<Vec<_>>().join(" / ")
        })
        .collect()
}

/// A domain that is larger than a node holds the nodes that are nearest, counted from the CPU on.
fn assert_nearest(machine: &Machine, cpu: u32, span: &CpuSet) {
    let node_of = |cpu: u32| machine.cpus.iter().find(|other| other.id == cpu).unwrap().node;
    let own = node_of(cpu);
    let is_larger = span.iter().any(|other| node_of(other) != own);
    let far = |other: u32| machine.distance(own, node_of(other)).unwrap();
    let farthest = span.iter().map(far).max().unwrap();
    for outside in machine.online().difference(span).iter().filter(|_| is_larger) {
        assert!(far(outside) > farthest, "CPU {outside} is nearer to CPU {cpu} than {span} is");
    }
}

/// What the keel relies on.
fn assert_rules(machine: &Machine, topology: &Topology) {
    let online = machine.online();
    for cpu in online.iter() {
        let raw = topology.cpus[cpu as usize];
        assert_eq!(u32::from(topology.cpu_at[usize::from(raw.position)]), cpu);
        let mut inside = CpuSet::new();
        for level in 0..topology.levels as usize {
            let groups = groups(topology, cpu, level);
            if groups.is_empty() {
                continue;
            }
            let own: Vec<&CpuSet> = groups.iter().filter(|group| group.contains(cpu)).collect();
            assert_eq!(own.len(), 1, "CPU {cpu} is in one group of its domain");
            if inside.is_empty() {
                assert_eq!(own[0].len(), 1, "the smallest domain is made of CPUs");
            }
            let span = groups.iter().fold(CpuSet::new(), |span, group| {
                assert!(span.intersection(group).is_empty(), "groups do not overlap");
                span.union(group)
            });
            assert!(inside.is_subset(&span) && inside != span, "domains grow");
            assert_eq!(usize::from(raw.domain[level].cpus), span.len());
            assert_nearest(machine, cpu, &span);
            inside = span;
        }
        assert!(online.len() == 1 || inside == online, "the largest domain holds all");
        let cache = usize::from(raw.cache);
        let shared = cpus_of(topology, topology.caches[cache]);
        let llc = |cpu: u32| machine.cpu(cpu).map(|cpu| (cpu.node, cpu.llc));
        for other in online.iter() {
            let shares = llc(other) == llc(cpu);
            assert_eq!(shared.contains(other), shares, "CPUs {cpu} and {other} share a cache");
        }
        let bits = topology.cache_cpus[cache];
        let bit = |cpu: &u32| bits[*cpu as usize / 64] >> (cpu % 64) & 1 == 1;
        assert_eq!((0..MAX_CPUS as u32).filter(bit).collect::<CpuSet>(), shared);
    }
    // From the CPUs of one to the memory of the other, whatever the way back is.
    let numbers = || machine.nodes.iter().map(|node| node.id);
    for from in numbers() {
        for to in numbers() {
            let told = topology.distances[to as usize * MAX_NODES + from as usize];
            assert_eq!(Some(u32::from(told)), machine.distance(from, to), "from {from} to {to}");
        }
    }
}

#[test]
fn every_preset_keeps_the_rules() {
    for name in PRESETS {
        let machine = Machine::preset(name).unwrap();
        assert_rules(&machine, &topology(&machine));
    }
}

#[test]
fn nodes_by_distance() {
    let machine = Machine::preset("amc3").unwrap();
    let topology = topology(&machine);
    let shown = shown(&topology, 5);
    assert_eq!(shown[..3], ["4 / 5 / 6 / 7", "0-3 / 4-7", "0-3 / 4-7 / 8-11 / 12-15"]);
    assert_eq!(topology.levels, 6);
    assert_eq!(topology.cpus[5].domain[5].cpus, 128);
    assert_eq!((topology.cpus[5].domain[0].shared, topology.cpus[5].domain[1].shared), (1, 0));
}

#[test]
fn cores_with_and_without_siblings() {
    let machine = Machine::preset("hybrid").unwrap();
    let topology = topology(&machine);
    assert_eq!(shown(&topology, 2)[0], "2 / 3");
    // Nothing to balance in a core of one CPU: the domain is empty, the level stays.
    assert_eq!(shown(&topology, 20)[0], "");
    assert!(shown(&topology, 20)[1].starts_with("0-1 / 2-3 / "));
    assert!(shown(&topology, 20)[1].ends_with(" / 22 / 23"));
    let has_smt = |name: &str| self::topology(&Machine::preset(name).unwrap()).smt;
    assert_eq!(["hybrid", "server", "amc3", "small"].map(has_smt), [true, true, false, false]);
}

#[test]
fn asymmetric_distances_and_many_levels() {
    // A one-way ring of twelve nodes, numbered in no order: eleven distances, more than there are
    // levels, and the way back is longer or shorter than the way there.
    let place = |node: u32| node * 5 % 12;
    let steps = |from: u32, to: u32| (place(to) + 12 - place(from)) % 12;
    let nodes: Vec<String> = (0..12_u32)
        .map(|from| {
            let distances = (0..12_u32).map(|to| (10 + steps(from, to)).to_string());
            let distances: Vec<String> = distances.collect();
            format!("{{ id = {from}, cpus = \"{from}\", distances = [{}] }}", distances.join(", "))
        })
        .collect();
    let text = format!(
        "name = \"ring\"\nkinds = [{{ cpus = \"0-11\", capability = 1024 }}]\nnodes = [{}]\n",
        nodes.join(", ")
    );
    let machine = Machine::parse_toml(&text, "ring").unwrap();
    let topology = topology(&machine);
    assert_eq!(topology.levels as usize, MAX_LEVELS);
    assert_rules(&machine, &topology);
    assert_eq!(machine.distance(4, 9), Some(11));
    assert_eq!(machine.distance(9, 4), Some(21));
    // The next node on the ring, not the previous one.
    assert_eq!(shown(&topology, 4)[..2], ["4 / 9", "2 / 4 / 9"]);
    assert_eq!(topology.cpus[0].domain[MAX_LEVELS - 1].cpus, 12);
}

#[test]
fn offline_cpus_are_left_out() {
    let mut machine = Machine::preset("small").unwrap();
    let last = machine.cpus.last_mut().unwrap();
    last.online = false;
    let gone = last.id;
    let topology = topology(&machine);
    assert_rules(&machine, &topology);
    assert!(!topology.cpu_at[..machine.online().len()].contains(&(gone as u16)));
    assert_eq!(topology.cpu_numbers, gone + 1);
}

#[test]
fn capacities_of_the_user_are_checked() {
    let machine = Machine::preset("small").unwrap();
    let why = Topology::new(&machine, &"0-99=512".parse().unwrap()).unwrap_err().to_string();
    assert!(why.contains("there is no such CPU"), "{why}");
}

#[test]
fn too_many_cpus_are_refused() {
    let text = "name = \"huge\"\nkinds = [{ cpus = \"0-1024\", capability = 1024 }]\n";
    let machine = Machine::parse_toml(text, "huge").unwrap();
    let why = Topology::new(&machine, &Capacities::default()).unwrap_err();
    assert_eq!(why, TopologyError::TooManyCpus { cpu: 1024 });
    let text = text.replace("1024\",", "1023\",");
    let machine = Machine::parse_toml(&text, "large").unwrap();
    assert_rules(&machine, &topology(&machine));
}

#[test]
fn a_node_without_room_is_not_taken_for_another() {
    let text = "name = \"sparse\"\nkinds = [{ cpus = \"0-1\", capability = 1024 }]\nnodes = [\n\
                { id = 0, cpus = \"0\", distances = [10, 20] },\n\
                { id = 64, cpus = \"1\", distances = [20, 10] },\n]\n";
    let topology = topology(&Machine::parse_toml(text, "sparse").unwrap());
    assert!(topology.distances.iter().all(|distance| *distance == 0), "nothing is known");
}
