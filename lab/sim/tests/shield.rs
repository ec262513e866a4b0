//! Shielded CPUs in the whole keel: tasks that may run elsewhere leave them, stay away, and come back
//! when the shield falls. Other tasks are not affected, and no task is lost. Two checkers run
//! throughout: `shield_kept` and `work_conservation`.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_invariants::{Event, IDLE, What};
use evenkeel_keel::{Balance, Gate, IdleWait, Options, Order, Shield};
use evenkeel_machine::{CpuSet, Machine};
use evenkeel_sim::Mask;
use evenkeel_sim::program::{Change, Op, TaskPlan, Thief};

use common::{MS, Sim, hog, only, paper};

fn shield(text: &str) -> Shield {
    text.parse().unwrap()
}

fn shielded(text: &str) -> Options {
    Options { shield: shield(text), ..Options::default() }
}

/// A mask of these CPUs.
fn these(cpus: &str) -> Option<Arc<Mask>> {
    Some(Arc::new(Mask::from(&cpus.parse::<CpuSet>().unwrap())))
}

/// Works and sleeps in turn, for ever.
fn sleeper(work_ms: u64, sleep_ms: u64) -> TaskPlan {
    let ops = vec![Op::RunAbout(work_ms * MS), Op::SleepAbout(sleep_ms * MS), Op::Goto(0)];
    TaskPlan::new("sleeper", ops)
}

/// All events of the simulation; checks that no rule was broken.
fn recorded(sim: &Sim) -> Vec<Event> {
    let mut simulation = sim.simulation();
    simulation.records = true;
    let outcome = simulation.run().unwrap();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    assert!(outcome.broken.is_empty(), "{:#?}", outcome.broken);
    outcome.record
}

/// The tasks of the workload that got one of these CPUs between two times.
fn guests(events: &[Event], cpus: &str, from_ms: u64, to_ms: u64, tasks: u32) -> BTreeSet<u32> {
    let cpus: CpuSet = cpus.parse().unwrap();
    let is_then = |event: &&Event| (from_ms * MS..to_ms * MS).contains(&event.time_ns);
    let got = |event: &Event| match event.what {
        What::Switch { next, .. } if next != IDLE && next <= tasks => Some(next),
        _ => None,
    };
    events.iter().filter(is_then).filter(|event| cpus.contains(event.cpu)).filter_map(got).collect()
}

#[test]
fn tasks_leave_shielded_cpus_and_come_back() {
    for hogs in [2, 4, 11] {
        let mut sim = Sim::keel(paper(4)).tasks(hogs, hog(1_000 * MS)).tasks(3, sleeper(1, 3));
        sim.workload.duration_ns = 900 * MS;
        sim.workload.changes = vec![
            (50 * MS, Change::Shield(shield("2-3"))),
            (600 * MS, Change::Shield(shield("none"))),
        ];
        let events = recorded(&sim);
        let tasks = hogs as u32 + 3;
        assert!(!guests(&events, "2-3", 0, 50, tasks).is_empty());
        // A task that runs alone leaves at the next relief of user space.
        assert_eq!(guests(&events, "2-3", 310, 600, tasks), BTreeSet::new(), "{hogs} hogs");
        assert!(!guests(&events, "2-3", 600, 900, tasks).is_empty(), "{hogs} hogs");
    }
}

/// From the start on no task gets there: not by a wake-up, a fork, a pull, or at the end of a slice.
#[test]
fn every_combination_of_policies_keeps_the_shield() {
    for choice in 0..8 {
        let parts = ["", "home,cost,active"][usize::from(choice > 5)].parse().unwrap();
        let options = Options {
            order: Order::ALL[choice & 1],
            gate: Gate::ALL[choice >> 1 & 1],
            balance: Balance::ALL[choice >> 2 & 1],
            parts,
            ..shielded("1,8-15,20")
        };
        let child = TaskPlan { arrives_ns: None, ..hog(3 * MS) };
        let parent =
            TaskPlan::new("parent", vec![Op::Run(MS), Op::Fork(0), Op::Sleep(5 * MS), Op::Goto(0)]);
        let machine = Machine::preset("hybrid").unwrap();
        let mut sim = Sim::keel_with(machine, options).task(TaskPlan { ops: parent.ops, ..child });
        sim = sim.tasks(16, hog(200 * MS)).tasks(30, sleeper(2, 4));
        sim.workload.tasks[0].arrives_ns = Some(0);
        sim.workload.duration_ns = 300 * MS;
        let events = recorded(&sim);
        assert_eq!(guests(&events, "1,8-15,20", 0, 300, 1000), BTreeSet::new(), "{choice}");
        assert_eq!(
            guests(&events, "0,2-7,16-19,21-23", 0, 300, 1000).len(),
            sim.workload.tasks.len()
        );
    }
}

