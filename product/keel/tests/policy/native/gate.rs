//! The gate policy as Rust sees it.

use super::raw;

/// `struct gate_view`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct GateView {
    pub reason: u32,
    pub source_utilisation: u32,
    /// 1: a task waits there.
    pub source_waits: u32,
    pub mean_utilisation: u32,
    pub task_share: u32,
    pub task_above_ns: u64,
}

/// `struct gate_stay`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct GateStay {
    pub burst_ns: u64,
    pub cpu_burst_ns: u64,
    pub waiters: u32,
    pub cpus: u32,
    pub preempts: u32,
    pub open: u32,
}

/// `struct zone_knobs`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct ZoneKnobs {
    pub level: u32,
    pub use_mean: u32,
    pub count_idle: u32,
    pub weigh: u32,
    pub prize_score_pct: u32,
    pub punish_score_pct: u32,
    pub prize_time_ns: u64,
    pub punish_time_ns: u64,
}

/// `enum gate_verdict`.
pub const OPEN: u32 = 0;
pub const BUSY: u32 = 1;
pub const PUNISHED: u32 = 2;
pub const CROWDED: u32 = 3;
pub const REFUSALS: u32 = 5;
pub const QUIET: u32 = 5;
pub const PRIZED: u32 = 6;
/// `GATE_BY_TASK`: the CPU's verdict depends on the task.
pub const BY_TASK: u32 = 8;

/// The verdict about all tasks of a CPU.
pub fn opening(kind: u32, zone: &ZoneKnobs, view: &GateView) -> u32 {
    raw::test_gate_judge_cpu(kind, zone, view)
}

pub fn enough_cpus(mean_utilisation: u32, online: u32) -> u32 {
    raw::test_gate_enough_cpus(mean_utilisation, online)
}

pub fn max_wait_ns(zone: &ZoneKnobs, burst_ns: u64) -> u64 {
    raw::test_gate_max_wait(zone, burst_ns)
}

pub fn stays(zone: &ZoneKnobs, stay: &GateStay) -> bool {
    raw::test_gate_should_stay(zone, stay) != 0
}

pub fn burst(mean_ns: u64, ns: u64) -> u64 {
    raw::test_gate_update_burst(mean_ns, ns)
}

pub fn verdict(kind: u32, zone: &ZoneKnobs, view: &GateView) -> u32 {
    raw::test_gate_judge_task(kind, zone, view)
}

pub fn weighs(kind: u32, zone: &ZoneKnobs) -> bool {
    raw::test_gate_has_scores(kind, zone) != 0
}

/// The mean of the CPUs that count, each given by its utilisation and whether it idles.
pub fn mean(zone: &ZoneKnobs, cpus: &[(u32, bool)]) -> u32 {
    let (shares, idle): (Vec<u32>, Vec<u8>) =
        cpus.iter().map(|(share, idle)| (*share, u8::from(*idle))).unzip();
    // SAFETY: the function reads as many of both as there are.
    unsafe { raw::test_gate_calc_mean(zone, shares.as_ptr(), idle.as_ptr(), cpus.len() as u32) }
}

pub fn concerns(reason: u32, max_idle_wait_ns: u64) -> bool {
    raw::test_gate_is_asked(reason, max_idle_wait_ns) != 0
}

pub fn above_since(zone: &ZoneKnobs, since_ns: u64, share: u32, now: u64) -> u64 {
    raw::test_gate_update_above_since(zone, since_ns, share, now)
}

pub fn ends_above(zone: &ZoneKnobs, rest_ns: u64) -> bool {
    raw::test_gate_ends_above(zone, rest_ns) != 0
}
