//! Which of the keel's policies suit this machine: the rules of docs/choosing.md that depend on the
//! machine and not on the programs.

use evenkeel_machine::Machine;

use super::check::{Check, CheckName};
use super::facts::Facts;

/// The page with the figures behind the rules.
const FIGURES: &str = "docs/choosing.md";

/// A recommendation for `--balance`, and its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recommendation {
    /// The value of `--balance`, with its parts.
    balance: &'static str,
    /// The property of the machine that it follows from.
    because: &'static str,
}

/// The two answers that depend on the programs and not on the machine.
const PLAIN: &str = "--order fair --gate always";
const OTHERS: &str = "--order ias and --gate zone help with some programs only";

impl Recommendation {
    fn command(self) -> String {
        format!("evenkeel sched {PLAIN} --balance {}", self.balance)
    }
}

/// The recommendation for a machine, by its online CPUs.
fn recommended(machine: &Machine) -> Recommendation {
    let online = || machine.cpus.iter().filter(|cpu| cpu.online);
    let differ = |of: fn(&evenkeel_machine::Cpu) -> u32| {
        let first = online().next().map(of);
        online().any(|cpu| Some(of(cpu)) != first)
    };
    match (differ(|cpu| cpu.capability), differ(|cpu| cpu.node)) {
        (true, true) => Recommendation {
            balance: "capability --parts home,cost,active",
            because: "its CPUs are not equally fast, and it has several NUMA nodes",
        },
        (true, false) => {
            Recommendation { balance: "capability", because: "its CPUs are not equally fast" }
        }
        (false, _) => Recommendation { balance: "count", because: "its CPUs are equally fast" },
    }
}

/// The check; none where the keel cannot be loaded.
pub(super) fn check(facts: &Facts) -> Option<Check> {
    let machine = facts.machine.as_ref().ok().filter(|_| facts.allow_the_keel())?;
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
    fn a_recommendation_answers_all_three_questions() {
        let command = recommended(&Machine::preset("hybrid").unwrap()).command();
        assert_eq!(command, "evenkeel sched --order fair --gate always --balance capability");
    }

    #[test]
    fn each_kind_of_machine_has_its_own_recommendation() {
        for (name, expected) in [
            ("small", "count"),
            // Two nodes with CPUs of one kind.
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
    fn only_online_cpus_count() {
        let mut machine = Machine::preset("amc1").unwrap();
        let fast = |cpu: &evenkeel_machine::Cpu| cpu.capability == 1024;
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = fast(cpu));
        assert_eq!(balance(&machine), "count");
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = cpu.node == 0);
        assert_eq!(balance(&machine), "capability");
    }
}
