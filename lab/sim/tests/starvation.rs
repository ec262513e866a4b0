//! An ordinary user's programs with the largest bonus that they may have (`set_ias_agg`), with threads
//! that come and go: they keep other tasks waiting for a bounded time, and leave them their share.

#![allow(clippy::unwrap_used)]

mod common;

use common::build::with_fault;
use common::{MS, Sim, hog, longest_wait_ns, paper};
use evenkeel_invariants::Limits;
use evenkeel_keel::{Aggregation, IasOptions, Mode, Options, Order, USER_BONUS_NS, USER_TURN_NS};
use evenkeel_sim::program::{GroupPlan, Op, TaskPlan};
use evenkeel_sim::{Outcome, STRICT, Scheduler};

/// Programs of the attacker have these address spaces, others 0.
const FIRST: u32 = 1;
/// How many attacking threads are runnable at a time.
const AT_ONCE: usize = 3;
/// How long each of them runs.
const RUN_MS: u64 = 90;
const LASTS_MS: u64 = 60_000;
const SLICE_MS: u64 = 4;
const TURN_MS: u64 = USER_TURN_NS / MS;
/// Out-of-turn runs take at most one part in so many of a CPU in the long run (`ORDER_FORGOTTEN_PART`
/// and 1).
const PART: u64 = 9;

#[derive(Debug, Clone, Copy)]
enum Attack {
    /// Threads that are forked one after the other, each of the same address space.
    FreshThreads,
    /// Threads that were there before, and wake one after the other.
    Sleepers,
    /// The same as fresh threads, with an address space for every three of them.
    FreshSpaces,
    /// Fresh threads, each for a moment: more than a slice together only by turns.
    BriefThreads,
}

/// The attacker's threads, which begin at this place of the workload.
fn attackers(attack: Attack, first: usize) -> Vec<TaskPlan> {
    let run_ms = if matches!(attack, Attack::BriefThreads) { 3 } else { RUN_MS };
    let count = (LASTS_MS / run_ms) as usize;
    let thread = |at: usize| {
        let (next, run) = (at + AT_ONCE, Op::Run(run_ms * MS));
        let is_last = next >= count;
        let (ops, arrives) = match attack {
            Attack::Sleepers => {
                let wait = if at < AT_ONCE { Op::Run(MS) } else { Op::Receive(at) };
                (vec![wait, run, if is_last { Op::Run(1) } else { Op::Send(next) }], true)
            }
            _ if is_last => (vec![run], at < AT_ONCE),
            _ => (vec![run, Op::Fork(first + next)], at < AT_ONCE),
        };
        let space = match attack {
            Attack::FreshSpaces => FIRST + (at / AT_ONCE) as u32,
            _ => FIRST,
        };
        let arrives_ns = arrives.then_some(0);
        TaskPlan { space, arrives_ns, group: 1, ..TaskPlan::new("attacker", ops) }
    };
    (0..count).map(thread).collect()
}

/// So many hogs beside the attack on one CPU; `groups`: each side has a cgroup of its own.
fn attacked(mode: Mode, attack: Attack, hogs: usize, groups: bool) -> Sim {
    let ias = IasOptions { mode, ..IasOptions::default() };
    let options = Options { order: Order::Ias, ias, ..Options::default() };
    let victim = TaskPlan { space: 0, group: 2, ..hog(2 * LASTS_MS * MS) };
    let mut sim = Sim::keel_with(paper(1), options).tasks(hogs, victim);
    sim.workload.tasks.extend(attackers(attack, hogs));
    sim.workload.channels = sim.workload.tasks.len();
    let group = |weight| GroupPlan { name: "side".to_owned(), weight, parent: 0 };
    if groups {
        sim.workload.groups = vec![group(100), group(100)];
        // One after the other: all at once would wait until each has paid for a first slice.
        let late = sim.workload.tasks[hogs..].iter_mut().filter(|task| task.arrives_ns.is_some());
        late.enumerate().for_each(|(at, task)| task.arrives_ns = Some(at as u64 * MS));
    } else {
        sim.workload.tasks.iter_mut().for_each(|task| task.group = 0);
    }
    let how = Aggregation { pid: 0, agg: 1, bonus_type: 0, bonus_value: USER_BONUS_NS, limit: 0 };
    sim.workload.aggregate(Some(how));
    sim.workload.aggregations.retain(|how| how.pid > FIRST);
    sim.workload.ordinary = sim.workload.aggregations.iter().map(|how| how.pid).collect();
    sim.workload.duration_ns = LASTS_MS * MS;
    sim
}

