//! Processes that tests start in the guest: this program again.

/// The argument before a role's name.
pub const ROLE: &str = "role";

/// The command that plays a role; set `EVENKEEL_TEST_ROLE` to its name, too.
pub fn role(name: &'static str) -> Vec<&'static str> {
    vec!["/init", ROLE, name]
}

/// Plays it.
pub fn play(name: &str) {
    match name {
        "worker" => crate::worker::worker(),
        "victim" => crate::storms::play_victim(),
        "siblings" => crate::policies::play_siblings(),
        "pool" => crate::policies::play_pool(),
        "sleepers" => crate::users::play_sleepers(),
        "pair" => crate::unequal::play_pair(),
        "changeling" => crate::policies::play_changeling(),
        "forks" => crate::storms::play_forks(),
        "adversary-deep" => crate::adversaries::play_deep(),
        "adversary-groups" => crate::adversaries::play_groups(),
        "adversary-execs" => crate::adversaries::play_execs(),
        "adversary-exec" => crate::adversaries::play_exec(),
        "adversary-nice" => crate::adversaries::play_nice(),
        "adversary-yield" => crate::adversaries::play_yield(),
        "adversary-masks" => crate::adversaries::play_masks(),
        "adversary-siblings" => crate::adversaries::play_siblings(),
        "adversary-classes" => crate::adversaries::play_classes(),
        "adversary-pinned" => crate::adversaries::play_pinned(),
        "toucher" => crate::units::play_toucher(),
        "hog" => crate::storms::play_hog(),
        "nothing" => {}
        other => panic!("no role is called {other}"),
    }
}
