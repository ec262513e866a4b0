//! Groups of CPUs that aggregate together: the paper's roles, and what people say instead.

use std::collections::BTreeMap;

use evenkeel_control::Request;
use evenkeel_machine::{Cpu, CpuSet, Machine};

use super::error::IasError;
use super::options::Mode;
use crate::layout::MAX_CPUS;

/// The largest role.
pub const MAX_ROLE: u16 = 2 * MAX_CPUS as u16 - 1;

/// The list of roles that a request has.
///
/// # Errors
/// It is no list of such numbers.
pub fn roles_of_request(request: &Request) -> Result<Vec<u16>, IasError> {
    let roles = request.args.get("roles").cloned().unwrap_or_default();
    serde_json::from_value(roles.clone()).map_err(|_| {
        let expected = "a list of numbers, one for each CPU";
        IasError::Value { name: "roles", value: roles.to_string(), expected }
    })
}

/// Checks the paper's list of roles: index is the CPU, 2k the master of group k, 2k + 1 a slave.
///
/// # Errors
/// It is not one role for each CPU that is online, or a group has no master or two.
pub fn allocation(machine: &Machine, roles: &[u16]) -> Result<BTreeMap<u32, u16>, IasError> {
    let online = machine.online();
    if roles.len() != online.len() {
        return Err(IasError::Count { given: roles.len(), cpus: online.len(), online });
    }
    let roles: BTreeMap<u32, u16> = online.iter().zip(roles.iter().copied()).collect();
    let mut masters = BTreeMap::new();
    for (cpu, role) in &roles {
        if *role > MAX_ROLE {
            let value = role.to_string();
            return Err(IasError::Value { name: "role", value, expected: "0 to 2047" });
        }
        if role % 2 == 0
            && let Some(first) = masters.insert(role / 2, *cpu)
        {
            return Err(IasError::TwoMasters { group: role / 2, first, second: *cpu });
        }
    }
    let orphan = roles.values().map(|role| role / 2).find(|group| !masters.contains_key(group));
    orphan.map_or(Ok(roles), |group| Err(IasError::NoMaster { group }))
}

/// The CPUs that are online, by what they have in common.
fn groups_by(machine: &Machine, common: impl Fn(&Cpu) -> u32) -> Vec<CpuSet> {
    let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for cpu in machine.cpus.iter().filter(|cpu| cpu.online) {
        groups.entry(common(cpu)).or_default().insert(cpu.id);
    }
    groups.into_values().collect()
}

/// The first CPU of each group is its master.
fn roles_of(groups: &[CpuSet]) -> BTreeMap<u32, u16> {
    let members = groups.iter().zip(0..).flat_map(|(cpus, group)| {
        cpus.iter().enumerate().map(move |(at, cpu)| (cpu, 2 * group + u16::from(at > 0)))
    });
    members.collect()
}

/// Of a last-level cache, so many CPUs are a group in the mode `rounds`: slaves see what their master
/// runs a slice late at most, and one master is not asked by a hundred slaves.
const MOST_CPUS: usize = 4;

/// The roles unless others are set. In the mode `paper` CPUs that share a last-level cache are a group.
/// In the mode `rounds` the cores of a level-2 cache are, if several share it, and otherwise at most
/// [`MOST_CPUS`] CPUs of a last-level cache.
pub fn default_roles(machine: &Machine, mode: Mode) -> BTreeMap<u32, u16> {
    let caches = groups_by(machine, |cpu| cpu.llc);
    match mode {
        Mode::Paper => roles_of(&caches),
        Mode::Rounds => {
            roles_of(&caches.iter().flat_map(|cache| parts_of(machine, cache)).collect::<Vec<_>>())
        }
    }
}

