//! Events for tests, in one line each: times are in milliseconds.

use evenkeel_machine::CpuSet;

use crate::event::{Class, Event, Left, Tid, What};
use crate::findings::Limits;
use crate::watch::Watch;

pub fn ms(time: u64) -> u64 {
    time * 1_000_000
}

pub fn at(time: u64, what: What) -> Event {
    Event { time_ns: ms(time), cpu: 0, what }
}

pub fn wake(time: u64, task: Tid) -> Event {
    at(time, What::Wakeup { task })
}

pub fn fork(time: u64, child: Tid) -> Event {
    at(time, What::Fork { child })
}

pub fn affinity(time: u64, task: Tid, allowed: &str) -> Event {
    at(time, What::Affinity { task, allowed: allowed.parse::<CpuSet>().unwrap() })
}

pub fn shield(time: u64, cpus: &str) -> Event {
    at(time, What::Shield { cpus: cpus.parse::<CpuSet>().unwrap() })
}

pub fn weight(time: u64, task: Tid, weight: u32) -> Event {
    at(time, What::Class { task, class: Class::Fair { weight, group: 0 } })
}

pub fn fair(time: u64, task: Tid) -> Event {
    weight(time, task, 1024)
}

pub fn switch(time: u64, cpu: u32, prev: Tid, left: Left, next: Tid) -> Event {
    charged(time, cpu, prev, left, 0, next)
}

/// A switch that says what the kernel has charged `prev` so far, in milliseconds.
pub fn charged(time: u64, cpu: u32, prev: Tid, left: Left, charged: u64, next: Tid) -> Event {
    let what = What::Switch { prev, left, charged_ns: ms(charged), next };
    Event { time_ns: ms(time), cpu, what }
}

/// Tight limits: a wait of 10 ms and 1 ms more for each task, 5 ms of grace.
pub fn limits() -> Limits {
    Limits {
        wait_ns: ms(10),
        wait_per_task_ns: ms(1),
        affinity_grace_ns: ms(5),
        idle_grace_ns: ms(5),
        shield_grace_ns: ms(5),
        share_window_ns: ms(1000),
        share_tolerance_pct: 5,
        share_slack_ns: ms(10),
        charge_tolerance_pct: 2,
        charge_slack_ns: ms(2),
    }
}

/// The names of the checkers that find a violation in a stream, each once.
pub fn broken_by(events: &[Event], end: u64) -> Vec<&'static str> {
    let mut watch = Watch::new(limits());
    events.iter().for_each(|event| watch.see(event));
    let mut names: Vec<_> =
        watch.end(ms(end)).violations.iter().map(|violation| violation.invariant).collect();
    names.sort_unstable();
    names.dedup();
    names
}
