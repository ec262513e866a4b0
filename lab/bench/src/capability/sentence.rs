//! The last line of the demo: what the rows mean, in one sentence.

use evenkeel_experiment::{Report, Row};

use super::matrix::{Case, Method};
use super::metric::{AVERAGE, BOUND, TIME};
use crate::stats::Verdict;

/// One sentence about `lag` against `default` in all cases that were measured; `None` if there is
/// no such row. `cpu` is the disturbed one.
pub fn sentence(report: &Report, cpu: u32) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let is_ours = |row: &&Row| row.metric == TIME && row.contestant == Method::Lag.name();
    for row in report.rows.iter().filter(is_ours) {
        let Some(case) = Case::ALL.into_iter().find(|case| case.name() == row.case) else {
            continue;
        };
        parts.push(format!(
            "{} {}",
            cause(case, report, row, cpu, parts.is_empty()),
            effect(report, row)?
        ));
    }
    if parts.is_empty() {
        return None;
    }
    let mut text = parts.join("; ");
    if let Some(first) = text.get(..1).map(str::to_uppercase) {
        text.replace_range(..1, &first);
    }
    Some(text + ".")
}

/// min(C) of the row: it had one CPU that lost something, and others that did not.
fn lost_pct(report: &Report, row: &Row) -> Option<f64> {
    Some(100.0 * (1.0 - beside(report, row, AVERAGE)? / beside(report, row, BOUND)?))
}

/// Another figure of the same runs.
fn beside(report: &Report, row: &Row, metric: &str) -> Option<f64> {
    Some(report.row(&row.case, &row.program, metric, &row.contestant)?.median)
}

fn cause(case: Case, report: &Report, row: &Row, cpu: u32, first: bool) -> String {
    let lost = lost_pct(report, row).map_or_else(|| "time".to_owned(), |pct| format!("{pct:.0} %"));
    let program = if first { format!("the {} program", row.program) } else { "it".into() };
    match case {
        Case::None => format!("with nothing disturbing it, {program}"),
        Case::Softirq | Case::SoftirqFine => {
            format!("with CPU {cpu} losing {lost} to interrupts, {program}")
        }
        Case::Udp => format!("with CPU {cpu} losing {lost} to network interrupts, {program}"),
        Case::FifoSpin | Case::FifoSleep => {
            format!("with CPU {cpu} losing {lost} to a real-time task, {program}")
        }
        Case::Hog => format!("with CPU {cpu} shared with another user's program, {program}"),
    }
}

fn effect(report: &Report, row: &Row) -> Option<String> {
    let ratio = row.ratio?;
    let bound = beside(report, row, BOUND)
        .map_or_else(String::new, |bound| format!(" (bound {bound:.2}x)"));
    Some(match (row.verdict, row.ratio_ci95) {
        (Some(Verdict::Better), _) => format!(
            "ran {ratio:.2}x as fast under evenkeel as under the kernel's scheduler alone{bound}"
        ),
        (Some(Verdict::Worse), _) => format!(
            "ran slower under evenkeel, {ratio:.2}x as fast as under the kernel's scheduler alone\
             {bound}"
        ),
        (_, Some([lo, hi])) if lo >= 0.99 && hi <= 1.01 => format!(
            "ran as fast under evenkeel as under the kernel's scheduler alone, {ratio:.2}x{bound}"
        ),
        _ if row.runs < 2 => format!(
            "ran {ratio:.2}x as fast under evenkeel as under the kernel's scheduler alone, in a \
             single run, which proves nothing{bound}"
        ),
        (_, Some([lo, hi])) => format!(
            "showed no certain difference under evenkeel: {ratio:.2}x as fast as under the \
             kernel's scheduler alone, {lo:.2}x to {hi:.2}x{bound}"
        ),
        _ => format!("ran {ratio:.2}x as fast under evenkeel{bound}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of rows, each with its bound beside it.
    fn report(rows: &[Row]) -> Report {
        let told = rows.iter().flat_map(|row| {
            let worst = if row.case == Case::FifoSpin.name() { 0.5 } else { 0.6 };
            let average = (1.0 + worst) / 2.0;
            let told = |metric: &str, median| Row { metric: metric.into(), median, ..row.clone() };
            [told(AVERAGE, average), told(BOUND, average / worst)]
        });
        Report { rows: rows.iter().cloned().chain(told).collect(), ..Report::default() }
    }

    fn row(case: Case, contestant: Method, ratio: f64, verdict: Verdict) -> Row {
        let json = serde_json::json!({
            "case": case.name(), "program": "static_loop", "contestant": contestant.name(),
            "metric": TIME, "median": 2.5, "ci95": [2.4, 2.6],
            "ratio": ratio, "ratio_ci95": [ratio - 0.02, ratio + 0.02],
            "verdict": verdict, "foreign_pct": 0.1, "runs": 5,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_the_rows_mean() {
        use Method::{Lag, Pinned};
        let rows = [
            row(Case::Softirq, Pinned, 1.01, Verdict::Undecided),
            row(Case::Softirq, Lag, 1.27, Verdict::Better),
            row(Case::FifoSpin, Lag, 1.42, Verdict::Better),
        ];
        assert_eq!(
            sentence(&report(&rows), 0).unwrap(),
            "With CPU 0 losing 40 % to interrupts, the static_loop program ran 1.27x as fast \
             under evenkeel as under the kernel's scheduler alone (bound 1.33x); with CPU 0 losing \
             50 % to a real-time task, it ran 1.42x as fast under evenkeel as under the kernel's \
             scheduler alone (bound 1.50x)."
        );
        assert_eq!(sentence(&report(&rows[..1]), 0), None);
    }

    #[test]
    fn it_does_not_boast() {
        let said = |ratio, verdict| {
            sentence(&report(&[row(Case::Hog, Method::Lag, ratio, verdict)]), 3).unwrap()
        };
        let worse = said(0.9, Verdict::Worse);
        assert!(worse.starts_with("With CPU 3 shared with another user's program"), "{worse}");
        assert!(worse.contains("ran slower under evenkeel, 0.90x"), "{worse}");
        let open = said(1.01, Verdict::Undecided);
        assert!(open.contains("no certain difference"), "{open}");
        assert!(open.contains("0.99x to 1.03x"), "{open}");
        let once = Row { runs: 1, ..row(Case::Hog, Method::Lag, 1.05, Verdict::Undecided) };
        assert!(
            sentence(&report(&[once]), 0).unwrap().contains("a single run, which proves nothing")
        );
        let mut equal = row(Case::None, Method::Lag, 1.0, Verdict::Undecided);
        equal.ratio_ci95 = Some([0.995, 1.005]);
        assert!(
            sentence(&report(&[equal]), 0).unwrap().contains("ran as fast under evenkeel as under")
        );
    }
}
