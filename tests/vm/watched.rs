//! Runs a load while the witness reports its events to the checkers: no invariant may break, under any
//! scheduler.

use std::time::{Duration, Instant};

use evenkeel_invariants::{Findings, Limits};
use evenkeel_witness::Witness;

use crate::boots;

const MS: u64 = 1_000_000;

/// Limits that hold in an emulator on a busy host, where a CPU may stand still for some 100 ms
/// between any two instructions. A lost task, an ignored mask or a forgotten CPU exceeds any limit.
pub const ROUGH: Limits = Limits {
    wait_ns: 5000 * MS,
    wait_per_task_ns: 50 * MS,
    affinity_grace_ns: 1000 * MS,
    idle_grace_ns: 1000 * MS,
    shield_grace_ns: 5000 * MS,
    share_window_ns: 3_600_000 * MS,
    share_tolerance_pct: 100,
    share_slack_ns: 0,
    charge_tolerance_pct: 10,
    charge_slack_ns: 5000 * MS,
};

/// Where the instructions of one CPU are counted, the host does not matter, and times are exact.
pub const EXACT: Limits = Limits {
    wait_ns: 100 * MS,
    wait_per_task_ns: 20 * MS,
    affinity_grace_ns: 10 * MS,
    idle_grace_ns: 20 * MS,
    shield_grace_ns: 250 * MS,
    share_window_ns: 1000 * MS,
    share_tolerance_pct: 5,
    share_slack_ns: 10 * MS,
    charge_tolerance_pct: 2,
    charge_slack_ns: 5 * MS,
};

/// Events of some ten seconds fit in; a longer load has them read in between.
const BUFFER_MIB: u32 = 128;

/// Runs `load` and returns what was seen of it; fails if an invariant was broken.
pub fn watched(limits: Limits, load: impl FnOnce(&Witness)) -> Findings {
    let witness = Witness::open(limits, BUFFER_MIB).unwrap();
    load(&witness);
    let findings = witness.end().unwrap();
    let ms = |ns: u64| ns / MS;
    println!(
        "{} events, longest wait {} ms, longest idle {} ms, {} shares, {} charges",
        findings.events,
        ms(findings.longest_wait_ns),
        ms(findings.longest_idle_ns),
        findings.shares_judged,
        findings.charges_judged
    );
    for violation in &findings.violations {
        println!("{violation}");
    }
    assert_eq!(findings.count, 0, "broken invariants");
    findings
}

/// Calls `step` again and again, for as long as a test takes, and has the events checked meanwhile.
pub fn for_a_while(witness: &Witness, mut step: impl FnMut()) {
    let end = Instant::now() + boots::duration();
    while Instant::now() < end {
        let look = (Instant::now() + Duration::from_secs(2)).min(end);
        while Instant::now() < look {
            step();
        }
        witness.look().unwrap();
    }
}

/// A step for loads that go on by themselves.
pub fn rest() {
    std::thread::sleep(Duration::from_millis(100));
}
