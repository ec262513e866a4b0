//! Which of the keel's policies suit a machine: the rules of docs/choosing.md, as far as they go by the
//! machine and not by what runs on it.

use evenkeel_machine::Machine;

use super::Facts;
use super::check::{Check, CheckName};
use super::surroundings::has_room_for_the_keel;

/// Where the figures behind the rules are.
const FIGURES: &str = "docs/choosing.md";

/// What is recommended, and why: an answer to each of the three questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recommendation {
    /// `--balance`, with its parts: the answer that goes by the machine.
    balance: &'static str,
    /// What of the machine speaks for it.
    because: &'static str,
}

/// The answers that go by what runs and not by the machine: the plain ones, and where others pay.
const PLAIN: &str = "--order fair --gate always";
const OTHERS: &str = "--order ias and --gate zone pay with some loads only";

impl Recommendation {
    fn command(self) -> String {
        format!("evenkeel sched {PLAIN} --balance {}", self.balance)
    }
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
            balance: "capability --parts home,cost,active",
            because: "its CPUs are not equally fast, and its memory is in nodes",
        },
        (true, false) => {
            Recommendation { balance: "capability", because: "its CPUs are not equally fast" }
        }
        (false, _) => Recommendation {
            balance: "count",
            because: "its CPUs are equally fast, so that counting tasks loses nothing",
        },
    }
}

/// The check of this concern; none where the keel cannot be loaded.
pub(super) fn check(facts: &Facts) -> Option<Check> {
    let machine = facts.machine.as_ref().ok().filter(|_| has_room_for_the_keel(facts))?;
    let recommended = recommended(machine);
    let (command, because) = (recommended.command(), recommended.because);
    Some(Check::ok(CheckName::Policies, format!("{command}: {because}; {OTHERS} ({FIGURES})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balance(machine: &Machine) -> &'static str {
        recommended(machine).balance
    }

    #[test]
    fn all_three_questions_are_answered() {
        let command = recommended(&Machine::preset("hybrid").unwrap()).command();
        assert_eq!(command, "evenkeel sched --order fair --gate always --balance capability");
    }

    #[test]
    fn each_kind_of_machine_has_its_own() {
        for (name, expected) in [
            ("small", "count"),
            // Two nodes, all of one kind.
            ("server", "count"),
            ("hybrid", "capability"),
            ("amc1", "capability --parts home,cost,active"),
            ("amc2", "capability --parts home,cost,active"),
            ("amc3", "capability --parts home,cost,active"),
        ] {
            assert_eq!(balance(&Machine::preset(name).unwrap()), expected, "{name}");
        }
    }

    #[test]
    fn only_what_is_online_counts() {
        let mut machine = Machine::preset("amc1").unwrap();
        let fast = |cpu: &evenkeel_machine::Cpu| cpu.capability == 1024;
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = fast(cpu));
        assert_eq!(balance(&machine), "count");
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = cpu.node == 0);
        assert_eq!(balance(&machine), "capability");
    }
}
