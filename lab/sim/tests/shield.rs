//! Shielded CPUs in the whole keel: tasks that may run elsewhere leave them, stay away, and come back
//! when the shield falls. Other tasks are not affected, and no task is lost. Two checkers run
//! throughout: `shield_kept` and `work_conservation`. And what a shield is worth to a task that is
//! pinned there: `cargo test -p evenkeel-sim --test shield -- --nocapture` prints it.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_invariants::{Event, IDLE, Left, What};
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

/// What a pinned task's turns take, in ns: 99 of 100 are shorter.
#[derive(Debug, Clone, Copy)]
struct Pinned {
    /// From its wake-up until it runs.
    wake_p99_ns: u64,
    /// From its wake-up until it sleeps again.
    response_p99_ns: u64,
}

/// A task that is pinned to CPU 3 of four and works for 10 ms at a time, beside tasks that want so many
/// percent of all CPUs, with the costs of the preset `measured`.
fn beside_load(options: Options, load_pct: u64) -> Pinned {
    const WORK_NS: u64 = 2 * MS;
    const TASKS: u64 = 16;
    let costs = Machine::preset("measured").unwrap().costs;
    let pinned = vec![Op::Sleep(20 * MS), Op::Run(10 * MS), Op::Goto(0)];
    let mut sim = Sim::keel_with(Machine { costs, ..paper(4) }, options)
        .task(TaskPlan { allowed: only(3), ..TaskPlan::new("pinned", pinned) });
    for space in 1..=TASKS as u32 {
        // Together they would be busy for `load_pct` of four CPUs if each had a CPU for itself.
        let sleep_ns = (WORK_NS * TASKS * 100).checked_div(4 * load_pct);
        let Some(sleep_ns) = sleep_ns.map(|turn_ns| turn_ns.saturating_sub(WORK_NS)) else { break };
        let ops = vec![Op::SleepAbout(sleep_ns.max(1)), Op::RunAbout(WORK_NS), Op::Goto(0)];
        sim = sim.task(TaskPlan { space, ..TaskPlan::new("load", ops) });
    }
    sim.workload.duration_ns = 10_000 * MS;
    let mut simulation = sim.simulation();
    simulation.records = true;
    // The tests above have the checkers: here loads wait as they must.
    simulation.limits = None;
    let outcome = simulation.run().unwrap();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    let (mut woken_ns, mut wakes, mut responses) = (None, Vec::new(), Vec::new());
    let mut waits = false;
    for event in &outcome.record {
        let now = event.time_ns;
        match event.what {
            What::Wakeup { task: 1 } => {
                (woken_ns, waits) = (Some(now), true);
            }
            What::Switch { next: 1, .. } if waits => {
                wakes.extend(woken_ns.map(|woken_ns| now - woken_ns));
                waits = false;
            }
            What::Switch { prev: 1, left: Left::Asleep, .. } => {
                responses.extend(woken_ns.take().map(|woken_ns| now - woken_ns));
            }
            _ => {}
        }
    }
    let p99 = |times: &mut Vec<u64>| {
        times.sort_unstable();
        times[times.len() * 99 / 100]
    };
    Pinned { wake_p99_ns: p99(&mut wakes), response_p99_ns: p99(&mut responses) }
}

/// On a shielded CPU a pinned task is as fast beside any load as on an idle machine; without the shield
/// it shares its CPU.
#[test]
fn a_pinned_task_on_a_shielded_cpu_does_not_notice_the_load() {
    for gate in [Gate::Always, Gate::Zone] {
        let options = |shielding: &str| Options { gate, ..shielded(shielding) };
        let idle = beside_load(options("3"), 0);
        println!("{gate}: an idle machine: {idle:?}");
        let is_as_fast = |with: u64, alone: u64| with * 10 <= alone * 11;
        for load_pct in [20, 40, 60, 75, 95, 200] {
            let (with, without) =
                (beside_load(options("3"), load_pct), beside_load(options("none"), load_pct));
            println!("{gate}, load {load_pct} %: shielded {with:?}, not shielded {without:?}");
            assert!(is_as_fast(with.wake_p99_ns, idle.wake_p99_ns), "{gate}, {load_pct} %");
            assert!(is_as_fast(with.response_p99_ns, idle.response_p99_ns), "{gate}, {load_pct} %");
            if load_pct >= 95 {
                assert!(!is_as_fast(without.response_p99_ns, idle.response_p99_ns), "{gate}");
            }
        }
    }
}
