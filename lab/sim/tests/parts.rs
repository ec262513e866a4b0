//! The parts of the balance policy `capability` in the whole keel: `home` and `cost` take effect where
//! distant memory is expensive.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use evenkeel_invariants::What;
use evenkeel_keel::{Balance, Options, Parts, Slice};
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::program::{Change, Op, TaskPlan, Workload};
use evenkeel_sim::{Mask, Report};

use common::{MS, Sim, only};

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

/// A program's home ends with exec: the new one's is where it then runs, also if it runs for longer than
/// a tick before it first sleeps.
#[test]
fn a_program_that_calls_exec_is_at_home_where_it_runs_then() {
    let text = r#"
name = "nodes"
kinds = [{ cpus = "0-1", capability = 1024 }]
nodes = [
  { id = 0, cpus = "0", distances = [10, 20] },
  { id = 1, cpus = "1", distances = [20, 10] },
]
"#;
    let machine = Machine { costs: Costs::none(), ..Machine::parse_toml(text, "nodes").unwrap() };
    let both = Arc::new(Mask::from(&(0..2_u32).collect()));
    for (execs, home) in [(false, 0), (true, 1)] {
        let parts = "home".parse().unwrap();
        let options = Options { balance: Balance::Capability, parts, ..Options::default() };
        // 16 times 5 ms, 20 ms from then on, and sleep from 147 to 150 ms.
        let ops = vec![
            Op::Run(2 * MS),
            Op::Sleep(3 * MS),
            Op::Repeat { to: 0, times: 15 },
            if execs { Op::Exec(7) } else { Op::Run(MS / 1_000) },
            Op::Run(20 * MS),
            Op::Run(2 * MS),
            Op::Sleep(3 * MS),
            Op::Goto(5),
        ];
        let task = TaskPlan { allowed: only(0), ..TaskPlan::new("program", ops) };
        let mut sim = Sim::keel_with(machine.clone(), options).task(task);
        let may_use = |allowed| Change::Affinity { task: 0, allowed };
        sim.workload.changes =
            vec![(49 * MS, may_use(only(1).unwrap())), (149 * MS, may_use(both.clone()))];
        sim.workload.duration_ns = 300 * MS;
        let mut simulation = sim.simulation();
        simulation.records = true;
        let outcome = simulation.run().unwrap();
        assert_eq!(outcome.end, None, "{}", outcome.dump);
        let mut events = outcome.record.iter().rev();
        let last = events.find(|event| matches!(event.what, What::Switch { next: 1, .. }));
        assert_eq!(last.unwrap().cpu, home, "execs: {execs}");
    }
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
