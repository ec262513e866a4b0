//! The gate `zone` in the whole keel: it may keep a task waiting while a CPU idles, but not for long.

#![allow(clippy::unwrap_used)]

mod common;

use evenkeel_keel::{Balance, Gate, IdleWait, Level, Options};
use evenkeel_sim::Report;
use evenkeel_sim::program::{Change, Op, TaskPlan, Thief, Workload};

use common::{MS, Sim, hog, only, paper};

fn quiet(cpus: u32, level: &str, max_idle_wait: IdleWait) -> Sim {
    let mut options = Options { gate: Gate::Zone, max_idle_wait, ..Options::default() };
    options.zone.set_level(level.parse::<Level>().unwrap());
    // All tasks arrive at once, and CPUs are in the quiet zone.
    let workload = Workload::by_name(&format!("background:cpus={cpus},pct=20,gap=0ms"), 1).unwrap();
    Sim { workload, ..Sim::keel_with(paper(cpus), options) }
}

#[test]
fn the_gate_keeps_no_task_waiting_beyond_max_idle_wait() {
    for cpus in [4, 16, 64] {
        for level in ["cold", "warm-mid", "hot"] {
            // The checkers judge by max_idle_wait and the usual grace.
            quiet(cpus, level, IdleWait::default()).run();
        }
    }
}

/// New tasks that the gate kept on their parent's CPU would stay there as long as the zone is quiet.
#[test]
fn new_tasks_are_placed_in_the_quiet_zone_unless_strict() {
    let forks = |wait| {
        let simulation = quiet(16, "hot", wait).simulation();
        let report = Report::new(&simulation, &simulation.run().unwrap());
        assert!(report.is_good(), "end {:?}, violations {:?}", report.end, report.violations);
        (report.counters["move_fork"], report.counters["refuse_fork"])
    };
    let ((moved, refused), strict) = (forks(IdleWait::default()), forks(IdleWait::NEVER));
    assert!(moved > 0 && refused == 0, "forked tasks: {moved} moved, {refused} refused");
    assert!(
        strict.1 > 0 && strict.0 < moved,
        "moved and refused by a strict gate: {strict:?}; moved otherwise: {moved}"
    );
}

/// The paper's three occasions: "A task is newly created", "An idle task wakes up", "A running task
/// belongs to the busiest scheduling group". A strict gate is asked on each, and no task moves without
/// it.
#[test]
fn a_strict_gate_is_asked_on_each_of_the_three_occasions() {
    let workload = Workload::by_name("background:cpus=16,pct=60,gap=0ms", 1).unwrap();
    let simulation = Sim { workload, ..quiet(16, "hot", IdleWait::NEVER) }.simulation();
    let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
    for occasion in ["fork", "wake", "idle"] {
        assert!(counters[&format!("refuse_{occasion}")] > 0, "{occasion}: {counters:?}");
    }
    assert_eq!(counters["ungated"], 0);
}

/// Tasks leave a CPU that a real-time task took while it was idle. No gate is asked, however low the
/// CPU's utilisation and however strict the gate.
#[test]
fn no_task_waits_behind_a_real_time_task_that_took_an_idle_cpu() {
    // It takes CPU 0 while that idles, for half a second. Soon after, the sleepers wake up, and the
    // utilisation of CPU 0 is still in the quiet zone.
    let thief = Thief { cpu: 0, run_ns: 500 * MS, period_ns: 3000 * MS, from_ns: 198 * MS };
    let ops = || vec![Op::Run(MS), Op::Sleep(200 * MS), Op::Repeat { to: 0, times: 5 }];
    for wait in [IdleWait::default(), IdleWait::NEVER] {
        let sim = Sim { workload: Workload::default(), ..quiet(2, "hot", wait) };
        let sim = sim.tasks(2, TaskPlan::new("sleeper", ops())).thief(thief);
        let simulation = sim.simulation();
        let report = Report::new(&simulation, &simulation.run().unwrap());
        assert!(report.is_good(), "end {:?}, violations {:?}", report.end, report.violations);
        assert!(report.wait.max_ms < 20.0, "{:?} under {wait:?}", report.wait);
    }
}

/// Where no CPU idles and the waker's CPU is no better, there is nothing to allow or refuse.
#[test]
fn the_gate_is_not_asked_about_tasks_that_can_only_stay() {
    let asked = |cpus| {
        let simulation = quiet(cpus, "hot", IdleWait::default()).simulation();
        let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
        (counters["refuse_wake"], counters["gate_quiet"] + counters["gate_busy"])
    };
    assert_eq!(asked(1), (0, 0));
    // With more CPUs, each question has one answer.
    let simulation = quiet(4, "warm-mid", IdleWait::default()).simulation();
    let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
    let sum = |prefix: &str| -> u64 {
        counters.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, count)| count).sum()
    };
    assert!(counters["refuse_wake"] > 0, "{counters:?}");
    assert_eq!(sum("move_") + sum("refuse_"), sum("gate_") + counters["ungated"], "{counters:?}");
}