/// The groups in the mode `rounds` of CPUs that share a last-level cache.
fn parts_of(machine: &Machine, cache: &CpuSet) -> Vec<CpuSet> {
    let cpus = || machine.cpus.iter().filter(|cpu| cache.contains(cpu.id));
    let is_shared = |cpu: &Cpu| {
        cpu.l2.is_some() && cpus().any(|other| other.l2 == cpu.l2 && other.core != cpu.core)
    };
    let mut shared: BTreeMap<Option<u32>, CpuSet> = BTreeMap::new();
    for cpu in cpus().filter(|cpu| is_shared(cpu)) {
        shared.entry(cpu.l2).or_default().insert(cpu.id);
    }
    // CPUs of one core together.
    let mut others: Vec<&Cpu> = cpus().filter(|cpu| !is_shared(cpu)).collect();
    others.sort_by_key(|cpu| (cpu.core, cpu.id));
    let others = others.chunks(MOST_CPUS).map(|part| part.iter().map(|cpu| cpu.id).collect());
    shared.into_values().chain(others).collect()
}

/// What is left of roles while some of the CPUs are offline: a group without its master does nothing
/// together.
pub(super) fn present(roles: &BTreeMap<u32, u16>, online: &CpuSet) -> BTreeMap<u32, u16> {
    let here =
        || roles.iter().filter(|(cpu, _)| online.contains(**cpu)).map(|(cpu, role)| (*cpu, *role));
    let masters: Vec<u16> = here().map(|(_, role)| role).filter(|role| role % 2 == 0).collect();
    here().filter(|(_, role)| masters.contains(&(role & !1))).collect()
}

