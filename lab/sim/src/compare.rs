//! Compares two sweeps, run by run with the same workload, machine and seed.

use std::collections::BTreeMap;

use evenkeel_stats::{Judged, compare, judge};

use crate::grid::Row;
use crate::report::Report;

/// The figure by which runs are compared; less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// The mean turn-around time.
    Tat,
    /// The 99th percentile of the response times.
    Response,
    /// The time until all tasks have ended.
    Makespan,
    /// The mean slowdown.
    Slowdown,
}

impl Figure {
    fn of(self, report: &Report) -> f64 {
        match self {
            Self::Tat => report.tat.mean_ms,
            Self::Response => report.response.p99_ms,
            Self::Makespan => report.makespan_ms,
            Self::Slowdown => report.slowdown_mean,
        }
    }
}

/// A workload on a machine, under one scheduler of each sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The workload.
    pub workload: String,
    /// The machine.
    pub machine: String,
    /// The scheduler and slice of the first sweep.
    pub before: String,
    /// The scheduler and slice of the second sweep.
    pub after: String,
    /// The verdict: a ratio above 1 says that the second one is better.
    pub judged: Judged,
}

/// By workload and machine, by scheduler and slice: the figure by seed.
type Series = BTreeMap<(String, String), BTreeMap<String, BTreeMap<u64, f64>>>;

fn series(rows: &[Row], figure: Figure) -> Series {
    let mut series = Series::new();
    // A run that ended early does not show how long it takes.
    for row in rows.iter().filter(|row| row.report.is_good()) {
        let report = &row.report;
        let slice = if row.slice_us > 0 { format!(" {} us", row.slice_us) } else { String::new() };
        series
            .entry((report.workload.clone(), report.machine.clone()))
            .or_default()
            .entry(format!("{}{slice}", report.scheduler))
            .or_default()
            .insert(report.seed, figure.of(report));
    }
    series
}

/// Compares all that is in both sweeps, paired by seed, and judges all rows together.
pub fn compare_rows(before: &[Row], after: &[Row], figure: Figure) -> Vec<Compared> {
    let (before, after) = (series(before, figure), series(after, figure));
    let mut found = Vec::new();
    for ((workload, machine), schedulers) in &before {
        let Some(others) = after.get(&(workload.clone(), machine.clone())) else { continue };
        for (one, times) in schedulers {
            for (other, other_times) in others {
                let pairs =
                    times.iter().filter_map(|(seed, time)| Some((*time, *other_times.get(seed)?)));
                let (a, b): (Vec<f64>, Vec<f64>) = pairs.unzip();
                if let Some(comparison) = compare(&a, &b) {
                    let place = (workload.clone(), machine.clone(), one.clone(), other.clone());
                    found.push((place, comparison));
                }
            }
        }
    }
    let comparisons: Vec<_> = found.iter().map(|(_, comparison)| *comparison).collect();
    let judged = judge(&comparisons, 1);
    let row = |(((workload, machine, before, after), _), judged)| Compared {
        workload,
        machine,
        before,
        after,
        judged,
    };
    found.into_iter().zip(judged).map(row).collect()
}
