//! What the keel still knows after a CPU that comes or goes has had it loaded again: how busy CPUs were,
//! how tasks behaved, where their memory is, and on which CPUs tasks wait.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use evenkeel_invariants::What;
use evenkeel_keel::{Balance, Gate, IdleWait, Options};
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::program::{Change, Op, TaskPlan, Thief};
use evenkeel_sim::{Mask, Outcome};

use common::{MS, Sim, caches, hog, longest_wait_ns, only, paper};

/// A mask of these CPUs.
fn cpus<const N: usize>(cpus: [u32; N]) -> Option<Arc<Mask>> {
    Some(Arc::new(Mask::from(&cpus.into_iter().collect())))
}

/// The CPU goes at this time.
fn goes(at_ms: u64, cpu: u32) -> (u64, Change) {
    (at_ms * MS, Change::Hotplug { cpu, online: false })
}

/// The strict gate at this level.
fn strict(level: &str) -> Options {
    let mut options =
        Options { gate: Gate::Zone, max_idle_wait: IdleWait::NEVER, ..Options::default() };
    options.set_parameter("zone", level).unwrap();
    options
}

fn run(sim: &Sim, restarts: u64) -> Outcome {
    let mut simulation = sim.simulation();
    simulation.limits = None;
    simulation.records = true;
    let outcome = simulation.run().unwrap();
    assert_eq!((&outcome.end, outcome.restarts), (&None, restarts), "{}", outcome.dump);
    outcome
}

/// A strict gate opens where the utilisation is above its limit: it needs no time to find that again.
#[test]
fn the_utilisation_of_cpus_is_known() {
    for restarts in [0, 1] {
        let both = TaskPlan { allowed: only(0), ..hog(1_000 * MS) };
        let mut sim = Sim::keel_with(caches(3, 1), strict("hot")).tasks(2, both);
        if restarts > 0 {
            sim.workload.changes.push(goes(990, 2));
        }
        let allowed = cpus([0, 1]).unwrap();
        sim.workload.changes.push((1_000 * MS, Change::Affinity { task: 1, allowed }));
        let ended_ms = run(&sim, restarts).time_ns / MS;
        // Each has half of its work left when the second one may leave.
        assert!(ended_ms < 1_550, "{ended_ms} ms with {restarts} restarts");
    }
}

/// A task that has used more than the gate's limit for 6 s has a prize: its CPU keeps it.
#[test]
fn the_score_of_a_task_is_known() {
    for restarts in [0, 1] {
        let parts = "active".parse().unwrap();
        let mut options = Options { balance: Balance::Capability, parts, ..strict("warm-low") };
        for name in ["bal_cpus_avg_enable", "balance_idle_cal"] {
            options.set_parameter(name, "1").unwrap();
        }
        // By the mean of three CPUs, of which one is busy, the score decides.
        let mut sim = Sim::keel_with(caches(3 + restarts as u32, 1), options).task(hog(9_000 * MS));
        sim.workload.changes = vec![(6_000 * MS, Change::Told(vec![400, 1024, 1024, 1024]))];
        if restarts > 0 {
            sim.workload.changes.insert(0, goes(5_950, 3));
        }
        sim.workload.duration_ns = 6_300 * MS;
        let counters = run(&sim, restarts).counters;
        assert!(
            counters["move_active"] == 0 && counters["gate_prized"] > 0,
            "{restarts} restarts: {counters:?}"
        );
    }
}

/// A program returns to the node where it first ran, and not to the one where it ran at the restart.
#[test]
fn the_node_of_a_programs_memory_is_known() {
    let text = r#"
name = "nodes"
kinds = [{ cpus = "0-2", capability = 1024 }]
nodes = [
  { id = 0, cpus = "0", distances = [10, 20] },
  { id = 1, cpus = "1-2", distances = [20, 10] },
]
"#;
    let machine = Machine { costs: Costs::none(), ..Machine::parse_toml(text, "nodes").unwrap() };
    for restarts in [0, 1] {
        let parts = "home".parse().unwrap();
        let options = Options { balance: Balance::Capability, parts, ..Options::default() };
        let ops = vec![Op::Run(2 * MS), Op::Sleep(3 * MS), Op::Goto(0)];
        let task = TaskPlan { allowed: only(0), ..TaskPlan::new("sleeper", ops) };
        let mut sim = Sim::keel_with(machine.clone(), options).task(task);
        let may_use = |at_ms, mask: Option<Arc<Mask>>| {
            (at_ms * MS, Change::Affinity { task: 0, allowed: mask.unwrap() })
        };
        sim.workload.changes = vec![may_use(50, only(1)), may_use(150, cpus([0, 1]))];
        if restarts > 0 {
            sim.workload.changes.insert(1, goes(100, 2));
        }
        sim.workload.duration_ns = 300 * MS;
        let outcome = run(&sim, restarts);
        let mut events = outcome.record.iter().rev();
        let last = events.find(|event| matches!(event.what, What::Switch { next: 1, .. }));
        assert_eq!(last.unwrap().cpu, 0, "{restarts} restarts");
    }
}

/// The kernel takes all CPUs for idle at first. No task leaves its CPU for that.
#[test]
fn tasks_wait_where_they_waited() {
    let moved = |restarts| {
        let mut sim = Sim::keel(paper(5));
        sim = sim.tasks(8, TaskPlan { allowed: cpus([0, 1, 2, 3]), ..hog(10_000 * MS) });
        if restarts > 0 {
            sim.workload.changes = vec![goes(500, 4)];
        }
        sim.workload.duration_ns = 1_000 * MS;
        run(&sim, restarts).migrations.values().sum::<u64>()
    };
    assert_eq!(moved(1), moved(0));
}

/// Of a CPU that a real-time task has, the keel hears nothing while that runs. What waits there is
/// pulled all the same, although the CPU that pulls has as much load.
#[test]
fn a_task_behind_a_real_time_task_is_pulled() {
    for policies in [Options::default(), Options { gate: Gate::Zone, ..Options::default() }] {
        let thief = Thief { cpu: 0, run_ns: 3_000 * MS, period_ns: 9_000 * MS, from_ns: 100 * MS };
        let mut sim = Sim::keel_with(caches(3, 1), policies).thief(thief);
        sim = sim.tasks(2, TaskPlan { allowed: cpus([0, 1]), ..hog(10_000 * MS) });
        sim.workload.changes = vec![goes(103, 2)];
        sim.workload.duration_ns = 2_000 * MS;
        let waited_ms = longest_wait_ns(&run(&sim, 1), 2) / MS;
        assert!(waited_ms < 200, "a task waited for {waited_ms} ms");
    }
}
