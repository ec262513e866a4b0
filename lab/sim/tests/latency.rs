//! Wake-up latency beside as many hogs as CPUs: the load of `bench keel`'s `wake-p99`, in simulated
//! time.

#![allow(clippy::unwrap_used)]

mod common;

use std::ops::Range;

use common::{MS, Sim, hog, paper};
use evenkeel_invariants::What;
use evenkeel_sim::program::{Op, TaskPlan};

const US: u64 = 1_000;
const ROUNDS: u64 = 500;
/// Until then new tasks are still being spread.
const SETTLE_NS: u64 = 50 * MS;
/// What a receiver does with a message.
const WORK_NS: u64 = 50 * US;
/// What the sender does before each message.
const SEND_NS: u64 = 5 * US;

/// How long these tasks wait from a wake-up to the CPU, in ns, sorted. `sim` has records.
fn waits_ns(sim: &Sim, tasks: Range<u32>) -> Vec<u64> {
    let mut simulation = sim.simulation();
    simulation.records = true;
    let outcome = simulation.run().unwrap();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    assert!(outcome.broken.is_empty(), "{:#?}", outcome.broken);
    let mut woken_ns = vec![None; tasks.end as usize + 1];
    let mut waits = Vec::new();
    for event in outcome.record.iter().filter(|event| event.time_ns > SETTLE_NS) {
        match event.what {
            // Task 0 of the workload is number 1 in events.
            What::Wakeup { task } if tasks.contains(&(task - 1)) => {
                woken_ns[task as usize] = Some(event.time_ns);
            }
            What::Switch { next, .. } => {
                let since_ns = woken_ns.get_mut(next as usize).and_then(Option::take);
                waits.extend(since_ns.map(|since_ns| event.time_ns - since_ns));
            }
            _ => {}
        }
    }
    waits.sort_unstable();
    waits
}

/// A sender sleeps, and then wakes a receiver for each CPU, beside as many hogs.
fn served(cpus: u32) -> Sim {
    let channels = 0..cpus as usize;
    let mut sender = vec![Op::Sleep(3_300 * US)];
    sender.extend(channels.clone().flat_map(|at| [Op::Run(SEND_NS), Op::Send(at)]));
    sender.push(Op::Repeat { to: 0, times: ROUNDS - 1 });
    let mut sim = Sim::keel(paper(cpus)).tasks(cpus as usize, hog(100_000 * MS));
    for at in channels {
        let ops = vec![Op::Receive(at), Op::Run(WORK_NS), Op::Goto(0)];
        sim = sim.task(TaskPlan::new("receiver", ops));
    }
    sim = sim.task(TaskPlan::new("sender", sender));
    sim.workload.channels = cpus as usize;
    sim.workload.duration_ns = 2_000 * MS;
    sim
}

/// Neither the sender nor a receiver waits for a hog, and so not for a tick: only for each other. (The
/// benchmark does not see how long the sender waits.)
#[test]
fn tasks_of_short_runs_wait_for_each_other_and_for_no_hog() {
    for cpus in [1, 2, 4] {
        let waits = waits_ns(&served(cpus), cpus..2 * cpus + 1);
        assert!(waits.len() as u64 > ROUNDS * u64::from(cpus) * 9 / 10, "{} waits", waits.len());
        let p99_ns = waits[(waits.len() * 99).div_ceil(100) - 1];
        let most_ns = u64::from(cpus) * (SEND_NS + WORK_NS);
        assert!(p99_ns <= most_ns, "{cpus} CPUs: p99 is {p99_ns} ns, at most {most_ns}");
    }
}
