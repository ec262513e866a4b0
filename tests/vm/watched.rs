//! Runs a load under the eyes of the witness: whatever it is that schedules, no invariant may break.

use std::time::{Duration, Instant};

use evenkeel_invariants::{Findings, Limits};
use evenkeel_witness::Witness;

use crate::boots;

const MS: u64 = 1_000_000;

/// What an emulator on a busy host allows: its CPUs stand still for some 100 ms now and then,
/// between any two instructions. A task that is lost, a mask that is ignored or a CPU that is
/// forgotten shows beyond any limit.
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

/// Where instructions of one CPU are counted the host does not matter, and a millisecond is one.
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

/// Events of some ten seconds fit in; who runs longer looks at them in between.
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

/// Calls `step` again and again, for as long as a test takes, and looks at what was seen meanwhile.
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

/// For loads that need nobody to go on.
pub fn rest() {
    std::thread::sleep(Duration::from_millis(100));
}
