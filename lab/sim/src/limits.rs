//! How strictly the checkers of lab/invariants judge a simulation.

use evenkeel_invariants::Limits;

/// Rules for a simulation without faults: the clock is exact, and so are the rules.
pub const STRICT: Limits = Limits {
    wait_ns: 1_000_000_000,
    wait_per_task_ns: 100_000_000,
    affinity_grace_ns: 1_000_000,
    idle_grace_ns: 20_000_000,
    // Two looks of the loader, a tick and a slice.
    shield_grace_ns: 250_000_000,
    share_window_ns: 2_000_000_000,
    share_tolerance_pct: 5,
    share_slack_ns: 50_000_000,
    charge_tolerance_pct: 0,
    charge_slack_ns: 0,
};

/// Rules for a simulation in which everything goes wrong: CPUs come and go, kicks are late, masks and
/// weights change all the time. What must hold even then: nobody is lost, nobody runs where it may
/// not, everybody gets a turn, run times add up.
pub const TORTURE: Limits = Limits {
    wait_ns: 10_000_000_000,
    wait_per_task_ns: 500_000_000,
    affinity_grace_ns: 1_000_000,
    idle_grace_ns: 0,
    shield_grace_ns: u64::MAX,
    share_window_ns: u64::MAX,
    share_tolerance_pct: 100,
    share_slack_ns: u64::MAX / 2,
    charge_tolerance_pct: 0,
    charge_slack_ns: 0,
};
