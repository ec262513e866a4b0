//! The demo's last word: what the rows mean, in one sentence for people.

use super::matrix::{Case, Contestant};
use crate::report::Row;
use crate::stats::Verdict;

/// One sentence about `lag` against `default` in all cases that were measured; `None` if there is
/// no such row. `cpu` is the disturbed one.
pub fn sentence(rows: &[Row], cpu: u32) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    for row in rows.iter().filter(|row| row.contestant == Contestant::Lag.name()) {
        let Some(case) = Case::ALL.into_iter().find(|case| case.name() == row.case) else {
            continue;
        };
        parts.push(format!("{} {}", cause(case, row, cpu, parts.is_empty()), effect(row)?));
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
fn lost_pct(row: &Row) -> Option<f64> {
    Some(100.0 * (1.0 - row.average? / row.bound?))
}

fn cause(case: Case, row: &Row, cpu: u32, first: bool) -> String {
    let lost = lost_pct(row).map_or_else(|| "time".to_owned(), |pct| format!("{pct:.0} %"));
    let who = if first { format!("the {} program", row.program) } else { "it".into() };
    match case {
        Case::None => format!("with nothing disturbing it, {who}"),
        Case::Softirq | Case::SoftirqFine => {
            format!("with CPU {cpu} losing {lost} to interrupts, {who}")
        }
        Case::Udp => format!("with CPU {cpu} losing {lost} to network interrupts, {who}"),
        Case::FifoSpin | Case::FifoSleep => {
            format!("with CPU {cpu} losing {lost} to a real-time task, {who}")
        }
        Case::Hog => format!("with CPU {cpu} shared with another user's program, {who}"),
    }
}

fn effect(row: &Row) -> Option<String> {
    let ratio = row.vs_default?;
    let bound = row.bound.map_or_else(String::new, |bound| format!(" (bound {bound:.2}x)"));
    Some(match (row.verdict, row.vs_default_ci95) {
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

    fn row(case: Case, contestant: Contestant, ratio: f64, verdict: Verdict) -> Row {
        let worst = if case == Case::FifoSpin { 0.5 } else { 0.6 };
        let average = (1.0 + worst) / 2.0;
        let json = serde_json::json!({
            "case": case.name(), "program": "static_loop", "contestant": contestant.name(),
            "median_s": 2.5, "ci95": [2.4, 2.6],
            "vs_default": ratio, "vs_default_ci95": [ratio - 0.02, ratio + 0.02],
            "efficiency": 0.97, "efficiency_ci95": [0.96, 0.98],
            "average": average, "bound": average / worst, "reference_s": 2.0,
            "verdict": verdict, "foreign_pct": 0.1, "moves": 12.0, "runs": 5,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_the_rows_mean() {
        use Contestant::{Lag, Pinned};
        let rows = [
            row(Case::Softirq, Pinned, 1.01, Verdict::Undecided),
            row(Case::Softirq, Lag, 1.27, Verdict::Better),
            row(Case::FifoSpin, Lag, 1.42, Verdict::Better),
        ];
        assert_eq!(
            sentence(&rows, 0).unwrap(),
            "With CPU 0 losing 40 % to interrupts, the static_loop program ran 1.27x as fast \
             under evenkeel as under the kernel's scheduler alone (bound 1.33x); with CPU 0 losing \
             50 % to a real-time task, it ran 1.42x as fast under evenkeel as under the kernel's \
             scheduler alone (bound 1.50x)."
        );
        assert_eq!(sentence(&rows[..1], 0), None);
    }

    #[test]
    fn it_does_not_boast() {
        let said = |ratio, verdict| {
            sentence(&[row(Case::Hog, Contestant::Lag, ratio, verdict)], 3).unwrap()
        };
        let worse = said(0.9, Verdict::Worse);
        assert!(worse.starts_with("With CPU 3 shared with another user's program"), "{worse}");
        assert!(worse.contains("ran slower under evenkeel, 0.90x"), "{worse}");
        let open = said(1.01, Verdict::Undecided);
        assert!(open.contains("no certain difference"), "{open}");
        assert!(open.contains("0.99x to 1.03x"), "{open}");
        let once = Row { runs: 1, ..row(Case::Hog, Contestant::Lag, 1.05, Verdict::Undecided) };
        assert!(sentence(&[once], 0).unwrap().contains("a single run, which proves nothing"));
        let mut equal = row(Case::None, Contestant::Lag, 1.0, Verdict::Undecided);
        equal.vs_default_ci95 = Some([0.995, 1.005]);
        assert!(sentence(&[equal], 0).unwrap().contains("ran as fast under evenkeel as under"));
    }
}
