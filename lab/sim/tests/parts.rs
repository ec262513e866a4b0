//! The parts of the balance policy `capability`, in the whole keel: what they do shows where memory is
//! dear, and not where it is not.

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
fn near_its_memory_a_program_ends_earlier() {
    let (away, home) = (
        report(CELL, 100, Balance::Capability, ""),
        report(CELL, 100, Balance::Capability, "home"),
    );
    // On the average a node drawn at random is 1.8 times as far.
    assert!(home.tat.mean_ms < 0.8 * away.tat.mean_ms, "{} {}", home.tat.mean_ms, away.tat.mean_ms);
    // Where distance costs nothing there is nothing to gain, and little to lose.
    let (away, home) =
        (report(CELL, 0, Balance::Capability, ""), report(CELL, 0, Balance::Capability, "home"));
    let ratio = home.tat.mean_ms / away.tat.mean_ms;
    assert!((0.8..1.2).contains(&ratio), "{ratio}");
}

#[test]
fn a_busy_cpu_pulls_less_where_it_costs() {
    let moved = |parts| report(CELL, 100, Balance::Capability, parts).counters["move_periodic"];
    let (all, paying) = (moved("home"), moved("home,cost"));
    assert!(paying < all, "{paying} {all}");
}

#[test]
fn readings_of_the_paper_differ() {
    let many = "paper002:system=amc3,table=w1,processes=500";
    let hash = |balance, parts| report(many, 100, balance, parts).hash;
    let hashes = ["", "plain", "bare", "cost"].map(|parts| hash(Balance::Capability, parts));
    assert_eq!(
        hashes.iter().collect::<std::collections::BTreeSet<_>>().len(),
        hashes.len(),
        "{hashes:?}"
    );
    assert_eq!(hash(Balance::Count, ""), hash(Balance::Count, "home,cost"), "count has no parts");
}
