//! The gate `zone` in the whole keel: it may keep a task waiting while a CPU idles, and not for long.

#![allow(clippy::unwrap_used)]

mod common;

use evenkeel_keel::{Gate, IdleWait, Level, Options};
use evenkeel_sim::Report;
use evenkeel_sim::program::Workload;

use common::{Sim, paper};

fn quiet(cpus: u32, level: &str, max_idle_wait: IdleWait) -> Sim {
    let mut options = Options { gate: Gate::Zone, max_idle_wait, ..Options::default() };
    options.zone.set_level(level.parse::<Level>().unwrap());
    // All are there at once, on CPUs that are quiet.
    let workload = Workload::by_name(&format!("background:cpus={cpus},pct=20,gap=0ms"), 1).unwrap();
    Sim { workload, ..Sim::keel_with(paper(cpus), options) }
}

#[test]
fn nobody_waits_for_long_while_a_cpu_idles() {
    for cpus in [4, 16, 64] {
        for level in ["cold", "warm-mid", "hot"] {
            // That it is not longer than the patience and the usual grace is checked.
            quiet(cpus, level, IdleWait::default()).run();
        }
    }
}

/// Kept where they come to be, they would stay there as long as the gate says so.
#[test]
fn who_is_new_is_placed_in_the_quiet_zone_too() {
    let forks = |wait| {
        let simulation = quiet(16, "hot", wait).simulation();
        let report = Report::new(&simulation, &simulation.run().unwrap());
        assert!(report.is_good(), "{:?} {:?}", report.end, report.violations);
        (report.counters["move_fork"], report.counters["refuse_fork"])
    };
    let ((moved, refused), strict) = (forks(IdleWait::default()), forks(IdleWait::NEVER));
    assert!(moved > 0 && refused == 0, "{moved} {refused}");
    assert!(strict.1 > 0 && strict.0 < moved, "{strict:?}, else {moved}");
}

/// Where no CPU idles and the waker's is no better, there is nothing to allow or to refuse.
#[test]
fn the_gate_is_not_asked_about_who_can_only_stay() {
    let asked = |cpus| {
        let simulation = quiet(cpus, "hot", IdleWait::default()).simulation();
        let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
        (counters["refuse_wake"], counters["gate_quiet"] + counters["gate_busy"])
    };
    assert_eq!(asked(1), (0, 0));
    // Elsewhere each answer is of one question.
    let simulation = quiet(4, "warm-mid", IdleWait::default()).simulation();
    let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
    let sum = |prefix: &str| -> u64 {
        counters.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, count)| count).sum()
    };
    assert!(counters["refuse_wake"] > 0, "{counters:?}");
    assert_eq!(sum("move_") + sum("refuse_"), sum("gate_") + counters["ungated"], "{counters:?}");
}

/// Who is kept from a CPU that idles need not be far ahead of who runs on its own: unless strict.
#[test]
fn whom_the_gate_keeps_goes_before_who_is_behind_it() {
    let kept = |wait| {
        let workload = Workload::by_name("background:cpus=4,pct=40,work=300us", 1).unwrap();
        let simulation = Sim { workload, ..quiet(4, "hot", wait) }.simulation();
        let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
        (counters["preempt"], counters["refuse_wake"])
    };
    let (preempted, refused) = kept(IdleWait::default());
    assert!(2 * preempted > refused, "{preempted} {refused}");
    let (preempted, refused) = kept(IdleWait::NEVER);
    assert!(2 * preempted < refused, "{preempted} {refused}");
}

#[test]
fn whom_the_gate_keeps_waits_for_ever_where_that_is_wanted() {
    let idle_ms = |wait| {
        let simulation = quiet(4, "hot", wait).simulation();
        let outcome = simulation.run().unwrap();
        Report::new(&simulation, &outcome).idle_while_waiting_ms
    };
    let (bounded, strict) = (idle_ms(IdleWait::default()), idle_ms(IdleWait::NEVER));
    assert!(strict > 1.3 * bounded, "{strict} {bounded}");
}
