//! Rows: one contestant's figure for one metric in one case.

use evenkeel_trial::{Plan, Record, Role, Verdict, judge};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Metric;

/// One figure of one contestant in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The case.
    pub case: String,
    /// The program; empty where the case says that.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// The figure.
    pub metric: String,
    /// The contestant.
    pub contestant: String,
    /// The median over the runs, in the unit of the metric's kind.
    pub median: f64,
    /// Its 95 % interval (with fewer than 6 runs the range).
    pub ci95: [f64; 2],
    /// The sum over the runs, of a metric that is summed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// The contestant that this one is compared with: the baseline of the case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// How many times as good as that, paired by round: above 1 is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Its 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_ci95: Option<[f64; 2]>,
    /// Against the baseline, corrected for the number of rows and of looks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// This is the baseline against itself: what the table can resolve.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_again: bool,
    /// What other programs took of the machine's CPU time, the median of the runs, in %.
    pub foreign_pct: f64,
    /// Runs that count.
    pub runs: usize,
    /// Runs that were repeated because of foreign load.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// All figures of all records; the judged ones are one family. A figure that no run gave has no row.
pub fn rows(metrics: &[Metric], records: &[Record], plan: &Plan) -> Vec<Row> {
    let judged_metrics: Vec<&Metric> = metrics.iter().filter(|metric| metric.is_judged).collect();
    let figures: Vec<_> = judged_metrics.iter().map(|metric| metric.figure()).collect();
    let judged = judge(records, &figures, plan.looks());
    let mut rows = Vec::new();
    for (r, record) in records.iter().enumerate() {
        for metric in metrics {
            for (l, line) in record.lines.iter().enumerate() {
                let Some(all) = line.estimate(metric.name) else { continue };
                let compared = judged.iter().find(|row| {
                    row.record == r
                        && row.line == l
                        && judged_metrics[row.figure].name == metric.name
                });
                let ratio = compared.map(|row| row.judged.comparison.ratio);
                rows.push(Row {
                    case: record.case.clone(),
                    program: record.program.clone(),
                    metric: metric.name.to_owned(),
                    contestant: line.contestant.clone(),
                    median: all.median,
                    ci95: all.ci95(),
                    total: metric
                        .is_summed
                        .then(|| line.values(metric.name).flatten().sum::<f64>()),
                    against: compared.map(|_| record.lines[0].contestant.clone()),
                    ratio: ratio.map(|ratio| ratio.median),
                    ratio_ci95: ratio.map(|ratio| ratio.ci95()),
                    verdict: compared.map(|row| row.judged.verdict),
                    is_again: line.role == Role::SecondBaseline,
                    foreign_pct: line.foreign_pct().unwrap_or(0.0),
                    runs: line.values(metric.name).flatten().count(),
                    repeated: line.repeated,
                });
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use evenkeel_trial::{Case, Sample};

    use super::*;
    use crate::Kind;

    #[test]
    fn each_figure_of_each_contestant_is_a_row_and_told_ones_are_not_compared() {
        let metrics = [Metric::new("time", Kind::Time, ""), Metric::told("moves", Kind::Count, "")];
        let case = Case {
            name: "x".into(),
            contestants: vec!["default".into(), "lag".into()],
            has_second_baseline: true,
            ..Case::default()
        };
        let mut record = Record::new(&case);
        for (line, seconds) in record.lines.iter_mut().zip([2.0, 1.0, 2.0]) {
            let sample = Sample { foreign_pct: 1.0, ..Sample::new([("time", seconds)]) };
            line.rounds = vec![Some(sample); 6];
        }
        for sample in record.lines[1].rounds.iter_mut().flatten() {
            sample.set("moves", Some(7.0));
        }
        let rows = rows(&metrics, &[record], &Plan::fixed(6));
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.metric.as_str(), row.contestant.as_str(), row.ratio, row.verdict))
            .collect();
        assert_eq!(
            shown,
            [
                ("time", "default", None, None),
                ("time", "lag", Some(2.0), Some(Verdict::Better)),
                ("time", "default again", Some(1.0), Some(Verdict::Undecided)),
                ("moves", "lag", None, None),
            ]
        );
        assert!(rows[2].is_again && rows[1].against.as_deref() == Some("default"));
        assert_eq!((rows[1].runs, rows[1].foreign_pct), (6, 1.0));
    }

    fn record(case: &str, contestants: &[&str], seconds: f64) -> Record {
        let contestants = contestants.iter().map(|name| (*name).to_owned()).collect();
        let mut record = Record::new(&Case { name: case.into(), contestants, ..Case::default() });
        for line in &mut record.lines {
            line.rounds = vec![Some(Sample::new([("time", seconds), ("lost", 1.5)])); 6];
        }
        record
    }

    #[test]
    fn each_case_is_compared_with_its_own_baseline() {
        let metrics = [Metric::new("time", Kind::Time, "")];
        let records = [
            record("softirq", &["default", "lag"], 1.0),
            record("fifo", &["default"], 2.0),
            record("memory", &["apart", "together"], 3.0),
        ];
        let rows = rows(&metrics, &records, &Plan::fixed(6));
        let against: Vec<_> =
            rows.iter().map(|row| (row.case.as_str(), row.against.as_deref(), row.ratio)).collect();
        assert_eq!(
            against,
            [
                ("softirq", None, None),
                ("softirq", Some("default"), Some(1.0)),
                ("fifo", None, None),
                ("memory", None, None),
                ("memory", Some("apart"), Some(1.0)),
            ]
        );
    }

    #[test]
    fn a_summed_figure_has_its_total_beside_its_median() {
        let metrics = [Metric::told("lost", Kind::Count, "").summed()];
        let rows = rows(&metrics, &[record("x", &["default"], 1.0)], &Plan::fixed(6));
        assert_eq!((rows[0].median, rows[0].total), (1.5, Some(9.0)));
    }
}
