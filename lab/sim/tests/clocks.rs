//! Clocks that differ: a cheap one is behind, and those of two CPUs are not quite the same. Each test
//! has a keel in which that is so, and the same keel without the guard against it.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::build::with_faults;
use common::{MS, Sim, caches, hog, only, paper};
use evenkeel_keel::{Balance, Gate, IdleWait, Level, Options};
use evenkeel_machine::CpuSet;
use evenkeel_sim::program::{Change, Op, TaskPlan, Workload};
use evenkeel_sim::{Mask, Scheduler};

/// How many refusals a keel keeps less than a sample after the one before. Its cheap clock is by turns
/// 1 ms behind.
fn kept_early(has_guard: bool) -> u64 {
    const FILE: &str = "bpf/keel/ask_gate.h";
    let behind = "\tticked = ticked > switched ? ticked : switched;\n\
                  \treturn c->counters[COUNT_ENQUEUE] & 1 && ticked > 1000000 ? ticked - 1000000 :\n\
                  \t\tticked;\n";
    let early = "\tif (c->decided && now < c->decision[BOUNDED(c->decided - 1, MAX_DECISIONS)].at_ns +\n\
                 \t\tDECISION_SAMPLE_NS)\n\
                 \t\tcount_on(c, COUNT_SLOTLESS);\n\
                 \tdecision->at_ns = now;\n";
    let mut faults = vec![
        (FILE, "\treturn ticked > switched ? ticked : switched;\n", behind),
        (FILE, "\tdecision->at_ns = now;\n", early),
    ];
    if !has_guard {
        faults.push((FILE, "now > at_ns && ", ""));
    }
    let mut options = Options { gate: Gate::Zone, ..Options::default() };
    options.zone.set_level("hot".parse::<Level>().unwrap());
    let workload = Workload::by_name("background:cpus=4,pct=40,work=300us", 1).unwrap();
    let scheduler = Scheduler::Built(options, with_faults(&faults).into());
    let outcome = Sim { workload, scheduler, ..Sim::new(caches(4, 1)) }.outcome();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    assert!(outcome.counters["refuse_wake"] > 0, "{:?}", outcome.counters);
    outcome.counters["slotless"]
}

/// Of the refusals in 4 ms a CPU keeps the first one, also where the clock of the next one is behind.
#[test]
fn a_clock_that_is_behind_keeps_no_refusal_early() {
    assert_eq!(kept_early(true), 0);
    assert!(kept_early(false) > 0);
}

/// In a simulation of this keel the clock of CPU 0 is so far ahead of the others, or behind them.
fn skewed(first_ns: u64, others_ns: u64) -> [String; 2] {
    let counted = "\tsim_host->calls++;\n\treturn sim_host->now_ns";
    [format!("{counted};\n"), format!("{counted} + (sim_host->cpu ? {others_ns} : {first_ns});\n")]
}

/// A task runs on CPU 0 for 7 s, and then on CPU 1, where the clock is 2 ms behind. When faster CPUs
/// idle, the gate is asked about it: how often it had its prize for 5 s, and how often it migrated.
fn prized_and_moved(has_guard: bool) -> (u64, u64) {
    let [equal, ahead] = skewed(2 * MS, 0);
    let mut faults = vec![("lab/sim/native/kernel.h", equal.as_str(), ahead.as_str())];
    if !has_guard {
        let guarded = "u64 rest_ns = now > t->share_since_ns ? now - t->share_since_ns : 0;";
        faults.push(("bpf/keel/task.h", guarded, "u64 rest_ns = now - t->share_since_ns;"));
    }
    let mut options = Options {
        gate: Gate::Zone,
        max_idle_wait: IdleWait::NEVER,
        balance: Balance::Capability,
        parts: "active".parse().unwrap(),
        ..Options::default()
    };
    for (name, value) in
        [("zone", "warm-low"), ("bal_cpus_avg_enable", "1"), ("balance_idle_cal", "1")]
    {
        options.set_parameter(name, value).unwrap();
    }
    let scheduler = Scheduler::Built(options, with_faults(&faults).into());
    let mut sim = Sim { scheduler, ..Sim::new(caches(3, 1)) }
        .task(TaskPlan { allowed: only(0), ..hog(90_000 * MS) });
    let to = |allowed| Change::Affinity { task: 0, allowed };
    sim.workload.changes = vec![
        (7_000 * MS, to(only(1).unwrap())),
        (7_050 * MS, to(Arc::new(Mask::from(&CpuSet::first(3))))),
        (7_100 * MS, Change::Told(vec![1024, 400, 1024])),
    ];
    sim.workload.duration_ns = 7_300 * MS;
    let outcome = sim.outcome();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    let counters = &outcome.counters;
    (counters["gate_prized"], counters["move_active"] + counters["move_idle"])
}

/// A task keeps its prize when it comes to a CPU with a clock that is a little behind.
#[test]
fn a_clock_that_is_behind_takes_no_prize() {
    let (prized, moved) = prized_and_moved(true);
    assert!(prized > 0 && moved == 0, "prized {prized}, moved {moved}");
    let (prized, moved) = prized_and_moved(false);
    assert!(prized == 0 && moved > 0, "prized {prized}, moved {moved}");
}

/// How often a task of little weight preempts one of much weight on CPU 1. It gets more than its share
/// there, so that it is never ahead. A task on CPU 0, where the clock is 2 ms behind, wakes it.
fn preempted(has_guard: bool) -> u64 {
    let [equal, behind] = skewed(0, 2 * MS);
    let mut faults = vec![("lab/sim/native/kernel.h", equal.as_str(), behind.as_str())];
    if !has_guard {
        let guarded = "now > since_ns ? now - since_ns : 0, weight)";
        faults.push(("bpf/keel/turn.h", guarded, "now - since_ns, weight)"));
    }
    let scheduler = Scheduler::Built(Options::default(), with_faults(&faults).into());
    let waker = vec![Op::Sleep(MS / 2), Op::Run(MS / 10), Op::Send(0), Op::Receive(1), Op::Goto(0)];
    let wakee = vec![Op::Receive(0), Op::Run(MS / 10), Op::Send(1), Op::Goto(0)];
    let mut sim = Sim { scheduler, ..Sim::new(paper(2)) }
        .task(TaskPlan { allowed: only(0), ..TaskPlan::new("waker", waker) })
        .task(TaskPlan { allowed: only(1), ..TaskPlan::new("wakee", wakee) })
        .task(TaskPlan { allowed: only(1), nice: -20, ..hog(90_000 * MS) });
    sim.workload.channels = 2;
    sim.workload.duration_ns = 4_000 * MS;
    let outcome = sim.outcome();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    outcome.counters["preempt"]
}

/// A task that has just got its CPU, by a clock that is ahead of the waker's, has not run for ever.
#[test]
fn a_clock_that_is_behind_preempts_no_task_in_vain() {
    let (with_guard, without) = (preempted(true), preempted(false));
    assert!(10 * with_guard < without, "{with_guard} preemptions, without the guard {without}");
}
