//! How strictly the checkers of lab/invariants judge a simulation.

use evenkeel_invariants::Limits;

/// Limits for a simulation without faults: the clock is exact, and so are the rules.
pub const STRICT: Limits = Limits {
    wait_ns: 1_000_000_000,
    wait_per_task_ns: 100_000_000,
    affinity_grace_ns: 1_000_000,
    idle_grace_ns: 20_000_000,
    // Two intervals of the relief, a tick and a slice.
    shield_grace_ns: 250_000_000,
    share_window_ns: 2_000_000_000,
    share_tolerance_pct: 5,
    share_slack_ns: 50_000_000,
    charge_tolerance_pct: 0,
    charge_slack_ns: 0,
};

/// Limits for a simulation with all faults: CPUs come and go, kicks are late, masks and weights change
/// all the time. What must hold even then: no task is lost, no task runs outside its mask, each task
/// gets a turn, and run times add up.
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
