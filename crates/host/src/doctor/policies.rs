//! Which of the keel's policies suit a machine: the rules of docs/choosing.md, as far as they go by the
//! machine and not by what runs on it.

use evenkeel_machine::Machine;

use super::Facts;
use super::check::{Check, CheckName};
use super::surroundings::has_room_for_the_keel;

/// Where the figures behind the rules are.
const FIGURES: &str = "docs/choosing.md";

/// What is recommended, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recommendation {
    /// The command.
    command: &'static str,
    /// What of the machine speaks for it.
    because: &'static str,
}

/// For this machine, by its CPUs that are online.
fn recommended(machine: &Machine) -> Recommendation {
    let online = || machine.cpus.iter().filter(|cpu| cpu.online);
    let differ = |of: fn(&evenkeel_machine::Cpu) -> u32| {
        let first = online().next().map(of);
        online().any(|cpu| Some(of(cpu)) != first)
    };
    match (differ(|cpu| cpu.capability), differ(|cpu| cpu.node)) {
        (true, true) => Recommendation {
            command: "evenkeel sched --balance capability --parts home,cost,active",
            because: "its CPUs are not equally fast, and its memory is in nodes",
        },
        (true, false) => Recommendation {
            command: "evenkeel sched --balance capability",
            because: "its CPUs are not equally fast",
        },
        (false, _) => Recommendation {
            command: "evenkeel sched",
            because: "its CPUs are equally fast, so that the plain policies lose nothing",
        },
    }
}

/// The check of this concern; none where the keel cannot be loaded.
pub(super) fn check(facts: &Facts) -> Option<Check> {
    let machine = facts.machine.as_ref().ok().filter(|_| has_room_for_the_keel(facts))?;
    let Recommendation { command, because } = recommended(machine);
    Some(Check::ok(CheckName::Policies, format!("{command}: {because} ({FIGURES})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(machine: &Machine) -> &'static str {
        recommended(machine).command
    }

    #[test]
    fn each_kind_of_machine_has_its_own() {
        for (name, expected) in [
            ("small", "evenkeel sched"),
            // Two nodes, all of one kind.
            ("server", "evenkeel sched"),
            ("hybrid", "evenkeel sched --balance capability"),
            ("amc1", "evenkeel sched --balance capability --parts home,cost,active"),
            ("amc2", "evenkeel sched --balance capability --parts home,cost,active"),
            ("amc3", "evenkeel sched --balance capability --parts home,cost,active"),
        ] {
            assert_eq!(command(&Machine::preset(name).unwrap()), expected, "{name}");
        }
    }

    #[test]
    fn only_what_is_online_counts() {
        let mut machine = Machine::preset("amc1").unwrap();
        let fast = |cpu: &evenkeel_machine::Cpu| cpu.capability == 1024;
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = fast(cpu));
        assert_eq!(command(&machine), "evenkeel sched");
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = cpu.node == 0);
        assert_eq!(command(&machine), "evenkeel sched --balance capability");
    }
}