/// The gate does not depend on the task, so its verdict is the same for all tasks that wait on a CPU:
/// an idle CPU asks once for each level.
#[test]
fn an_idle_cpu_asks_the_gate_once_for_each_level() {
    for wait in [IdleWait::default(), IdleWait::NEVER] {
        let workload = Workload::by_name("background:cpus=4,pct=60,gap=0ms", 1).unwrap();
        let simulation = Sim { workload, ..quiet(4, "warm-high", wait) }.simulation();
        let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
        let (refused, tries) = (counters["refuse_idle"], counters["try_idle"]);
        assert!(
            refused > 0 && refused <= tries,
            "{refused} refusals in {tries} tries under {wait:?}"
        );
    }
}

/// A task that the gate keeps from an idle CPU preempts by a smaller margin, unless the gate is strict.
#[test]
fn a_task_that_the_gate_keeps_local_preempts_earlier() {
    let kept = |wait| {
        let workload = Workload::by_name("background:cpus=4,pct=40,work=300us", 1).unwrap();
        let simulation = Sim { workload, ..quiet(4, "hot", wait) }.simulation();
        let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
        (counters["preempt"], counters["refuse_wake"])
    };
    let (preempted, refused) = kept(IdleWait::default());
    assert!(2 * preempted > refused, "{preempted} preemptions, {refused} refusals");
    let (preempted, refused) = kept(IdleWait::NEVER);
    assert!(2 * preempted < refused, "{preempted} preemptions, {refused} refusals");
}

#[test]
fn a_strict_gate_keeps_cpus_idle_for_longer() {
    let idle_ms = |wait| {
        let simulation = quiet(4, "hot", wait).simulation();
        let outcome = simulation.run().unwrap();
        Report::new(&simulation, &outcome).idle_while_waiting_ms
    };
    let (bounded, strict) = (idle_ms(IdleWait::default()), idle_ms(IdleWait::NEVER));
    assert!(
        strict > 1.3 * bounded,
        "idle ms while tasks waited: strict {strict}, bounded {bounded}"
    );
}

/// A strict gate that compares the mean of three CPUs, of which one is busy, with 30 %: a prize of 5
/// points makes it refuse.
fn scoring() -> Options {
    let mut options =
        Options { gate: Gate::Zone, max_idle_wait: IdleWait::NEVER, ..Options::default() };
    for (name, value) in
        [("zone", "warm-low"), ("bal_cpus_avg_enable", "1"), ("balance_idle_cal", "1")]
    {
        options.set_parameter(name, value).unwrap();
    }
    options
}

/// A task that did not stop running for 5 s has a prize when it first has to wait, and stays. One that
/// ran for a shorter time is pulled by an idle CPU.
#[test]
fn a_task_that_never_stopped_for_5_s_keeps_its_cpu() {
    let pulls = |ran_ms: u64| {
        let late = TaskPlan { allowed: only(0), arrives_ns: Some(ran_ms * MS), ..hog(9_000 * MS) };
        // The idle CPUs look for work now and then.
        let ops = vec![Op::Run(MS / 10), Op::Sleep(10 * MS), Op::Goto(0)];
        let looks = |cpu| TaskPlan { allowed: only(cpu), ..TaskPlan::new("looks", ops.clone()) };
        let sim = Sim::keel_with(paper(3), scoring());
        let mut sim = sim.task(hog(9_000 * MS)).task(late).task(looks(1)).task(looks(2));
        sim.workload.duration_ns = (ran_ms + 300) * MS;
        let mut simulation = sim.simulation();
        // A strict gate lets CPUs idle.
        simulation.limits = None;
        let counters = simulation.run().unwrap().counters;
        (counters["move_idle"], counters["gate_prized"])
    };
    let (young, old) = (pulls(1_000), pulls(6_000));
    assert!(young.0 > 0 && young.1 == 0, "after 1 s: pulled, prized {young:?}");
    assert!(old.0 == 0 && old.1 > 0, "after 6 s: pulled, prized {old:?}");
}

/// The same for the running task itself, of which the gate is asked when a faster CPU idles.
#[test]
fn a_running_task_has_the_share_of_a_task_that_runs() {
    let leaves = |ran_ms: u64| {
        let parts = "active".parse().unwrap();
        let options = Options { balance: Balance::Capability, parts, ..scoring() };
        let mut sim = Sim::keel_with(paper(3), options).task(hog(9_000 * MS));
        sim.workload.changes = vec![(ran_ms * MS, Change::Told(vec![400, 1024, 1024]))];
        sim.workload.duration_ns = (ran_ms + 300) * MS;
        let counters = sim.run().counters;
        (counters["move_active"], counters["gate_prized"])
    };
    let (young, old) = (leaves(1_000), leaves(6_000));
    assert_eq!(young, (1, 0), "after 1 s: left, prized");
    assert!(old.0 == 0 && old.1 > 0, "after 6 s: left, prized {old:?}");
}

/// A long rest ends the time above the limit: the prize is for a task that stays above it.
#[test]
fn a_task_that_slept_has_to_earn_its_prize_anew() {
    let parts = "active".parse().unwrap();
    let options = Options { balance: Balance::Capability, parts, ..scoring() };
    let ops = vec![Op::Run(6_000 * MS), Op::Sleep(1_000 * MS), Op::Run(9_000 * MS)];
    let mut sim = Sim::keel_with(paper(3), options).task(TaskPlan::new("slept", ops));
    sim.workload.changes = vec![(8_000 * MS, Change::Told(vec![400, 1024, 1024]))];
    sim.workload.duration_ns = 8_300 * MS;
    let counters = sim.run().counters;
    assert_eq!((counters["move_active"], counters["gate_prized"]), (1, 0));
}