/// Tasks that may use shielded CPUs only run there as without a shield, and are spread over them.
#[test]
fn tasks_that_may_run_nowhere_else_stay_on_shielded_cpus() {
    let pinned = |task: TaskPlan, allowed| TaskPlan { allowed, ..task };
    let mut sim = Sim::keel(paper(4))
        .task(pinned(hog(400 * MS), only(3)))
        .tasks(2, pinned(hog(400 * MS), these("2-3")))
        .tasks(2, pinned(sleeper(1, 2), these("2-3")))
        .tasks(6, hog(400 * MS));
    sim.workload.duration_ns = 600 * MS;
    sim.workload.changes = vec![(50 * MS, Change::Shield(shield("2-3")))];
    let events = recorded(&sim);
    assert_eq!(guests(&events, "2-3", 310, 600, 11), (1..=5).collect());
    let on = |cpu| guests(&events, cpu, 310, 600, 11).len();
    assert!(on("2") > 0 && on("3") > 1, "tasks on CPU 2: {}, on CPU 3: {}", on("2"), on("3"));
}

/// A gate that refuses everything cannot keep a task on a shielded CPU, and a changed mask counts at
/// once.
#[test]
fn eviction_ignores_the_gate_and_follows_changed_masks() {
    let mut options = Options { gate: Gate::Zone, max_idle_wait: IdleWait::NEVER, ..shielded("3") };
    options.zone.set_level("hot".parse().unwrap());
    let mut sim = Sim::keel_with(paper(4), options)
        .task(TaskPlan { allowed: only(3), ..hog(2_000 * MS) })
        .task(TaskPlan { allowed: only(3), ..sleeper(1, 3) });
    sim.workload.duration_ns = 700 * MS;
    for task in 0..2 {
        let all = these("0-3").unwrap();
        sim.workload.changes.push((100 * MS, Change::Affinity { task, allowed: all }));
    }
    let events = recorded(&sim);
    assert_eq!(guests(&events, "3", 0, 100, 2).len(), 2);
    assert_eq!(guests(&events, "3", 360, 700, 2), BTreeSet::new());
    assert_eq!(guests(&events, "0-2", 100, 700, 2).len(), 2);
}

/// Tasks that wait behind a real-time task are pulled by other CPUs: the CPU itself does not tick.
#[test]
fn tasks_behind_a_real_time_task_leave_a_shielded_cpu() {
    let thief = Thief { cpu: 1, run_ns: 400 * MS, period_ns: 1_000 * MS, from_ns: 45 * MS };
    let mut sim = Sim::keel(paper(2)).tasks(6, hog(1_000 * MS)).thief(thief);
    sim.workload.duration_ns = 700 * MS;
    sim.workload.changes = vec![(50 * MS, Change::Shield(shield("1")))];
    let events = recorded(&sim);
    assert_eq!(guests(&events, "0", 50, 350, 6).len(), 6);
    assert_eq!(guests(&events, "1", 310, 700, 6), BTreeSet::new());
}

/// The shield outlives restarts by hotplug. While it would leave no CPU, it bars no task.
#[test]
fn the_shield_survives_hotplug() {
    let mut sim = Sim::keel_with(paper(3), shielded("1-2")).tasks(4, hog(2_000 * MS));
    sim.workload.duration_ns = 1_000 * MS;
    let hotplug = |at, cpu, online| (at * MS, Change::Hotplug { cpu, online });
    sim.workload.changes = vec![
        hotplug(100, 2, false),
        hotplug(200, 2, true),
        hotplug(400, 0, false),
        hotplug(600, 0, true),
    ];
    let mut simulation = sim.simulation();
    simulation.records = true;
    // While CPU 0 is away all CPUs are shielded, which the checker does not know of.
    simulation.limits.as_mut().unwrap().shield_grace_ns = 450 * MS;
    let outcome = simulation.run().unwrap();
    assert_eq!((outcome.end, outcome.restarts), (None, 4), "{}", outcome.dump);
    assert!(outcome.broken.is_empty(), "{:#?}", outcome.broken);
    let on = |from, to| guests(&outcome.record, "1-2", from, to, 4).len();
    assert_eq!((on(0, 100), on(110, 200), on(210, 400)), (0, 0, 0));
    assert_eq!((on(400, 600), on(860, 1_000)), (4, 0));
}
