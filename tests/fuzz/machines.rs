//! Files of machines: our own, and hwloc's. What is accepted has CPUs online, and capabilities within
//! their limits.

use evenkeel_machine::Machine;

use crate::target::{Target, no_repair, reason};

const MACHINES: Target = Target { name: "machines", words: &[], repair: no_repair, read };

fn read(kind: &str, text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    match kind {
        "toml" => is_machine(Machine::parse_toml(&text, "fuzz")),
        _ => is_machine(Machine::parse_hwloc(&text, "fuzz", "fuzz")),
    }
}

fn is_machine(machine: Result<Machine, impl std::fmt::Display>) -> bool {
    match machine {
        Ok(machine) => {
            assert!(!machine.online().is_empty());
            assert!(machine.cpus.iter().all(|cpu| (1..=1024).contains(&cpu.capability)));
            true
        }
        Err(why) => {
            reason(why);
            false
        }
    }
}

#[test]
fn a_file_gives_a_whole_machine_or_none() {
    MACHINES.fuzz();
}