/// The roles that a list of groups means: `llc`, `l2`, `node`, or CPU lists with slashes in between.
///
/// # Errors
/// Nothing is known of a CPU's level-2 cache; or a CPU that is not online, is named twice or not at all.
pub fn grouped(machine: &Machine, text: &str) -> Result<Vec<u16>, IasError> {
    let wrong = |why: String| IasError::Groups { text: text.to_owned(), why };
    let groups = match text {
        "llc" => groups_by(machine, |cpu| cpu.llc),
        "l2" => {
            let unknown = |cpu: &&Cpu| cpu.online && cpu.l2.is_none();
            if let Some(Cpu { id, .. }) = machine.cpus.iter().find(unknown) {
                return Err(wrong(format!("nothing is known of the level-2 cache of CPU {id}")));
            }
            groups_by(machine, |cpu| cpu.l2.unwrap_or(cpu.id))
        }
        "node" => groups_by(machine, |cpu| cpu.node),
        lists => {
            let mut groups = Vec::new();
            let mut seen = CpuSet::new();
            for list in lists.split('/') {
                let cpus: CpuSet = list
                    .parse()
                    .map_err(|why: evenkeel_machine::CpuListError| wrong(why.to_string()))?;
                if let Some(cpu) = cpus.difference(&machine.online()).iter().next() {
                    return Err(wrong(format!("CPU {cpu} is not online")));
                }
                if let Some(cpu) = cpus.intersection(&seen).iter().next() {
                    return Err(wrong(format!("CPU {cpu} is in two groups")));
                }
                if cpus.is_empty() {
                    return Err(wrong("a group is empty".to_owned()));
                }
                seen = seen.union(&cpus);
                groups.push(cpus);
            }
            if let Some(cpu) = machine.online().difference(&seen).iter().next() {
                return Err(wrong(format!("CPU {cpu} is in no group")));
            }
            groups
        }
    };
    Ok(roles_of(&groups).into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine::preset("amc1").unwrap()
    }

    #[test]
    fn the_papers_two_groups_on_four_cpus() {
        let four = |machine: &mut Machine| {
            machine.cpus.iter_mut().for_each(|cpu| cpu.online = cpu.id < 4);
        };
        let mut machine = machine();
        four(&mut machine);
        let roles = allocation(&machine, &[0, 1, 2, 3]).unwrap();
        assert_eq!(roles, [(0, 0), (1, 1), (2, 2), (3, 3)].into());
        let why = |roles: &[u16]| allocation(&machine, roles).unwrap_err().to_string();
        assert_eq!(
            why(&[0, 1, 2]),
            "3 roles, but 4 CPUs are online (0-3): one number for each, in order"
        );
        assert_eq!(
            why(&[0, 1, 3, 3]),
            "role 3: group 1 has slaves but no master; give one of its CPUs role 2"
        );
        assert_eq!(
            why(&[0, 1, 0, 1]),
            "role 0: group 0 has two masters, CPUs 0 and 2; give all but one role 1"
        );
        assert_eq!(why(&[0, 1, 0xffff, 1]), "role \"65535\": expected 0 to 2047");
    }

    #[test]
    fn a_group_rests_while_its_master_is_offline() {
        let roles = [(0, 0), (1, 1), (2, 2), (3, 3)].into();
        let present = |online: &str| present(&roles, &online.parse().unwrap());
        assert_eq!(present("0-3"), roles);
        assert_eq!(present("0-1,3"), [(0, 0), (1, 1)].into());
        assert_eq!(present("0-2"), [(0, 0), (1, 1), (2, 2)].into());
        assert_eq!(present("1,3"), [].into());
    }

    #[test]
    fn more_groups_than_the_paper_had() {
        let machine = machine();
        let cpus = machine.online().len() as u16;
        let roles: Vec<u16> = (0..cpus).collect();
        assert_eq!(allocation(&machine, &roles).unwrap().len(), usize::from(cpus));
    }

    #[test]
    fn groups_by_their_cpus_or_by_what_they_share() {
        let machine = machine();
        let half = machine.online().len() as u32 / 2;
        let roles = grouped(&machine, &format!("0-{}/{half}-{}", half - 1, 2 * half - 1)).unwrap();
        assert_eq!(roles.len() as u32, 2 * half);
        assert_eq!(roles[..2], [0, 1]);
        assert_eq!(roles[half as usize..half as usize + 2], [2, 3]);
        for shared in ["llc", "node"] {
            assert!(allocation(&machine, &grouped(&machine, shared).unwrap()).is_ok());
        }
    }

    #[test]
    fn groups_by_level_2_cache() {
        let text = "name = \"quad\"\nllcs = [\"0-1\", \"2-3\"]\nl2s = [\"0,2\", \"1,3\"]\n\
                    kinds = [{ cpus = \"0-3\", capability = 1024 }]\n";
        let machine = Machine::parse_toml(text, "quad").unwrap();
        assert_eq!(grouped(&machine, "l2").unwrap(), [0, 2, 1, 3]);
        assert_eq!(grouped(&machine, "llc").unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn groups_by_default_are_caches_or_small_parts_of_them() {
        let roles = |shape: &str, mode| {
            let text = format!("name = \"some\"\n{shape}");
            let machine = Machine::parse_toml(&text, "some").unwrap();
            default_roles(&machine, mode).into_values().collect::<Vec<u16>>()
        };
        let six = "kinds = [{ cpus = \"0-5\", capability = 1024 }]\n";
        assert_eq!(roles(six, Mode::Paper), [0, 1, 1, 1, 1, 1]);
        assert_eq!(roles(six, Mode::Rounds), [0, 1, 1, 1, 2, 3]);
        // Two level-2 caches of two cores each, and two cores with caches of their own.
        let clusters = format!("l2s = [\"0,2\", \"1,3\", \"4\", \"5\"]\n{six}");
        assert_eq!(roles(&clusters, Mode::Rounds), [0, 2, 1, 3, 4, 5]);
        let caches = format!("llcs = [\"0-2\", \"3-5\"]\n{six}");
        for mode in Mode::ALL {
            assert_eq!(roles(&caches, mode), [0, 1, 1, 2, 3, 3]);
        }
        // Whatever the machine, the roles are valid.
        let machine = machine();
        let all: Vec<u16> = default_roles(&machine, Mode::Rounds).into_values().collect();
        assert!(allocation(&machine, &all).is_ok());
    }

    #[test]
    fn impossible_groups_are_named() {
        let mut machine = machine();
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = cpu.id < 4);
        for (text, expected) in [
            ("0-1/2-4", "CPU 4 is not online"),
            ("0-2/2-3", "CPU 2 is in two groups"),
            ("0-1/2", "CPU 3 is in no group"),
            ("0-3/", "groups \"0-3/\""),
            ("l3", "expected llc, l2, node, or CPUs like 0-3/4-7"),
            ("l2", "nothing is known of the level-2 cache of CPU 0; expected llc"),
        ] {
            let why = grouped(&machine, text).unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
        }
    }
}
