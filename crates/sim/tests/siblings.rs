//! The order `ias` in the whole keel: siblings run in a row, and at the same time where caches are
//! shared, as long as the bonus lets them.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MS, Sim};
use evenkeel_keel::{Aggregation, Options, Order};
use evenkeel_machine::Machine;
use evenkeel_sim::Outcome;
use evenkeel_sim::program::Workload;

/// Programs of several threads each, on CPUs that share a cache.
const GROUPS: &str = "groups:programs=4,threads=8,work=40ms,rounds=4,pause=1ms";

fn run(order: Order, bonus_ms: Option<u64>, limit: u64) -> Outcome {
    let options = Options { order, ..Options::default() };
    let mut workload = Workload::by_name(GROUPS, 1).unwrap();
    let how = bonus_ms.map(|ms| Aggregation {
        pid: 0,
        agg: 1,
        bonus_type: 0,
        bonus_value: ms * MS,
        limit,
    });
    workload.aggregate(how);
    let machine = Machine::preset("small").unwrap();
    Sim { workload, ..Sim::keel_with(machine, options) }.run()
}

#[test]
fn siblings_run_in_a_row() {
    let (plain, aggregated) = (run(Order::Ias, None, 0), run(Order::Ias, Some(50), 0));
    assert!(aggregated.counters["aggregate"] > 0);
    assert!(
        2 * aggregated.switches_other < plain.switches_other,
        "{} {}",
        aggregated.switches_other,
        plain.switches_other
    );
}

#[test]
fn a_larger_bonus_brings_more_of_them_together() {
    let others: Vec<u64> =
        [1, 5, 20].map(|ms| run(Order::Ias, Some(ms), 0).switches_other).to_vec();
    assert!(others.is_sorted_by(|less, more| less > more), "{others:?}");
}

#[test]
fn a_limit_lets_others_in_between() {
    let (limited, free) = (run(Order::Ias, Some(80), 2), run(Order::Ias, Some(80), 0));
    assert!(limited.switches_other > free.switches_other);
}

#[test]
fn slaves_follow_what_their_master_aggregates() {
    let options = Options { order: Order::Ias, ..Options::default() };
    let mut workload = Workload::by_name(GROUPS, 1).unwrap();
    workload.aggregate(Some(Aggregation {
        pid: 0,
        agg: 1,
        bonus_type: 1,
        bonus_value: 6,
        limit: 0,
    }));
    // Eight CPUs that share two caches: groups by the default roles.
    let text = "name = \"two\"\nllcs = [\"0-3\", \"4-7\"]\nkinds = [{ cpus = \"0-7\", capability = 1024 }]\n";
    let machine = Machine::parse_toml(text, "two").unwrap();
    let outcome = Sim { workload, ..Sim::keel_with(machine, options) }.run();
    assert!(outcome.counters["follow"] > 0);
}

#[test]
fn who_is_not_named_is_not_preferred() {
    let (ias, fair) = (run(Order::Ias, None, 0), run(Order::Fair, Some(50), 0));
    assert_eq!((ias.counters["aggregate"], ias.counters["follow"]), (0, 0));
    assert_eq!((fair.counters["aggregate"], fair.counters["follow"]), (0, 0));
}
