//! The parts of the balance policy `capability` in the whole keel: `home` and `cost` take effect where
//! distant memory is expensive.

#![allow(clippy::unwrap_used)]

mod common;

use evenkeel_keel::{Balance, Options, Parts, Slice};
use evenkeel_machine::Machine;
use evenkeel_sim::Report;
use evenkeel_sim::program::Workload;

use common::Sim;

fn report(cell: &str, remote_pct: u64, balance: Balance, parts: &str) -> Report {
    let mut machine = Machine::preset("amc3").unwrap();
    machine.costs.remote_pct = remote_pct;
    let options = Options {
        balance,
        parts: parts.parse::<Parts>().unwrap(),
        slice: Slice::from_us(120_000).unwrap(),
        ..Options::default()
    };
    let workload = Workload::by_name(cell, 1).unwrap();
    let simulation = Sim { workload, ..Sim::keel_with(machine, options) }.simulation();
    let report = Report::new(&simulation, &simulation.run().unwrap());
    assert!(report.is_good(), "{parts}: {:?} {:?}", report.end, report.violations);
    report
}

const CELL: &str = "paper002:system=amc3,table=w1,processes=200";

#[test]
fn home_shortens_turn_around_where_distance_costs() {
    let (away, home) = (
        report(CELL, 100, Balance::Capability, ""),
        report(CELL, 100, Balance::Capability, "home"),
    );
    // On average a random node is 1.8 times as far.
    assert!(
        home.tat.mean_ms < 0.8 * away.tat.mean_ms,
        "ms with home {}, without {}",
        home.tat.mean_ms,
        away.tat.mean_ms
    );
    // Where distance costs nothing there is nothing to gain and little to lose.
    let (away, home) =
        (report(CELL, 0, Balance::Capability, ""), report(CELL, 0, Balance::Capability, "home"));
    let ratio = home.tat.mean_ms / away.tat.mean_ms;
    assert!((0.8..1.2).contains(&ratio), "turn-around by that without home: {ratio}");
}

#[test]
fn cost_makes_a_busy_cpu_pull_less() {
    let moved = |parts| report(CELL, 100, Balance::Capability, parts).counters["move_periodic"];
    let (all, paying) = (moved("home"), moved("home,cost"));
    assert!(paying < all, "moves with cost {paying}, without {all}");
}

#[test]
fn each_reading_of_the_paper_decides_differently() {
    let many = "paper002:system=amc3,table=w1,processes=500";
    let hash = |balance, parts| report(many, 100, balance, parts).hash;
    let hashes = ["", "plain", "bare", "cost"].map(|parts| hash(Balance::Capability, parts));
    assert_eq!(
        hashes.iter().collect::<std::collections::BTreeSet<_>>().len(),
        hashes.len(),
        "{hashes:?}"
    );
    assert_eq!(
        hash(Balance::Count, ""),
        hash(Balance::Count, "home,cost"),
        "the policy count ignores parts"
    );
}
