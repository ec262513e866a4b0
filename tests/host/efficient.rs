//! `--prefer efficient` on a machine of equal CPUs: it is said that it has no effect. What it does on
//! others is tested in a guest with more CPUs (`unequal::`).

use evenkeel_machine::Machine;

use crate::support::*;

#[test]
fn where_nothing_is_known_of_energy_a_run_says_so() {
    if Machine::from_sysfs("/".as_ref()).unwrap().energy_ranks().is_some() {
        let test = "where_nothing_is_known_of_energy_a_run_says_so";
        evenkeel_skip::skip(test, "the kernel tells these CPUs apart by their energy");
        return;
    }
    let host = Host::new();
    let run = output(&mut host.run(&["--prefer", "efficient"], &["true"]));
    let said = text(&run.stderr);
    assert!(run.status.success() && said.contains("--prefer efficient has no effect"), "{said}");
    assert!(said.contains("/sys/kernel/debug/energy_model"), "{said}");
    let run = output(&mut host.run(&["--prefer", "capable"], &["true"]));
    assert!(!text(&run.stderr).contains("--prefer"), "{run:?}");
}
