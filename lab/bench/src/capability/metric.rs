//! What is measured of a program on unequal CPUs.

use evenkeel_experiment::{Kind, Metric, Sample};

/// The time of the whole command.
pub const TIME: &str = "time";
/// avg(C) / min(C).
pub const BOUND: &str = "bound";
/// See [`efficiency`].
pub const EFFICIENCY: &str = "efficiency";
/// avg(C).
pub const AVERAGE: &str = "avg(C)";
/// min(C); no row of its own.
pub const WORST: &str = "min(C)";
/// The time of the round's reference.
pub const REFERENCE: &str = "undisturbed";
/// Moves of the balancer.
pub const MOVES: &str = "moves";

/// All of them, in the order of the report.
pub static METRICS: [Metric; 6] = [
    Metric::new(
        TIME,
        Kind::Time,
        "the time of the whole command, from outside: the balancer's start counts",
    ),
    Metric::told(
        BOUND,
        Kind::Factor,
        "avg(C) / min(C) during the runs: how much faster than its slowest CPU a perfectly balanced \
         program is. C, a CPU's capability, is the share of its time that interrupts, softirqs, \
         real-time tasks and the hypervisor left (counted by cbinfo), times its relative speed; on a \
         hog's CPU also times the share that the scheduler gives the program beside the hog, which is \
         measured",
    ),
    Metric::told(
        EFFICIENCY,
        Kind::Index,
        "rate / rate at avg(C), with its 95 % interval: 1 is the bound of any balancer. The rate at \
         avg(C) follows from the program undisturbed, run in each round",
    ),
    Metric::told(AVERAGE, Kind::Index, "what was left of the average CPU for the program, 0..=1"),
    Metric::told(
        REFERENCE,
        Kind::Time,
        "the time of the program undisturbed (pinned, without noise) in the same rounds",
    ),
    Metric::told(MOVES, Kind::Count, "tasks moved by the balancer in a run"),
];

/// Rate of the program / its rate if it ran at the average capability of the CPUs: 1 is the bound
/// of any balancer.
///
/// The reference is pinned, with equal shares on all CPUs, so it ran at the capability of its worst
/// CPU, which is a little below 1 even on a quiet machine: `t_ref x worst_ref` is the time that
/// the program takes at capability 1. At capability `average` it takes `1 / average` times as long.
pub fn efficiency(reference: &Sample, run: &Sample) -> Option<f64> {
    let undisturbed_s = reference.get(TIME)? * reference.get(WORST)?;
    let at_average_s = undisturbed_s / run.get(AVERAGE).filter(|average| *average > 0.0)?;
    run.get(TIME).filter(|seconds| *seconds > 0.0).map(|seconds| at_average_s / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efficiency_by_hand() {
        let measured = |seconds, average, worst| {
            Sample::new([(TIME, seconds), (AVERAGE, average), (WORST, worst)])
        };
        // 3 s on CPUs of which the worst gave 0.99: 2.97 s at capability 1, 3.7125 s at 0.8.
        let value = efficiency(&measured(3.0, 0.995, 0.99), &measured(4.0, 0.8, 0.6)).unwrap();
        assert!((value - 3.7125 / 4.0).abs() < 1e-12);
        let blind = Sample::new([(TIME, 4.0)]);
        assert_eq!(efficiency(&measured(3.0, 1.0, 1.0), &blind), None);
        assert_eq!(efficiency(&blind, &measured(3.0, 1.0, 1.0)), None);
        assert_eq!(efficiency(&measured(3.0, 1.0, 1.0), &measured(4.0, 0.0, 0.0)), None);
        assert_eq!(efficiency(&measured(3.0, 1.0, 1.0), &measured(0.0, 1.0, 1.0)), None);
    }
}
