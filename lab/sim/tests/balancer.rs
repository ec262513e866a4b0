//! The user-level balancer on top of the keel.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MS, Sim, hog, paper};
use evenkeel_capability::{LagParameters, Policy};
use evenkeel_sim::program::Interrupts;

#[test]
fn two_threads_run_at_the_average_of_their_cpus() {
    // CPU 0 loses half of its time to interrupts, which the scheduler does not see.
    let source = Interrupts { cpu: 0, run_ns: MS, period_ns: 2 * MS };
    let sim = Sim::keel(paper(2)).tasks(2, hog(3_000 * MS)).interrupts(source);
    let alone = sim.run();
    let balanced = Sim { balancer: Some(Policy::Lag(LagParameters::default())), ..sim }.run();
    assert_eq!(alone.moves, 0);
    assert!(balanced.moves >= 2);
    // 6 s of work at 1.5 CPUs take 4 s.
    assert!(balanced.time_ns < 4_300 * MS, "balanced: {} ms", balanced.time_ns / MS);
    assert!(
        balanced.time_ns * 10 < alone.time_ns * 9,
        "without the balancer: {} ms",
        alone.time_ns / MS
    );
}

#[test]
fn nothing_is_moved_on_equal_cpus() {
    let sim = Sim::keel(paper(4)).tasks(4, hog(2_000 * MS));
    let balanced = Sim { balancer: Some(Policy::Lag(LagParameters::default())), ..sim }.run();
    assert_eq!((balanced.moves, balanced.time_ns), (0, 2_000 * MS));
}
