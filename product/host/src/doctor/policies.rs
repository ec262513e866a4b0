//! Which of the keel's policies suit this machine: the rules of docs/choosing.md that depend on the
//! machine and not on the programs. Only what was measured is recommended; what gained in simulation
//! alone is not.

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
    let first = online().next().map(|cpu| cpu.capability);
    if online().any(|cpu| Some(cpu.capability) != first) {
        return Recommendation {
            balance: "capability --parts active,turns",
            because: "its CPUs are not equally fast (the gain was measured in virtual machines only, \
                      with programs of as many threads as CPUs)",
        };
    }
    Recommendation { balance: "count", because: "its CPUs are equally fast" }
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

    const UNEQUAL: &str = "capability --parts active,turns";

    fn balance(machine: &Machine) -> &'static str {
        recommended(machine).balance
    }

    #[test]
    fn a_recommendation_answers_all_three_questions() {
        let command = recommended(&Machine::preset("hybrid").unwrap()).command();
        assert_eq!(
            command,
            "evenkeel sched --order fair --gate always --balance capability --parts active,turns"
        );
    }

    #[test]
    fn each_kind_of_machine_has_its_own_recommendation() {
        for (name, expected) in [
            ("small", "count"),
            // Two nodes with CPUs of one kind.
            ("server", "count"),
            ("hybrid", UNEQUAL),
            ("amc1", UNEQUAL),
            ("amc2", UNEQUAL),
            ("amc3", UNEQUAL),
        ] {
            assert_eq!(balance(&Machine::preset(name).unwrap()), expected, "{name}");
        }
    }

    /// Regression: `--parts home,cost` was recommended, which gains in simulations only, and there only
    /// where the node of a new process's memory is known.
    #[test]
    fn nothing_is_recommended_that_only_a_simulation_shows() {
        let page = include_str!("../../../../docs/choosing.md");
        let (measured, simulated) = page.split_once("## By simulation only").unwrap();
        for name in ["small", "server", "hybrid", "amc1", "amc2", "amc3"] {
            let flags = format!("--balance {}", balance(&Machine::preset(name).unwrap()));
            let is_default = flags == "--balance count";
            assert!(
                is_default || measured.contains(&format!("`evenkeel sched {flags}`")),
                "{flags}"
            );
            assert!(!simulated.contains(&format!("`{flags}`")) || is_default, "{flags}");
        }
    }

    #[test]
    fn only_online_cpus_count() {
        let mut machine = Machine::preset("amc1").unwrap();
        let fast = |cpu: &evenkeel_machine::Cpu| cpu.capability == 1024;
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = fast(cpu));
        assert_eq!(balance(&machine), "count");
        machine.cpus.iter_mut().for_each(|cpu| cpu.online = cpu.node == 0);
        assert_eq!(balance(&machine), UNEQUAL);
    }
}
