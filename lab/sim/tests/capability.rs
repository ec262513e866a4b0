//! The balance policy `capability` in the whole keel: what real-time tasks and interrupts take of a CPU
//! is missing from its capability while they do, and machines of any kind are balanced.

#![allow(clippy::unwrap_used)]

mod common;

use std::ops::RangeInclusive;
use std::sync::Arc;

use evenkeel_keel::{Balance, Options, Shield, Slice};
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::program::{Change, Interrupts, TaskPlan, Thief};
use evenkeel_sim::{Mask, Report, Times};

use common::{MS, Sim, hog, paper};

/// Twelve hogs on four CPUs: how equal their progress is, and their times.
fn fairness(balance: Balance, static_capacity: bool, disturb: impl Fn(Sim) -> Sim) -> (f64, Times) {
    let options = Options { balance, static_capacity, ..Options::default() };
    let sim = disturb(Sim::keel_with(paper(4), options).tasks(12, hog(1_000 * MS)));
    let simulation = sim.simulation();
    let report = Report::new(&simulation, &simulation.run().unwrap());
    assert!(report.is_good(), "{:?} {:?}", report.end, report.violations);
    (report.fairness, report.tat)
}

#[test]
fn a_cpu_of_which_much_is_taken_carries_less() {
    // For half of the time somebody has CPUs 0 and 1, by turns of 5 ms.
    let by_thieves = |sim: Sim| {
        let thief = |cpu| Thief { cpu, run_ns: 5 * MS, period_ns: 10 * MS, from_ns: 0 };
        sim.thief(thief(0)).thief(thief(1))
    };
    let by_interrupts = |sim: Sim| {
        let source = |cpu| Interrupts { cpu, run_ns: MS / 2, period_ns: MS };
        sim.interrupts(source(0)).interrupts(source(1))
    };
    for (name, disturb) in
        [("thieves", &by_thieves as &dyn Fn(Sim) -> Sim), ("interrupts", &by_interrupts)]
    {
        let seen = fairness(Balance::Capability, false, disturb);
        let unseen = fairness(Balance::Capability, true, disturb);
        println!("{name}: {seen:?} {unseen:?}");
        assert!(seen.0 > 0.99 && seen.0 > unseen.0 + 0.01, "{name}: {seen:?} {unseen:?}");
    }
}

#[test]
fn where_nothing_is_taken_nothing_changes() {
    let calm = |is_static| fairness(Balance::Capability, is_static, |sim| sim);
    assert_eq!(calm(false), calm(true));
}

/// By its file's text; nothing costs anything there.
fn machine(text: &str) -> Machine {
    let text = format!("name = \"machine\"\n{text}");
    Machine { costs: Costs::none(), ..Machine::parse_toml(&text, "machine").unwrap() }
}

/// These CPUs.
fn cpus(cpus: RangeInclusive<u32>) -> Arc<Mask> {
    let mut mask = Mask::EMPTY;
    cpus.for_each(|cpu| mask.set(cpu));
    Arc::new(mask)
}

/// Who may run on these only.
fn hog_on(allowed: RangeInclusive<u32>, ns: u64) -> TaskPlan {
    TaskPlan { allowed: Some(cpus(allowed)), ..hog(ns) }
}

/// The policy decides who goes to a CPU that idles, at the end of a slice, too: it was whoever came by.
#[test]
fn nobody_leaves_for_a_cpu_that_is_too_slow() {
    let takes = |slow: u32| {
        let kinds = format!(
            "kinds = [{{ cpus = \"0\", capability = 1024 }}, {{ cpus = \"1-3\", capability = {slow} }}]"
        );
        let options = Options { balance: Balance::Capability, ..Options::default() };
        let outcome = Sim::keel_with(machine(&kinds), options).tasks(2, hog(100 * MS)).run();
        let ran_ns = outcome.accounts.iter().map(|account| account.ran_ns).sum::<u64>();
        (outcome.time_ns / MS, ran_ns / MS)
    };
    // What is done on the fast CPU takes as long as it says.
    assert_eq!(takes(200), (200, 200), "a turn of two is worth two and a half times as much");
    let (time_ms, ran_ms) = takes(700);
    assert!(time_ms < 150 && ran_ms > 220, "it is worth less: {time_ms} ms, {ran_ms} ms");
}

