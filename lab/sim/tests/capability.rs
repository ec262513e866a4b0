//! The balance policy `capability` in the whole keel: time that real-time tasks and interrupts take
//! reduces a CPU's capability, and machines of any kind are balanced.

#![allow(clippy::unwrap_used)]

mod common;

use std::ops::RangeInclusive;
use std::sync::Arc;

use evenkeel_keel::{Balance, Options, Shield, Slice};
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::program::{Change, Interrupts, TaskPlan, Thief};
use evenkeel_sim::{Mask, Report, Times};

use common::{MS, Sim, hog, paper};

/// Twelve hogs on four CPUs: the fairness of their progress, and their turn-around times.
fn fairness(balance: Balance, static_capacity: bool, disturb: impl Fn(Sim) -> Sim) -> (f64, Times) {
    let options = Options { balance, static_capacity, ..Options::default() };
    let sim = disturb(Sim::keel_with(paper(4), options).tasks(12, hog(1_000 * MS)));
    let simulation = sim.simulation();
    let report = Report::new(&simulation, &simulation.run().unwrap());
    assert!(report.is_good(), "end {:?}, violations {:?}", report.end, report.violations);
    (report.fairness, report.tat)
}

#[test]
fn a_cpu_that_loses_time_gets_less_load() {
    // CPUs 0 and 1 lose half of their time.
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
        assert!(
            seen.0 > 0.99 && seen.0 > unseen.0 + 0.01,
            "fairness under {name}: measured {seen:?}, static {unseen:?}"
        );
    }
}

#[test]
fn measured_and_static_capabilities_agree_on_a_calm_machine() {
    let calm = |is_static| fairness(Balance::Capability, is_static, |sim| sim);
    assert_eq!(calm(false), calm(true));
}

/// A machine by the text of its file, without costs.
fn machine(text: &str) -> Machine {
    let text = format!("name = \"machine\"\n{text}");
    Machine { costs: Costs::none(), ..Machine::parse_toml(&text, "machine").unwrap() }
}

/// A mask of these CPUs.
fn cpus(cpus: RangeInclusive<u32>) -> Arc<Mask> {
    let mut mask = Mask::EMPTY;
    cpus.for_each(|cpu| mask.set(cpu));
    Arc::new(mask)
}

/// A hog with this mask.
fn hog_on(allowed: RangeInclusive<u32>, ns: u64) -> TaskPlan {
    TaskPlan { allowed: Some(cpus(allowed)), ..hog(ns) }
}

/// The policy also decides about an idle CPU at the end of a slice. (Once any task went there.)
#[test]
fn a_task_leaves_for_an_idle_cpu_only_if_that_is_fast_enough() {
    let takes = |slow: u32| {
        let kinds = format!(
            "kinds = [{{ cpus = \"0\", capability = 1024 }}, {{ cpus = \"1-3\", capability = {slow} }}]"
        );
        let options = Options { balance: Balance::Capability, ..Options::default() };
        let outcome = Sim::keel_with(machine(&kinds), options).tasks(2, hog(100 * MS)).run();
        let ran_ns = outcome.accounts.iter().map(|account| account.ran_ns).sum::<u64>();
        (outcome.time_ns / MS, ran_ns / MS)
    };
    // All work is done on the fast CPU if run time equals work.
    assert_eq!(takes(200), (200, 200), "half of the fast CPU is worth more than the slow CPU");
    let (time_ms, ran_ms) = takes(700);
    assert!(
        time_ms < 150 && ran_ms > 220,
        "half of the fast CPU is worth less than the slow CPU: {time_ms} ms, {ran_ms} ms"
    );
}

/// Only a task that is overdue goes to an idle CPU against the policy. (Once all tasks did.)
#[test]
fn an_idle_slow_cpu_takes_only_the_overdue_task() {
    let kinds = r#"kinds = [{ cpus = "0", capability = 1024 }, { cpus = "1", capability = 100 }]"#;
    let slice = Slice::from_us(20_000).unwrap();
    let options = Options { balance: Balance::Capability, slice, ..Options::default() };
    let sim = Sim::keel_with(machine(kinds), options).tasks(4, hog(100 * MS)).simulation();
    let report = Report::new(&sim, &sim.run().unwrap());
    assert!(report.is_good(), "end {:?}, violations {:?}", report.end, report.violations);
    assert_eq!(report.counters["move_idle"], 1, "moves to the idle CPU: only the overdue task");
}

