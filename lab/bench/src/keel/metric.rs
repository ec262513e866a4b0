//! What is measured of a scheduler with plain policies, and what is wanted of the keel.

use super::KEEL;
use evenkeel_experiment::guest::EEVDF;
use evenkeel_experiment::{Aim, Cases, Kind, Metric, Wanted};

/// hackbench.
pub const HACKBENCH: &str = "hackbench";
/// sysbench cpu.
pub const SYSBENCH_CPU: &str = "sysbench-cpu";
/// sysbench threads.
pub const SYSBENCH_THREADS: &str = "sysbench-threads";
/// Processes that fork.
pub const FORK_STORM: &str = "fork-storm";
/// Processes that start programs.
pub const EXEC_STORM: &str = "exec-storm";
/// Processes that start threads.
pub const JOIN_STORM: &str = "join-storm";
/// The median of wake-up latencies beside hogs.
pub const WAKE_P50: &str = "wake-p50";
/// Their 99th percentile.
pub const WAKE_P99: &str = "wake-p99";
/// How even the shares of one hog more than CPUs are.
pub const EVEN_ONE_MORE: &str = "even-one-more";
/// How even the shares of four hogs a CPU are.
pub const EVEN_FOURFOLD: &str = "even-fourfold";
/// How exactly shares follow weights.
pub const WEIGHTS: &str = "weights";
/// What choosing a CPU for a waking task costs.
pub const SELECT_CPU: &str = "select-cpu";
/// What putting a task into a queue costs.
pub const ENQUEUE: &str = "enqueue";
/// What giving the CPU to a task from a queue costs.
pub const DISPATCH: &str = "dispatch";
/// Both together.
pub const ENQUEUE_DISPATCH: &str = "enqueue-dispatch";
/// The same of calls of the usual length.
pub const USUAL: &str = "enqueue-dispatch-p50";

/// All of them, in the order of the report.
pub static METRICS: [Metric; 16] = [
    Metric::new(
        HACKBENCH,
        Kind::Time,
        "groups of 20 senders and 20 receivers that exchange messages",
    ),
    Metric::new(
        SYSBENCH_CPU,
        Kind::Time,
        "sysbench cpu: pure computation in twice as many threads as CPUs",
    ),
    Metric::new(
        SYSBENCH_THREADS,
        Kind::Time,
        "sysbench threads: four threads a CPU that yield and contend for locks",
    ),
    Metric::new(FORK_STORM, Kind::Time, "two processes a CPU that fork children which end at once"),
    Metric::new(EXEC_STORM, Kind::Time, "the same, and each child becomes `true`"),
    Metric::new(JOIN_STORM, Kind::Time, "two threads a CPU that start threads which end at once"),
    Metric::new(
        WAKE_P50,
        Kind::Time,
        "from when a message is sent to when its receiver runs, beside as many busy threads as CPUs: \
         the median",
    ),
    Metric::new(WAKE_P99, Kind::Time, "the same: 99 of 100 are faster"),
    Metric::new(
        EVEN_ONE_MORE,
        Kind::Index,
        "how even the CPU time of busy threads is, one more than CPUs: Jain's index (1: all equal)",
    ),
    Metric::new(EVEN_FOURFOLD, Kind::Index, "the same with four busy threads a CPU"),
    Metric::new(
        WEIGHTS,
        Kind::Index,
        "how exactly two busy threads on one CPU, one of nice 0 and one of nice 5, share it by their \
         weights of 3 to 1 (1: exactly)",
    ),
    Metric::new(
        SELECT_CPU,
        Kind::Cost,
        "one call of select_cpu, in instructions, during hackbench",
    ),
    Metric::new(ENQUEUE, Kind::Cost, "one call of enqueue"),
    Metric::new(DISPATCH, Kind::Cost, "one call of dispatch"),
    Metric::new(ENQUEUE_DISPATCH, Kind::Cost, "one call of each of the last two"),
    Metric::new(
        USUAL,
        Kind::Cost,
        "the median of enqueue's calls plus that of dispatch's: what most calls cost. The mean is \
         of many short calls and a few that pull tasks from other CPUs",
    ),
];

/// What the keel is to reach beside the kernel's own scheduler and these peers. Where time is
/// instructions, requests between CPUs wait for the emulator: latencies are wanted on the timed machine.
pub fn aims(peers: &[&'static str]) -> Vec<Aim> {
    let aim = |metric, wanted| Aim::new(KEEL, metric, wanted);
    let counted = |metric, wanted| aim(metric, wanted).in_cases(Cases::With("counted"));
    let timed = |metric, wanted| aim(metric, wanted).in_cases(Cases::With("timed"));
    let mut aims = vec![
        counted(HACKBENCH, Wanted::Ratio(1.36, EEVDF)),
        aim(SYSBENCH_CPU, Wanted::Ratio(0.95, EEVDF)),
        counted(SYSBENCH_THREADS, Wanted::Ratio(1.5, EEVDF)),
        timed(WAKE_P50, Wanted::Ratio(1.0, EEVDF)),
        // Half as long again.
        aim(WAKE_P99, Wanted::Ratio(1.0 / 1.5, EEVDF)),
        aim(EVEN_ONE_MORE, Wanted::Less(0.01, EEVDF)),
        aim(EVEN_FOURFOLD, Wanted::Less(0.01, EEVDF)),
        aim(WEIGHTS, Wanted::AtLeast(0.95)),
        aim(ENQUEUE_DISPATCH, Wanted::AtMost(1500.0)),
        aim(USUAL, Wanted::AtMost(950.0)),
    ];
    aims.extend(
        [FORK_STORM, EXEC_STORM, JOIN_STORM].map(|storm| aim(storm, Wanted::Ratio(0.98, EEVDF))),
    );
    for peer in peers.iter().copied() {
        aims.extend([
            counted(HACKBENCH, Wanted::Ratio(1.0, peer)),
            counted(SYSBENCH_THREADS, Wanted::Ratio(1.0, peer)),
            timed(WAKE_P50, Wanted::Ratio(1.0, peer)),
            // A fifth longer.
            timed(WAKE_P99, Wanted::Ratio(1.0 / 1.2, peer)),
        ]);
        let shares = [EVEN_ONE_MORE, EVEN_FOURFOLD, WEIGHTS];
        aims.extend(shares.map(|shares| counted(shares, Wanted::Less(0.005, peer))));
    }
    aims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_aim_has_a_metric() {
        for aim in aims(&["scx_flash"]) {
            assert!(METRICS.iter().any(|metric| metric.name == aim.metric), "{aim:?}");
        }
    }
}