/// Only who has waited for too long goes to an idle CPU whatever the policy says: it was everybody.
#[test]
fn an_idle_cpu_takes_one_who_is_overdue_and_not_all() {
    let kinds = r#"kinds = [{ cpus = "0", capability = 1024 }, { cpus = "1", capability = 100 }]"#;
    let slice = Slice::from_us(20_000).unwrap();
    let options = Options { balance: Balance::Capability, slice, ..Options::default() };
    let sim = Sim::keel_with(machine(kinds), options).tasks(4, hog(100 * MS)).simulation();
    let report = Report::new(&sim, &sim.run().unwrap());
    assert!(report.is_good(), "{:?} {:?}", report.end, report.violations);
    assert_eq!(report.counters["move_idle"], 1, "who comes first has not ended yet");
}

/// Who waits for too long goes to a slow CPU although there are as few tasks as fast CPUs: it may not use
/// those. And although nobody asks that CPU to look: a real-time task has the other one.
#[test]
fn a_slow_cpu_helps_whom_the_faster_ones_cannot() {
    let kinds = |slow: &str| {
        let fast = if slow == "1" { "0,2-3" } else { "0-3" };
        machine(&format!(
            "kinds = [{{ cpus = \"{fast}\", capability = 1024 }}, \
             {{ cpus = \"{slow}\", capability = 300 }}]"
        ))
    };
    let capability = |slice_us| Options {
        balance: Balance::Capability,
        slice: Slice::from_us(slice_us).unwrap(),
        static_capacity: true,
        ..Options::default()
    };
    let report = |sim: Sim| {
        let simulation = sim.simulation();
        let report = Report::new(&simulation, &simulation.run().unwrap());
        assert!(report.is_good(), "{:?} {:?}", report.end, report.violations);
        report
    };
    let waits = Sim::keel_with(kinds("1"), capability(20_000)).tasks(2, hog_on(0..=1, 200 * MS));
    assert!(report(waits).counters["ungated"] > 0);
    // Who waits on CPU 4 may use CPU 5 from 22 ms on, and when that idles at 24 ms, it looks once.
    let thief = Thief { cpu: 4, run_ns: 5_000 * MS, period_ns: 10_000 * MS, from_ns: 20 * MS };
    let mut taken = Sim::keel_with(kinds("4-5"), capability(4_000)).thief(thief);
    taken = taken.task(hog_on(5..=5, 7 * MS)).tasks(2, hog_on(4..=4, 30 * MS));
    let widen = |task| (22 * MS, Change::Affinity { task, allowed: cpus(4..=5) });
    taken.workload.changes.extend([1, 2].map(widen));
    let report = report(taken);
    assert!(report.makespan_ms < 1_000.0, "{} ms", report.makespan_ms);
}

/// A group's first CPU idles, because nobody there may use it, or works but is shielded: the next one
/// balances for it.
#[test]
fn the_first_cpu_at_work_balances_for_its_group() {
    let nodes = r#"
kinds = [{ cpus = "0-3", capability = 1024 }]
nodes = [
  { id = 0, cpus = "0-1", distances = [10, 20] },
  { id = 1, cpus = "2-3", distances = [20, 10] },
]
"#;
    for shield in ["", "0"] {
        let shield = if shield.is_empty() { Shield::default() } else { shield.parse().unwrap() };
        let is_shielded = !shield.is_none();
        let options = Options { shield, ..Options::default() };
        let mut sim = Sim::keel_with(machine(nodes), options).tasks(6, hog_on(2..=3, 600 * MS));
        sim = sim.task(hog_on(1..=1, 6_000 * MS));
        if is_shielded {
            sim = sim.task(hog_on(0..=0, 6_000 * MS));
        }
        let widen = |task| (50 * MS, Change::Affinity { task, allowed: cpus(1..=3) });
        sim.workload.changes.extend((0..6).map(widen));
        let outcome = sim.run();
        let ended = outcome.accounts.iter().take(6).map(|account| account.ended_ns.unwrap());
        // Two CPUs need 1,800 ms for them, three 1,400 with the seventh.
        let last_ms = ended.max().unwrap() / MS;
        assert!(last_ms < 1_600, "{last_ms}, shielded: {is_shielded}");
    }
}

