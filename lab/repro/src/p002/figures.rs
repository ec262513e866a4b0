//! What else a balancer does to a cell, besides its mean turn-around time: when the last process ends,
//! how late the latest ones are, and how much each is slowed down. A gain that these pay for is none.

use anyhow::Result;
use evenkeel_experiment::{Kind, Metric, Row};
use evenkeel_sim::Report;

use super::runs::{Cell, Runs, Value, tat};
use crate::study::{Finding, Status};
use evenkeel_stats::Verdict;

/// Nothing may be known to be worse than this ratio.
const WORSE_BY: f64 = 1.02;

/// When the last process ends.
pub fn makespan(report: &Report) -> f64 {
    report.makespan_ms
}

/// One process in a hundred takes longer.
pub fn p99(report: &Report) -> f64 {
    report.tat.p99_ms
}

/// How many times as long as alone on a speed core with near memory, on the average.
pub fn slowdown(report: &Report) -> f64 {
    report.slowdown_mean
}

/// A figure and how it is read. Times are in ms here; verdicts go by ratios.
pub type Figure = (Metric, Value);

/// The mean turn-around time.
pub static TIME: Figure = (Metric::new("time", Kind::Time, ""), tat);
/// The other figures.
pub static FIGURES: [Figure; 3] = [
    (Metric::new("makespan", Kind::Time, ""), makespan),
    (Metric::new("99th percentile", Kind::Time, ""), p99),
    (Metric::new("slowdown", Kind::Factor, ""), slowdown),
];

/// The cells in which a figure is known to be worse under `after` than under `before`.
///
/// # Errors
/// A cell was not simulated under both.
pub fn worse(
    cells: &[Cell],
    runs: &Runs,
    (before, after): (&str, &str),
    (metric, value): &'static Figure,
) -> Result<Vec<String>> {
    let cases: Vec<_> = cells.iter().map(|cell| (cell.table.system, cell.workload())).collect();
    let rows = runs.0.rows(&cases, &[before, after], (metric, *value))?;
    let is_worse = |row: &&Row| {
        let ratio = row.ratio.unwrap_or(f64::INFINITY);
        row.verdict == Some(Verdict::Worse) && 1.0 / ratio > WORSE_BY
    };
    let after = rows.iter().filter(|row| row.contestant == after);
    let worse = cells.iter().zip(after).filter(|(_, row)| is_worse(row));
    Ok(worse
        .map(|(cell, row)| {
            let by_pct = 100.0 * (1.0 / row.ratio.unwrap_or(f64::INFINITY) - 1.0);
            let (table, processes) = (cell.table, cell.row.processes);
            format!("{} {} {processes}: {by_pct:.1} %", table.system, table.workload)
        })
        .collect())
}

/// The finding that none is worse.
pub fn none_is_worse(claim: String, worse: &[String]) -> Finding {
    Finding::new(
        claim,
        format!("worse by more than {:.0} % in no cell", 100.0 * (WORSE_BY - 1.0)),
        if worse.is_empty() { "none".to_owned() } else { worse.join("; ") },
        Status::reached(worse.is_empty()),
    )
}

#[cfg(test)]
mod tests {
    use super::super::contestant::{ORACLE, UNAWARE};
    use super::super::runs::{Lab, SLICE_US};
    use super::*;

    #[test]
    fn cells_with_a_worse_figure_are_named() {
        let lab = Lab::quick(2);
        let cells: Vec<Cell> =
            lab.cells().into_iter().filter(|cell| cell.table.system == "amc3").collect();
        let runs = lab.simulate(&cells, &[ORACLE], SLICE_US, 8, |_| Ok(())).unwrap();
        let of = |pair| worse(&cells, &runs, pair, &TIME).unwrap();
        assert!(of((UNAWARE, ORACLE)).is_empty());
        let named = of((ORACLE, UNAWARE));
        assert!(named.len() == 2 && named[0].starts_with("amc3 w1 100: "), "{named:?}");
        assert_eq!(none_is_worse("a".into(), &[]).status, Status::Reached);
        let missed = none_is_worse("a".into(), &named);
        assert!(missed.status == Status::Missed && missed.ours.contains("; amc3 w2 100: "));
    }
}
