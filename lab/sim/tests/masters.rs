//! What the master of a group publishes under the order `ias`, in its mode `rounds`: the space that has
//! its turn there while a task of it runs, and nothing while the master idles.

#![allow(clippy::unwrap_used)]

mod common;

use common::build::with_faults;
use common::{MS, Sim, only, paper};
use evenkeel_keel::{Aggregation, Options, Order};
use evenkeel_sim::program::{Op, TaskPlan};
use evenkeel_sim::{Outcome, Scheduler};

/// A file of the keel's source, a text in it, and what replaces that.
type Fault = (&'static str, &'static str, &'static str);

/// When a task gets a master's CPU: counts it if its space has the turn and is not published.
const UNPUBLISHED: Fault = (
    "bpf/keel/task.h",
    "\tnote_turn(p, t, cpu, c, now);\n",
    "\tnote_turn(p, t, cpu, c, now);\n\
     \tbool leads;\n\
     \tstruct publication *published = find_publication(cpu, &leads);\n\
     \tif (published && leads && c->turn_space && c->turn_space == t->seen_space &&\n\
     \t    published->space != c->turn_space)\n\
     \t\tcount_on(c, COUNT_SLOTLESS);\n",
);

/// Runs a keel with these faults, in which all programs aggregate.
fn run(sim: Sim, options: Options, faults: &[Fault]) -> Outcome {
    let mut sim = Sim { scheduler: Scheduler::Built(options, with_faults(faults).into()), ..sim };
    let how = Aggregation { pid: 0, agg: 1, bonus_type: 1, bonus_value: 3, limit: 0 };
    sim.workload.aggregate(Some(how));
    sim.run()
}

/// How often a task runs on the master, CPU 0, without being published, although its space has the turn
/// there. Two threads of one program have that CPU for themselves; each runs while the other one sleeps.
/// The one that runs less has credit when it wakes, so that it passes the turn, which has not ended.
fn unpublished(faults: &[Fault]) -> u64 {
    let mut options = Options { order: Order::Ias, ..Options::default() };
    options.set_parameter("ias_turn", "20ms").unwrap();
    let thread = |ops| TaskPlan { allowed: only(0), ..TaskPlan::new("thread", ops) };
    let mut sim = Sim::new(paper(2))
        .task(thread(vec![Op::Run(4 * MS), Op::Sleep(16 * MS), Op::Goto(0)]))
        .task(thread(vec![Op::Sleep(10 * MS), Op::Run(3 * MS), Op::Sleep(7 * MS), Op::Goto(0)]));
    sim.workload.duration_ns = 2_000 * MS;
    run(sim, options, &[&[UNPUBLISHED][..], faults].concat()).counters["slotless"]
}

#[test]
fn a_turn_ends_when_its_cpu_idles() {
    assert_eq!(unpublished(&[]), 0);
    let goes_on = ("bpf/keel/sibling.h", "\t\tWRITE_ONCE(c->turn_space, 0);\n", "\t\t(void)0;\n");
    assert!(unpublished(&[goes_on]) > 10);
}
