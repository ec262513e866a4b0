//! What is measured, and what is wanted.

use super::expected::Exact;
use super::{BONUS_0, FAIR, IAS, PAPER, UNSET};
use evenkeel_experiment::{Aim, Kind, Metric, Wanted};

/// Threads that are created and joined.
pub const JOIN_STORM: &str = "join-storm";
/// One program alone.
pub const ALONE: &str = "alone";
/// Switches between address spaces.
pub const SPACES: &str = "space-switches";
/// How long a CPU runs one address space in a row.
pub const RUN: &str = "run-length";
/// Slaves run what their master runs.
pub const TOGETHER: &str = "co-scheduled";
/// The median of waits.
pub const WAIT_P50: &str = "wait-p50";
/// Their 99th percentile.
pub const WAIT_P99: &str = "wait-p99";
/// How evenly threads get on.
pub const EVEN: &str = "even";
/// Searches without an answer.
pub const MISSED: &str = "missed";
/// One call of each callback of a thread's turn, with ten address spaces.
pub const CALLBACKS: &str = "callbacks";
/// The same with five hundred.
pub const CALLBACKS_500: &str = "callbacks-500";
/// One call of dispatch with ten address spaces.
pub const DISPATCH: &str = "dispatch";
/// One with five hundred.
pub const DISPATCH_500: &str = "dispatch-500";
/// The second by the first.
pub const DISPATCH_GROWTH: &str = "dispatch-growth";

/// All of them, in the order of the report.
pub static METRICS: [Metric; 14] = [
    Metric::new(
        JOIN_STORM,
        Kind::Time,
        "two threads a CPU that start threads which end at once, all of one program that aggregates",
    ),
    Metric::new(
        ALONE,
        Kind::Time,
        "sysbench memory, one program of 16 threads, nothing else to run",
    ),
    Metric::new(
        SPACES,
        Kind::Frequency,
        "ten programs of 100 busy threads each: CPUs turn from one program to another",
    ),
    Metric::new(
        RUN,
        Kind::Span,
        "the same: how long a CPU runs one program in a row, on the average",
    ),
    Metric::new(
        TOGETHER,
        Kind::Index,
        "the same: the part of the time in which the second CPU of a pair runs the program that the \
         first one runs",
    ),
    Metric::new(WAIT_P50, Kind::Time, "the same: how long threads wait for a CPU, the median"),
    Metric::new(
        WAIT_P99,
        Kind::Time,
        "the same: 99 of 100 waits are shorter; a wait that had not ended counts as long as it was",
    ),
    Metric::new(
        EVEN,
        Kind::Index,
        "the same: of what the threads run in a second, the part that need not change hands for all to \
         have had the same; the mean of all seconds",
    ),
    Metric::new(
        MISSED,
        Kind::Factor,
        "the same: waiting tasks that the index of siblings had no room for, by all that waited",
    ),
    Metric::new(
        CALLBACKS,
        Kind::Cost,
        "the same: one call each of enqueue, dispatch and running, together, in instructions",
    ),
    Metric::new(
        CALLBACKS_500,
        Kind::Cost,
        "500 programs of two busy threads each: the same three calls, in instructions",
    ),
    Metric::new(
        DISPATCH,
        Kind::Cost,
        "ten programs of 100 busy threads each: one call of dispatch, in instructions",
    ),
    Metric::new(
        DISPATCH_500,
        Kind::Cost,
        "500 programs of two busy threads each: one call of dispatch, in instructions",
    ),
    Metric::new(
        DISPATCH_GROWTH,
        Kind::Factor,
        "how many times as many as with ten programs that is",
    ),
];

/// So much of what exact aggregation brings is wanted.
const PART: f64 = 0.8;

/// What is to be reached.
pub fn aims(exact: &Exact) -> Vec<Aim> {
    let of = |contestant, metric, wanted| Aim::new(contestant, metric, wanted);
    let fewer = 1.0 / (1.0 - PART * exact.reduction);
    vec![
        // 1 % more.
        of(BONUS_0, JOIN_STORM, Wanted::Ratio(1.0 / 1.01, FAIR)),
        of(IAS, ALONE, Wanted::Ratio(1.0 / 1.01, FAIR)),
        of(IAS, SPACES, Wanted::Ratio(3.0, FAIR)),
        of(IAS, TOGETHER, Wanted::AtLeast(0.6)),
        of(IAS, WAIT_P99, Wanted::Ratio(1.0 / 1.2, FAIR)),
        of(PAPER, SPACES, Wanted::Ratio(fewer, FAIR)),
        of(PAPER, TOGETHER, Wanted::AtLeast((PART * exact.co_scheduled * 100.0).round() / 100.0)),
        of(IAS, EVEN, Wanted::Less(0.01, FAIR)),
        of(IAS, CALLBACKS, Wanted::AtMostMore(250.0, FAIR)),
        of(IAS, CALLBACKS_500, Wanted::AtMostMore(250.0, FAIR)),
        of(UNSET, CALLBACKS, Wanted::AtMostMore(20.0, FAIR)),
        of(UNSET, CALLBACKS_500, Wanted::AtMostMore(20.0, FAIR)),
        of(IAS, DISPATCH_GROWTH, Wanted::AtMost(1.3)),
    ]
}
