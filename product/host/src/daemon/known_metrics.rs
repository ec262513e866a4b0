//! Which metrics there are, what they mean, and how many series a node has of each at most. The table in
//! docs/metrics.md is made of [`METRICS`].
//!
//! What grows with the machine or with its users is not a label: CPUs are summed up by cause, with the
//! worst one beside the sum, and of the programs those that have been there the longest have a series.

use std::fmt::Write as _;

use super::lost::CAUSES;

/// The most series of a node, over all metrics.
pub const MAX_SERIES: usize = 200;
/// Programs that have a series of their own.
pub(super) const MAX_PACES: usize = 64;
/// Programs of `run` and of jobs that have one.
pub(super) const MAX_RUN_PACES: usize = 64;
/// The rules of [`evenkeel_capability::Reason`], of which only some move tasks.
pub(super) const MAX_RULES: usize = 32;

/// What kind of metric it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value that rises and falls.
    Gauge,
    /// A sum that begins with the daemon and never falls.
    Counter,
    /// Always 1; the labels are what it says.
    Info,
}

/// A metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The name of its series, with the unit and, for a counter, `_total`.
    pub name: &'static str,
    /// The field of [`super::Statistics`] that it shows, if it is one.
    pub field: Option<&'static str>,
    /// What kind of metric it is.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The most series of a node.
    pub most_series: usize,
    /// What it means.
    pub help: &'static str,
}

const fn one(name: &'static str, field: &'static str, kind: Kind, help: &'static str) -> Metric {
    Metric { name, field: Some(field), kind, labels: &[], most_series: 1, help }
}

/// All metrics, in the order in which they are exported.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "evenkeel_build_info",
        field: None,
        kind: Kind::Info,
        labels: &["version"],
        most_series: 1,
        help: "The version of the daemon",
    },
    one("evenkeel_programs", "programs", Kind::Gauge, "Programs that are balanced now"),
    one(
        "evenkeel_observed",
        "observed",
        Kind::Gauge,
        "Programs that are only observed now, for a run without privileges",
    ),
    one("evenkeel_tasks", "tasks", Kind::Gauge, "Tasks of the programs that are balanced now"),
    one("evenkeel_cpus", "cpus", Kind::Gauge, "CPUs that are online"),
    one(
        "evenkeel_exact",
        "exact",
        Kind::Gauge,
        "Whether the figures are exact (1) or approximate, from /proc (0)",
    ),
    one(
        "evenkeel_moving",
        "moving",
        Kind::Gauge,
        "Whether tasks can be moved (1) or are only observed (0)",
    ),
    one("evenkeel_intervals_total", "intervals", Kind::Counter, "Balance intervals that ended"),
    one(
        "evenkeel_yielded_total",
        "yielded",
        Kind::Counter,
        "Tasks no longer moved because their user set their mask",
    ),
    one(
        "evenkeel_refused_total",
        "refused",
        Kind::Counter,
        "Moves that the kernel or a rule refused",
    ),
    Metric {
        name: "evenkeel_moves_total",
        field: Some("moves"),
        kind: Kind::Counter,
        labels: &["rule"],
        most_series: MAX_RULES,
        help: "Tasks moved, by the rule that decided",
    },
    Metric {
        name: "evenkeel_gains",
        field: Some("gains"),
        kind: Kind::Gauge,
        labels: &["proven"],
        most_series: 5,
        help: "Programs that are balanced now, by what is known of their gain: nothing was moved, \
               unverified, measuring, gains, withdrawn",
    },
    Metric {
        name: "evenkeel_pace_ratio",
        field: Some("pace_milli"),
        kind: Kind::Gauge,
        labels: &["program"],
        most_series: MAX_PACES,
        help: "Pace of a program with its moves, as a part of its pace without, where it was measured \
               and the moves are not withdrawn; of the 64 programs that have been there the longest",
    },
    one(
        "evenkeel_run_programs",
        "run_programs",
        Kind::Gauge,
        "Programs that `run` and jobs of Slurm or MPI balance by themselves now, as they tell the \
         daemon; at most 64 of each user but root, and 512 of all of these",
    ),
    Metric {
        name: "evenkeel_run_gains",
        field: Some("run_gains"),
        kind: Kind::Gauge,
        labels: &["proven"],
        most_series: 5,
        help: "These programs, by what is known of their gain (not those told of over 400 s ago)",
    },
    Metric {
        name: "evenkeel_run_pace_ratio",
        field: Some("run_paces"),
        kind: Kind::Gauge,
        labels: &["program", "user", "step"],
        most_series: MAX_RUN_PACES,
        help: "Pace of such a program with its moves, as a part of its pace without, where it was \
               measured and the moves are not withdrawn; of 64 programs, at most 16 of each user, by \
               turns of the users",
    },
    one(
        "evenkeel_own_cpu_seconds_total",
        "own_cpu_us",
        Kind::Counter,
        "CPU time of the daemon itself",
    ),
    Metric {
        name: "evenkeel_lost_seconds_total",
        field: Some("all_cpus_lost_us"),
        kind: Kind::Counter,
        labels: &["cause"],
        most_series: CAUSES.len(),
        help: "CPU time lost to ordinary tasks by cause, over all CPUs",
    },
    Metric {
        name: "evenkeel_worst_cpu_lost_ratio",
        field: Some("worst_cpu_lost_milli"),
        kind: Kind::Gauge,
        labels: &["cause"],
        most_series: CAUSES.len(),
        help: "What the CPU that loses the most lost in the last ten seconds, by cause, as a part of \
               its time",
    },
];

/// Fields of [`super::Statistics`] that are no metric: there are as many as CPUs.
pub(super) const ONLY_IN_JSON: [(&str, &str); 1] =
    [("lost_us", "CPU time lost to ordinary tasks by CPU and cause, in microseconds")];

/// The table of all metrics in docs/metrics.md.
pub fn table_of_metrics() -> String {
    let mut table = String::from(
        "| metric | kind | labels | series of a node | what it is |\n|---|---|---|---|---|\n",
    );
    for metric in METRICS {
        let kind = match metric.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Info => "info",
        };
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let Metric { name, most_series, help, .. } = metric;
        // Writing into a string cannot fail.
        let _ = writeln!(
            table,
            "| `{name}` | {kind} | {} | {most_series} | {help} |",
            labels.join(", ")
        );
    }
    let most: usize = METRICS.iter().map(|metric| metric.most_series).sum();
    let _ = writeln!(table, "| all | | | {most} | |");
    table
}
