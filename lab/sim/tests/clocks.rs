//! Clocks that differ: a cheap one is behind, and those of two CPUs are not quite the same. Each test
//! has a keel in which that is so, and the same keel without the guard against it.

#![allow(clippy::unwrap_used)]

mod common;

use common::build::with_faults;
use common::{Sim, caches};
use evenkeel_keel::{Gate, Level, Options};
use evenkeel_sim::Scheduler;
use evenkeel_sim::program::Workload;

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