/// The hogs' part of the CPU, in per mille, and the longest wait of one of them, in ms.
fn suffered(outcome: &Outcome, hogs: usize) -> (u64, u64) {
    let ran = outcome.accounts[..hogs].iter().map(|account| account.ran_ns).sum::<u64>();
    (ran * 1000 / outcome.time_ns, longest_wait_ns(outcome, hogs as u32) / MS)
}

#[test]
fn threads_that_come_and_go_starve_no_task() {
    for attack in
        [Attack::FreshThreads, Attack::Sleepers, Attack::FreshSpaces, Attack::BriefThreads]
    {
        for (hogs, groups) in [(6, false), (2, false), (30, false), (6, true)] {
            let run = |sim: Sim| {
                let mut simulation = sim.simulation();
                simulation.records = true;
                // A task may be behind its share by bonus and slice.
                let share_slack_ns = STRICT.share_slack_ns + USER_BONUS_NS + SLICE_MS * MS;
                simulation.limits = Some(Limits { share_slack_ns, ..STRICT });
                let outcome = simulation.run().unwrap();
                assert_eq!(outcome.end, None, "{}", outcome.dump);
                assert!(outcome.broken.is_empty(), "{:#?}", outcome.broken);
                suffered(&outcome, hogs)
            };
            let mut fair = attacked(Mode::Paper, attack, hogs, groups);
            fair.workload.aggregations.clear();
            let (due, round_ms) = run(fair);
            for mode in Mode::ALL {
                let (share, longest_ms) = run(attacked(mode, attack, hogs, groups));
                let world = format!("{mode}, {attack:?}, {hogs} hogs, groups {groups}");
                println!("{world}: {due} -> {share} per mille, {round_ms} -> {longest_ms} ms");
                // What siblings may keep all others waiting, and a round of turns before and after.
                let most_ms = TURN_MS + 2 * round_ms;
                assert!(
                    longest_ms <= most_ms,
                    "{world}: waited {longest_ms} ms, {round_ms} ms if fair"
                );
                assert!(share >= due * (PART - 1) / PART * 98 / 100, "{world}: {share} of {due}");
            }
        }
    }
}

/// Without the bound the same worlds starve the others: the test above would notice. (Fresh threads do
/// not, with or without: each begins no earlier than the thread that forks it could go on.)
#[test]
fn without_the_bound_others_starve() {
    let unbound = with_fault(
        "policy/order.h",
        "	return !is_vruntime_before(fair + order_charge(0, wait_ns, load), fair_clock);\n",
        "	return wait_ns | fair | load | fair_clock | 1;\n",
    );
    let (share, longest_ms) = suffered_under(Attack::Sleepers, Some(unbound));
    assert!(share < 667 / 2 && longest_ms > 2 * TURN_MS, "{share} per mille, {longest_ms} ms");
}

/// Without what a thread inherits, the bound lets fresh threads take what it lets sleepers take.
#[test]
fn without_the_inheritance_fresh_threads_gain() {
    let parentless = with_fault(
        "bpf/keel/task.h",
        "t->is_new == IS_FORKED ? calc_parent_lateness() : 0",
        "calc_parent_lateness() & 1",
    );
    let (built, _) = suffered_under(Attack::FreshThreads, None);
    let (faulty, _) = suffered_under(Attack::FreshThreads, Some(parentless));
    assert!(faulty * 100 < built * 95, "{faulty} per mille, with inheritance {built}");
}

/// What six hogs suffer beside an attack, under this build of the keel.
fn suffered_under(attack: Attack, build: Option<Vec<u8>>) -> (u64, u64) {
    let mut sim = attacked(Mode::Paper, attack, 6, false);
    if let Some(build) = build {
        sim.scheduler = Scheduler::Built(sim.scheduler.options().unwrap().clone(), build.into());
    }
    let mut simulation = sim.simulation();
    simulation.records = true;
    suffered(&simulation.run().unwrap(), 6)
}
