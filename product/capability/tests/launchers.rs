//! Launchers and helpers (mpiexec, hydra_pmi_proxy, orted, helper threads) only wait: they are not
//! balanced, and do not count as load.

#![allow(clippy::expect_used, reason = "tests")]

mod common;

use common::{INTERVAL_NS, MS, cpu, decide, moves, snapshot, task};
use evenkeel_capability::{
    LagParameters, PaperParameters, Plan, Policy, Snapshot, State, TaskView,
};

/// A task that woke up for a moment now and then.
fn helper(tid: u32, cpu: u32) -> TaskView {
    let run_ns = INTERVAL_NS / 50;
    TaskView { run_ns, received_ns: run_ns, sleeps: 40, runnable: false, ..task(tid, cpu) }
}

/// The same task with others on its CPU: each got an equal part of the interval.
fn sharing(task: TaskView, tasks: u64) -> TaskView {
    let run_ns = INTERVAL_NS / tasks;
    TaskView { run_ns, received_ns: run_ns, wait_ns: INTERVAL_NS - run_ns, ..task }
}

fn both_policies() -> [Policy; 2] {
    let paper = PaperParameters { interval_ns: 100 * MS, ..PaperParameters::default() };
    [Policy::Lag(LagParameters::default()), Policy::Paper(paper)]
}

fn plans(view: &Snapshot, policy: Policy) -> Vec<Plan> {
    let mut state = State::new(policy);
    (0..4).map(|_| decide(view, &mut state)).collect()
}

#[test]
fn two_workers_on_one_cpu_spread_despite_helpers_on_the_other_cpu() {
    // Ranks 10 and 11 on CPU 0; launcher and proxies sleep on CPU 1.
    let ranks = [10, 11].map(|tid| sharing(task(tid, 0), 2));
    let helpers = [1, 2, 3].map(|tid| helper(tid, 1));
    let mut cpus = vec![cpu(0), cpu(1)];
    cpus[1].idle_ns = INTERVAL_NS - 3 * INTERVAL_NS / 50;
    let view = snapshot(cpus, [&ranks[..], &helpers].concat());
    for policy in both_policies() {
        let plans = plans(&view, policy.clone());
        let moved: Vec<_> = plans.iter().flat_map(moves).collect();
        assert!(!moved.is_empty(), "{policy:?}");
        for (tid, from, to) in moved {
            assert!(tid >= 10 && (from, to) == (0, 1), "{policy:?}: {tid} to {to}");
        }
    }
}

#[test]
fn spread_workers_stay_despite_helpers() {
    for crowded in [0, 1] {
        let ranks = [task(10, 0), task(11, 1)];
        let helpers = (1..=8).map(|tid| helper(tid, crowded));
        let view = snapshot(vec![cpu(0), cpu(1)], ranks.into_iter().chain(helpers).collect());
        for policy in both_policies() {
            for plan in plans(&view, policy.clone()) {
                assert_eq!(moves(&plan), [], "{policy:?}");
            }
        }
    }
}

#[test]
fn a_launcher_alone_is_not_balanced() {
    let view = snapshot(vec![cpu(0), cpu(1)], vec![helper(1, 0), helper(2, 0)]);
    for policy in both_policies() {
        for plan in plans(&view, policy) {
            assert_eq!(moves(&plan), []);
        }
    }
}
