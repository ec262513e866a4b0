//! What else a balancer does to a cell, besides its mean turn-around time: who ends last, who waits
//! longest, and what each process suffers. A gain that these pay for is none.

use evenkeel_sim::Report;

use super::contestant::Contestant;
use super::runs::{Cell, Runs, Value};
use crate::repro::study::{Finding, Status};
use crate::stats::{Judged, Verdict, compare, judge};

/// Nothing may be known to be worse than this ratio.
const WORSE_BY: f64 = 1.02;

/// When the last process ends.
pub fn makespan(report: &Report) -> f64 {
    report.makespan_ms
}

/// Than which one in a hundred takes longer.
pub fn p99(report: &Report) -> f64 {
    report.tat.p99_ms
}

/// How many times as long as alone on a speed core with near memory, on the average.
pub fn slowdown(report: &Report) -> f64 {
    report.slowdown_mean
}

/// All of them by name.
pub const FIGURES: [(&str, Value); 3] =
    [("makespan", makespan), ("99th percentile", p99), ("slowdown", slowdown)];

/// The cells in which a figure is known to be worse under `after` than under `before`.
pub fn worse(
    cells: &[Cell],
    runs: &Runs,
    (before, after): (&Contestant, &Contestant),
    slice_us: u64,
    value: Value,
) -> Vec<String> {
    let compared: Vec<_> = cells
        .iter()
        .filter_map(|cell| {
            let of = |contestant| runs.values(cell, contestant, slice_us, value);
            Some((cell, compare(&of(before), &of(after))?))
        })
        .collect();
    let comparisons: Vec<_> = compared.iter().map(|(_, comparison)| *comparison).collect();
    let is_worse = |judged: &Judged| {
        judged.verdict == Verdict::Worse && 1.0 / judged.comparison.ratio.median > WORSE_BY
    };
    compared
        .iter()
        .zip(judge(&comparisons, 1))
        .filter(|(_, judged)| is_worse(judged))
        .map(|((cell, _), judged)| {
            let by = 100.0 * (1.0 / judged.comparison.ratio.median - 1.0);
            format!(
                "{} {} {}: {by:.1} %",
                cell.table.system, cell.table.workload, cell.row.processes
            )
        })
        .collect()
}

/// The finding that none is worse.
pub fn none_is_worse(claim: String, worse: &[String]) -> Finding {
    Finding {
        claim,
        paper: format!("worse by more than {:.0} % in no cell", 100.0 * (WORSE_BY - 1.0)),
        ours: if worse.is_empty() { "none".to_owned() } else { worse.join("; ") },
        bound: "-".to_owned(),
        status: Status::reached(worse.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::contestant::{OURS, UNAWARE};
    use super::super::runs::{Lab, SLICE_US, tat};
    use super::*;

    #[test]
    fn who_is_worse_is_named_with_the_cell() {
        let lab = Lab::new(true, None).unwrap();
        let cells: Vec<Cell> =
            lab.cells().into_iter().filter(|cell| cell.table.system == "amc3").collect();
        let runs = lab.simulate(&cells, &[UNAWARE, OURS], &[SLICE_US], 8, |_| Ok(())).unwrap();
        let of = |pair| worse(&cells, &runs, pair, SLICE_US, tat);
        assert!(of((&UNAWARE, &OURS)).is_empty());
        let named = of((&OURS, &UNAWARE));
        assert!(named.len() == 2 && named[0].starts_with("amc3 w1 100: "), "{named:?}");
        assert_eq!(none_is_worse("a".into(), &[]).status, Status::Reached);
        let missed = none_is_worse("a".into(), &named);
        assert!(missed.status == Status::Missed && missed.ours.contains("; amc3 w2 100: "));
    }
}
