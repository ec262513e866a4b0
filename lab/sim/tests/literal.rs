//! Paper 002 to the letter in the whole keel: what each rule of `policy/balance_paper.h` changes, and
//! only it.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;

use evenkeel_keel::{Balance, IdleWait, Options, Parts, Slice};
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::program::{TaskPlan, Workload};
use evenkeel_sim::{PaperRule, Report};

use common::{MS, Sim, hog, only, paper};

/// All rules of Algorithm 1.
const LETTER: [PaperRule; 5] = [
    PaperRule::Several,
    PaperRule::Ratio,
    PaperRule::NoSearch,
    PaperRule::Leader,
    PaperRule::Eager,
];

fn options(balance: Balance, parts: &str, rules: &[PaperRule]) -> Options {
    let parts = PaperRule::add(rules, parts.parse::<Parts>().unwrap());
    let slice = Slice::from_us(120_000).unwrap();
    Options { balance, parts, slice, max_idle_wait: IdleWait::NEVER, ..Options::default() }
}

fn report(sim: Sim) -> Report {
    let simulation = sim.simulation();
    let report = Report::new(&simulation, &simulation.run().unwrap());
    assert!(report.is_good(), "{:?} {:?}", report.end, report.violations);
    report
}

/// A cell of the paper under Algorithm 1 with these rules.
fn cell(text: &str, rules: &[PaperRule]) -> Report {
    let workload = Workload::by_name(text, 1).unwrap();
    let machine = text.split(['=', ',']).find(|word| word.starts_with("amc")).unwrap();
    let machine = Machine::preset(machine).unwrap();
    let options = options(Balance::Capability, "plain,bare,active", rules);
    report(Sim { workload, ..Sim::keel_with(machine, options) })
}

fn counters(report: &Report, names: &[&str]) -> BTreeMap<String, u64> {
    names.iter().map(|name| ((*name).to_owned(), report.counters[*name])).collect()
}

/// With a rule, and without it but with all others.
fn with_and_without(text: &str, rule: PaperRule) -> [Report; 2] {
    let others: Vec<PaperRule> = LETTER.into_iter().filter(|one| *one != rule).collect();
    let both = [cell(text, &LETTER), cell(text, &others)];
    let names = ["try_idle", "try_periodic", "move_idle", "move_periodic", "move_active"];
    for report in &both {
        println!("{rule:?} {text}: {:?}", counters(report, &names));
    }
    both
}

/// 64 processes on 32 speed cores and as many normal ones: at the end no more than 32 are left.
const AT_THE_RATIO: &str = "paper002:system=amc2,table=w1,processes=64";
/// Fewer processes than speed cores, which sleep now and then.
const FEW: &str = "paper002:system=amc1,table=w2,processes=12";
const CROWDED: &str = "paper002:system=amc2,table=w2,processes=256";

#[test]
fn a_core_that_is_not_to_balance_does_not_search() {
    let [with, without] = with_and_without(AT_THE_RATIO, PaperRule::NoSearch);
    assert!(with.counters["try_periodic"] < without.counters["try_periodic"], "a busy one");
    let [with, without] = with_and_without(FEW, PaperRule::NoSearch);
    assert!(with.counters["try_idle"] < without.counters["try_idle"], "an idle one");
}

#[test]
fn a_core_that_becomes_idle_searches_although_no_process_waits() {
    let [with, without] = with_and_without(AT_THE_RATIO, PaperRule::Eager);
    assert!(with.counters["try_idle"] > without.counters["try_idle"]);
}

#[test]
fn running_processes_leave_normal_cores_only_at_the_ratio() {
    let [with, without] = with_and_without(CROWDED, PaperRule::Ratio);
    let moved = |report: &Report| report.counters["move_active"];
    assert!((1..moved(&without)).contains(&moved(&with)));
}

#[test]
fn one_core_of_a_node_balances_for_it() {
    let [with, without] = with_and_without(CROWDED, PaperRule::Leader);
    assert!(with.counters["try_periodic"] < without.counters["try_periodic"]);
}

/// CPU 1 ends its tasks before its first tick, at which it would balance, and finds many on CPU 0.
fn drained(rules: &[PaperRule]) -> Report {
    let short = TaskPlan { allowed: only(1), ..hog(MS / 10) };
    let sim = Sim::keel_with(paper(2), options(Balance::Count, "", rules));
    report(sim.tasks(8, short).tasks(8, hog(50 * MS)))
}

#[test]
fn an_idle_cpu_pulls_several_tasks_at_once() {
    let (one, several) = (drained(&[]), drained(&[PaperRule::Several]));
    for report in [&one, &several] {
        println!(
            "{:?}",
            report.counters.iter().filter(|(_, count)| **count > 0).collect::<Vec<_>>()
        );
    }
    assert!(one.counters["move_idle"] <= one.counters["try_idle"]);
    assert!(several.counters["move_idle"] > several.counters["try_idle"]);
}

/// A machine of one domain has no parent domain.
#[test]
fn an_idle_cpu_of_the_classic_balancer_begins_at_the_parent_domain() {
    assert!(drained(&[]).counters["move_idle"] > 0);
    assert_eq!(drained(&[PaperRule::Parent]).counters["move_idle"], 0);
}

/// A rule's bit alone changes what the keel decides.
#[test]
fn a_rule_changes_decisions() {
    let machine = Machine { costs: Costs::none(), ..Machine::preset("amc1").unwrap() };
    let workload = || Workload::by_name("paper002:processes=100", 1).unwrap();
    let run = |parts: Parts| {
        let options = Options { balance: Balance::Capability, parts, ..Options::default() };
        report(Sim { workload: workload(), ..Sim::keel_with(machine.clone(), options) }).hash
    };
    let parts: Parts = "home,cost,active".parse().unwrap();
    assert_ne!(run(parts), run(PaperRule::add(&[PaperRule::Several], parts)));
}
