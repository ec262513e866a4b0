//! What the plugin adds to the start of a job: a figure, not a test.

use std::time::Instant;

use crate::cluster::{Cluster, Wanted, beside_the_goal};
use crate::support::*;

const ROUNDS: usize = 25;
/// What the plugin may add on a node.
const GOAL_MS: f64 = 20.0;

/// Prints it: `make cluster-test`. EVENKEEL_STARTED names another executable, such as a release build.
#[test]
#[ignore = "a figure; make cluster-test prints it"]
fn the_start_of_a_job_is_timed() {
    let program = std::env::var("EVENKEEL_STARTED").ok().map(|path| &*path.leak());
    let wanted = Wanted { program, ..Wanted::default() };
    let Some(cluster) = Cluster::start("the_start_of_a_job_is_timed", wanted) else { return };
    let time_us = |flags: &[&str]| {
        let mut command = cluster.srun(&[&["-n2", "--overcommit"], flags, &["true"]].concat());
        let begin = Instant::now();
        assert!(output(&mut command).status.success());
        begin.elapsed().as_micros() as i64
    };
    // In turn, and each pair compared: the machine is never the same for long.
    let mut added: Vec<(i64, i64)> = (0..ROUNDS)
        .map(|_| time_us(&[]))
        .map(|plain| (time_us(&["--evenkeel"]) - plain, plain))
        .collect();
    added.sort_unstable();
    let (median_us, low_us, high_us) =
        (added[ROUNDS / 2].0, added[ROUNDS / 4].0, added[ROUNDS * 3 / 4].0);
    let [median_ms, low_ms, high_ms] = [median_us, low_us, high_us].map(|us| us as f64 / 1000.0);
    println!(
        "srun -n2 true: --evenkeel adds {median_ms:.1} ms (median of {ROUNDS} pairs; quartiles \
         {low_ms:.1} and {high_ms:.1}); {}",
        beside_the_goal(median_ms, GOAL_MS)
    );
    cluster.wait_for_nothing_left();
}
