//! A thousand rounds of a CPU that goes and comes, under load, with real-time and deadline tasks and
//! with kernel threads that are pinned to each CPU: no task waits for long, kernel threads least of all.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MS, Sim, hog, longest_wait_ns, only, paper};
use evenkeel_invariants::Limits;
use evenkeel_keel::{Balance, Gate, Options, Order};
use evenkeel_sim::program::{Change, KERNEL, Op, TaskPlan, Thief};
use evenkeel_sim::{FaultPlan, STRICT};

const CPUS: u32 = 4;
const ROUNDS: u64 = 1_000;
const ROUND_NS: u64 = 60 * MS;
/// Pinned kernel threads of each CPU; they are the first tasks.
const PINNED: u32 = 2;
/// A kernel thread waits for no longer: twice a round of turns with all tasks on one CPU, a real-time
/// and a deadline task.
const MOST_MS: u64 = 100;

/// Each time the keel is loaded anew, and all tasks begin anew: a half of a round is longer than a round
/// of turns, or the last task would never have one.
const _: () = assert!(ROUND_NS / 2 > 4 * 4 * MS + 10 * MS);

/// CPUs 1 to 3 go in turn, each for about half a round, at a different phase of ticks and slices in each
/// round.
fn unplugged() -> Vec<(u64, Change)> {
    let round = |round: u64| {
        let cpu = 1 + (round % u64::from(CPUS - 1)) as u32;
        let (early, late) = (round * 7_919_003 % (7 * MS), round * 6_700_417 % (7 * MS));
        let (off, on) = (round * ROUND_NS + early, round * ROUND_NS + 30 * MS + late);
        let plug = |online| Change::Hotplug { cpu, online };
        // The kernel binds its threads of this CPU again when it comes back.
        let bind = (0..PINNED).map(move |thread| {
            let task = (cpu * PINNED + thread) as usize;
            (on + 20_000, Change::Affinity { task, allowed: only(cpu).unwrap() })
        });
        [(off, plug(false)), (on, plug(true))].into_iter().chain(bind)
    };
    (1..=ROUNDS).flat_map(round).collect()
}

fn busy(options: Options, faults: FaultPlan) -> Sim {
    let sleeper =
        |work_ns, sleep_ns| vec![Op::RunAbout(work_ns), Op::SleepAbout(sleep_ns), Op::Goto(0)];
    let mut sim = Sim { faults, ..Sim::keel_with(paper(CPUS), options) };
    for cpu in 0..CPUS {
        for at in 0..u64::from(PINNED) {
            let ops = sleeper(30_000, MS + 2 * MS * at);
            let thread = TaskPlan { space: KERNEL, allowed: only(cpu), ..TaskPlan::new("k", ops) };
            sim = sim.task(thread);
        }
    }
    let every = |cpu, run_ms, period_ms, from_ns| Thief {
        cpu,
        run_ns: run_ms * MS,
        period_ns: period_ms * MS,
        from_ns,
    };
    sim = sim
        .tasks(4, TaskPlan { space: 1, ..hog(10_000_000 * MS) })
        .tasks(3, TaskPlan { space: 2, ..TaskPlan::new("sleeper", sleeper(MS / 2, 4 * MS)) })
        .thief(every(1, 9, 41, MS))
        .thief(every(2, 5, 23, 2 * MS));
    sim.workload.deadlines = vec![every(3, 4, 29, 3 * MS), every(1, 2, 31, 5 * MS)];
    sim.workload.changes = unplugged();
    sim.workload.duration_ns = (ROUNDS + 2) * ROUND_NS;
    sim
}

#[test]
fn no_kernel_thread_waits_for_a_cpu_that_went_and_came() {
    let pauses = FaultPlan { pause_one_in: 60, late_ns: 100_000, ..FaultPlan::default() };
    for (order, gate, balance, faults) in [
        (Order::Fair, Gate::Always, Balance::Count, FaultPlan::default()),
        (Order::Fair, Gate::Always, Balance::Count, pauses),
        (Order::Ias, Gate::Zone, Balance::Capability, pauses),
    ] {
        let options = Options { order, gate, balance, ..Options::default() };
        let mut simulation = busy(options, faults).simulation();
        // Hogs wait for each other; CPUs that go leave others idle for a moment.
        simulation.limits = Some(Limits { idle_grace_ns: 40 * MS, ..STRICT });
        simulation.records = true;
        let outcome = simulation.run().unwrap();
        let world = format!("{order}/{gate}/{balance}, faults {faults:?}");
        assert_eq!(outcome.end, None, "{world}: {}", outcome.dump);
        assert!(outcome.broken.is_empty(), "{world}: {:#?}", outcome.broken);
        assert_eq!(outcome.restarts, 2 * ROUNDS, "{world}");
        let longest_ms = longest_wait_ns(&outcome, PINNED * CPUS) / MS;
        println!("{world}: a kernel thread waited for {longest_ms} ms at most");
        assert!(longest_ms < MOST_MS, "{world}: a kernel thread waited for {longest_ms} ms");
    }
}