/// An overdue task goes to a slow CPU although there are no more tasks than fast CPUs, if its mask
/// excludes these; and although no kick asks the slow CPU to look, because a real-time task runs on the
/// other one.
#[test]
fn a_slow_cpu_takes_a_task_that_the_fast_ones_cannot() {
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
        assert!(report.is_good(), "end {:?}, violations {:?}", report.end, report.violations);
        report
    };
    let waits = Sim::keel_with(kinds("1"), capability(20_000)).tasks(2, hog_on(0..=1, 200 * MS));
    assert!(report(waits).counters["ungated"] > 0);
    // Tasks that wait on CPU 4 may use CPU 5 from 22 ms on. When CPU 5 idles at 24 ms, it looks once.
    let thief = Thief { cpu: 4, run_ns: 5_000 * MS, period_ns: 10_000 * MS, from_ns: 20 * MS };
    let mut taken = Sim::keel_with(kinds("4-5"), capability(4_000)).thief(thief);
    taken = taken.task(hog_on(5..=5, 7 * MS)).tasks(2, hog_on(4..=4, 30 * MS));
    let widen = |task| (22 * MS, Change::Affinity { task, allowed: cpus(4..=5) });
    taken.workload.changes.extend([1, 2].map(widen));
    let report = report(taken);
    assert!(report.makespan_ms < 1_000.0, "{} ms", report.makespan_ms);
}

/// If a group's first CPU idles because no task may use it, or is busy but shielded, the next CPU
/// balances for the group.
#[test]
fn the_first_usable_cpu_balances_for_its_group() {
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
        assert!(
            last_ms < 1_600,
            "the last of six tasks ended at {last_ms} ms, shielded: {is_shielded}"
        );
    }
}

/// Checks that no rule is broken and all work is done with two hogs per CPU, one of which has its
/// memory on the last node.
fn assert_all_work_done(text: &str, disturb: impl Fn(Sim) -> Sim) {
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
fn machines_of_any_size_and_speed_are_balanced() {
    for (cpus, kinds) in [
        (1, r#"{ cpus = "0", capability = 1024 }"#),
        (4, r#"{ cpus = "0-3", capability = 1024 }"#),
        (4, r#"{ cpus = "0", capability = 1024 }, { cpus = "1-3", capability = 1 }"#),
        (1024, r#"{ cpus = "0-511", capability = 1024 }, { cpus = "512-1023", capability = 300 }"#),
    ] {
        assert_all_work_done(&format!("name = \"{cpus}\"\nkinds = [{kinds}]\n"), |sim| sim);
    }
}

#[test]
fn nodes_at_any_distance_are_balanced() {
    // Unordered, one node without CPUs, and distances that differ by direction.
    let text = r#"
name = "odd"
kinds = [{ cpus = "0-1", capability = 400 }, { cpus = "2-3", capability = 1024 }]
nodes = [
  { id = 0, cpus = "2-3", distances = [10, 40, 15] },
  { id = 1, cpus = "", distances = [12, 10, 30] },
  { id = 3, cpus = "0-1", distances = [22, 11, 10] },
]
"#;
    assert_all_work_done(text, |sim| sim);
}

#[test]
fn cpus_with_changing_speeds_are_balanced() {
    let text = r#"
name = "restless"
kinds = [{ cpus = "0-3", capability = 1024 }]
"#;
    // Every millisecond a CPU's speed and the reported capabilities change; the reports may be wrong.
    assert_all_work_done(text, |mut sim| {
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
fn reported_capabilities_count_unless_capacity_is_static() {
    // Two CPUs are reported to have a quarter left, although all are equally fast.
    let told = |mut sim: Sim| {
        let each = |at| (at * MS, Change::Told(vec![1024, 1024, 256, 256]));
        sim.workload.changes.extend((1..1_000).map(each));
        sim
    };
    let calm = fairness(Balance::Capability, true, |sim| sim);
    assert_eq!(fairness(Balance::Capability, true, told), calm);
    let misled = fairness(Balance::Capability, false, told);
    println!("{calm:?} {misled:?}");
    assert!(misled.0 < calm.0 - 0.05, "fairness and times: calm {calm:?}, misled {misled:?}");
}
