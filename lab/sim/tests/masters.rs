//! What the master of a group publishes under the order `ias`, in its mode `rounds`: the space that has
//! its turn there while a task of it runs, and nothing while the master idles.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::build::with_faults;
use common::{MS, Sim, hog, only, paper};
use evenkeel_keel::{Aggregation, Balance, Options, Order};
use evenkeel_machine::{Costs, CpuSet, Machine};
use evenkeel_sim::program::{Change, Op, TaskPlan};
use evenkeel_sim::{Mask, Outcome, Scheduler};

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

/// When a CPU begins to idle: counts it if it publishes a space as a master.
const PUBLISHES: Fault = (
    "bpf/keel/tick.h",
    "\tif (idle) {\n\t\tnote_returned(c);\n",
    "\tif (idle) {\n\
     \t\tbool leads;\n\
     \t\tstruct publication *published = find_publication(cpu, &leads);\n\
     \t\tif (published && leads && published->space)\n\
     \t\t\tcount_on(c, COUNT_SLOTLESS);\n\
     \t\tnote_returned(c);\n",
);

/// The master, CPU 0, is the slower one of two CPUs. Its only task migrates while it runs, once the
/// other CPU idles. How often CPU 0 idles and publishes.
fn idle_and_published(faults: &[Fault]) -> u64 {
    let text = "name = \"pair\"\nkinds = [{ cpus = \"0\", capability = 512 },\n\
                { cpus = \"1\", capability = 1024 }]\n";
    let machine = Machine { costs: Costs::none(), ..Machine::parse_toml(text, "pair").unwrap() };
    let options = Options {
        order: Order::Ias,
        balance: Balance::Capability,
        parts: "active".parse().unwrap(),
        ..Options::default()
    };
    let mut sim = Sim::new(machine)
        .task(TaskPlan { allowed: only(0), ..hog(1_000 * MS) })
        .task(TaskPlan { space: 1, allowed: only(1), ..hog(100 * MS) });
    let allowed = Arc::new(Mask::from(&CpuSet::first(2)));
    sim.workload.changes = vec![(20 * MS, Change::Affinity { task: 0, allowed })];
    let outcome = run(sim, options, &[&[PUBLISHES][..], faults].concat());
    assert_eq!(outcome.counters["move_active"], 1, "{:?}", outcome.counters);
    outcome.counters["slotless"]
}

#[test]
fn a_master_without_its_task_publishes_nothing() {
    assert_eq!(idle_and_published(&[]), 0);
    let kept = ("bpf/keel/queue.h", "\t\t\tend_turn(own, c);\n", "");
    assert!(idle_and_published(&[kept]) > 0);
}