/// No invariant is broken there, and all work is done: of two hogs for each CPU, the memory of one is on the
/// last node.
fn is_balanced(text: &str, disturb: impl Fn(Sim) -> Sim) {
    let machine = Machine::parse_toml(text, "odd").unwrap();
    let (cpus, last_node) = (machine.cpus.len(), machine.nodes.len().checked_sub(1));
    for parts in ["", "active,home,cost,turns"] {
        let parts = parts.parse().unwrap();
        let options = Options { balance: Balance::Capability, parts, ..Options::default() };
        let far = TaskPlan { home: last_node.map(|node| node as u32), ..hog(50 * MS) };
        let sim =
            Sim::keel_with(machine.clone(), options).tasks(cpus, hog(50 * MS)).tasks(cpus, far);
        let worked =
            disturb(sim).run().accounts.iter().map(|account| account.worked_ns).sum::<u64>();
        assert_eq!(worked, 2 * cpus as u64 * 50 * MS, "{text}");
    }
}

#[test]
fn any_machine_is_balanced() {
    for (cpus, kinds) in [
        (1, r#"{ cpus = "0", capability = 1024 }"#),
        (4, r#"{ cpus = "0-3", capability = 1024 }"#),
        (4, r#"{ cpus = "0", capability = 1024 }, { cpus = "1-3", capability = 1 }"#),
        (1024, r#"{ cpus = "0-511", capability = 1024 }, { cpus = "512-1023", capability = 300 }"#),
    ] {
        is_balanced(&format!("name = \"{cpus}\"\nkinds = [{kinds}]\n"), |sim| sim);
    }
}

#[test]
fn so_are_nodes_at_any_distance() {
    // In no order, one of them without CPUs, and the way back is longer than the way there.
    let text = r#"
name = "odd"
kinds = [{ cpus = "0-1", capability = 400 }, { cpus = "2-3", capability = 1024 }]
nodes = [
  { id = 0, cpus = "2-3", distances = [10, 40, 15] },
  { id = 1, cpus = "", distances = [12, 10, 30] },
  { id = 3, cpus = "0-1", distances = [22, 11, 10] },
]
"#;
    is_balanced(text, |sim| sim);
}

#[test]
fn so_are_cpus_whose_speed_changes_every_millisecond() {
    let text = r#"
name = "restless"
kinds = [{ cpus = "0-3", capability = 1024 }]
"#;
    // What CPUs do and what is said of them changes at once, to nothing and to all as well, and what is
    // said need not be true.
    is_balanced(text, |mut sim| {
        let capability = |at: u64| [0, 1, 300, 1024][(at % 4) as usize];
        let told = |at: u64| match at % 7 {
            0 => vec![0; 4],
            1 => vec![1024; 4],
            _ => (0..4).map(|cpu| capability(at + cpu)).collect(),
        };
        for at in 1..200 {
            let cpu = at as u32 % 3;
            let change = Change::Capability { cpu, capability: capability(at) };
            sim.workload.changes.push((at * MS, change));
            sim.workload.changes.push((at * MS, Change::Told(told(at))));
        }
        sim
    });
}

#[test]
fn what_is_told_counts_for_who_asked() {
    // Of two CPUs a quarter is said to be left, though they are as fast as the others.
    let told = |mut sim: Sim| {
        let each = |at| (at * MS, Change::Told(vec![1024, 1024, 256, 256]));
        sim.workload.changes.extend((1..1_000).map(each));
        sim
    };
    let calm = fairness(Balance::Capability, true, |sim| sim);
    assert_eq!(fairness(Balance::Capability, true, told), calm);
    let misled = fairness(Balance::Capability, false, told);
    println!("{calm:?} {misled:?}");
    assert!(misled.0 < calm.0 - 0.05, "{calm:?} {misled:?}");
}
