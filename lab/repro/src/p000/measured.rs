//! What a part measured, and what its panels and findings take from that.

use evenkeel_experiment::{Kind, Metric, Plan, Record, Report, Row, rows};
use evenkeel_trial::Role;

use crate::page::number;
use crate::study::{Finding, Panel, Point, Series, Status};
use evenkeel_bench::capability::{AVERAGE, BOUND, TIME};
use evenkeel_stats::{Comparison, Verdict, compare, judge};

/// Chores that a rank did in a second on average, in thousands.
pub const RATE: &str = "rate";
/// stdev_chore / avg_chore, in %.
pub const SPREAD: &str = "spread";
/// How often the tasks changed their CPU.
pub const MIGRATIONS: &str = "migrations";

/// A slowdown of less than this part counts as none: the paper's policy costs about as much.
pub const MARGIN: f64 = 0.03;

/// The figures that become rows. Panels take all other figures from the records.
pub static METRICS: [Metric; 3] = [
    Metric::new(TIME, Kind::Time, "of a run, or of a million chores"),
    Metric::told(BOUND, Kind::Factor, "avg(C) / min(C)"),
    Metric::told(AVERAGE, Kind::Index, "avg(C)"),
];

/// All runs of a part, and the rows that they give.
pub struct Measured {
    /// A record for each case and program.
    pub records: Vec<Record>,
    /// The rows of [`METRICS`].
    pub report: Report,
}

impl Measured {
    /// A contestant's times against the default's, one row for each case and program.
    pub fn ratios(&self, contestant: &str) -> Vec<Row> {
        let is_compared =
            |row: &&Row| row.metric == TIME && row.contestant == contestant && row.ratio.is_some();
        self.report.rows.iter().filter(is_compared).cloned().collect()
    }

    /// A contestant against another by a figure of which less is better, as a family of its own.
    /// Rounds in which one of them has 0 do not count.
    pub fn compare(&self, figure: &'static str, base: &str, contestant: &str) -> Vec<Row> {
        let two = self.records.iter().filter_map(|record| {
            let mut lines = vec![record.line(base)?.clone(), record.line(contestant)?.clone()];
            lines[0].role = Role::Baseline;
            for sample in lines.iter_mut().flat_map(|line| &mut line.rounds).flatten() {
                sample.figures.retain(|_, value| *value > 0.0);
            }
            Some(Record { lines, ..record.clone() })
        });
        let figures = [Metric::new(figure, Kind::Factor, "")];
        let mut compared = rows(&figures, &two.collect::<Vec<_>>(), &Plan::fixed(1));
        compared.retain(|row| row.ratio.is_some());
        compared
    }

    /// In how many of these records a contestant is shown to be slower than the base by less than the
    /// margin, by a test that is corrected for their number; and how many they are. A record in which
    /// that is undecided does not show it.
    pub fn within_margin(
        &self,
        base: &str,
        contestant: &str,
        is_meant: impl Fn(&Record) -> bool,
    ) -> (usize, usize) {
        let meant = self.records.iter().filter(|record| is_meant(record));
        let shifted = meant.filter_map(|record| {
            let (base, ours) = record.pairs(TIME, base, contestant);
            let slowed: Vec<f64> = base.iter().map(|time| time / (1.0 - MARGIN)).collect();
            compare(&slowed, &ours)
        });
        let shifted: Vec<Comparison> = shifted.collect();
        let judged = judge(&shifted, 1);
        let shown = judged.iter().filter(|one| one.verdict == Verdict::Better).count();
        (shown, shifted.len())
    }

    /// A contestant's times directly against another's, a finding for each case.
    pub fn directly(&self, base: &str, contestant: &str) -> Vec<Finding> {
        let rows = self.compare(TIME, base, contestant);
        let mut cases: Vec<&str> = Vec::new();
        for row in &rows {
            if !cases.contains(&row.case.as_str()) {
                cases.push(&row.case);
            }
        }
        let finding = |case: &str| {
            let of_case: Vec<Row> = rows.iter().filter(|row| row.case == case).cloned().collect();
            Finding {
                claim: format!("{contestant} directly against {base}, {case}"),
                paper: "-".into(),
                ours: format!("{}; {}", span(&of_case), tally(&of_case)),
                bound: "-".into(),
                status: Status::Reported,
            }
        };
        cases.into_iter().map(finding).collect()
    }

    /// A panel of one case: its programs are the places, its contestants the series.
    pub fn panel(&self, case: &str, figure: &str) -> Panel {
        let records: Vec<&Record> =
            self.records.iter().filter(|record| record.case == case).collect();
        let lines = records.first().map_or(&[][..], |record| &record.lines);
        let series = lines.iter().map(|line| Series {
            name: line.contestant.clone(),
            points: records.iter().map(|one| point(one, &line.contestant, figure)).collect(),
        });
        Panel {
            series: series.collect(),
            places: records.iter().map(|record| record.program.clone()).collect(),
            ..Panel::default()
        }
    }

    /// The same, with the verdicts on the contestants' times.
    pub fn judged_panel(&self, case: &str, figure: &str) -> Panel {
        let mut panel = self.panel(case, figure);
        for series in &mut panel.series {
            for (place, point) in panel.places.iter().zip(&mut series.points) {
                let row = self.report.row(case, place, TIME, &series.name);
                if let (Some(point), Some(row)) = (point, row) {
                    point.verdict = row.verdict;
                }
            }
        }
        panel
    }
}

/// The median of a figure over a contestant's runs.
pub fn point(record: &Record, contestant: &str, figure: &str) -> Option<Point> {
    Point::of(&record.line(contestant)?.values(figure).flatten().collect::<Vec<f64>>())
}

/// A row's ratio; rows that are compared have one.
pub fn ratio(row: &Row) -> f64 {
    row.ratio.unwrap_or(f64::NAN)
}

/// Whether one of the rows is known to be worse.
pub fn any_worse(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.verdict == Some(Verdict::Worse))
}

/// A row's ratio with its interval: `1.270 (1.235 - 1.319)`.
pub fn ranged(row: &Row) -> String {
    let [lo, hi] = row.ratio_ci95.unwrap_or([f64::NAN; 2]);
    format!("{} ({} - {})", number(ratio(row)), number(lo), number(hi))
}

/// The lowest and the highest of the rows' median ratios: `0.990 to 1.020x`.
pub fn span(rows: &[Row]) -> String {
    let lo = rows.iter().map(ratio).fold(f64::INFINITY, f64::min);
    let hi = rows.iter().map(ratio).fold(0.0, f64::max);
    if rows.is_empty() { "-".to_owned() } else { format!("{} to {}x", number(lo), number(hi)) }
}

/// The numbers of verdicts: `3 better, 1 worse of 9`.
pub fn tally(rows: &[Row]) -> String {
    let count = |verdict| rows.iter().filter(|row| row.verdict == Some(verdict)).count();
    let (better, worse) = (count(Verdict::Better), count(Verdict::Worse));
    format!("{better} better, {worse} worse of {}", rows.len())
}

/// A bound as a finding shows it.
pub fn bound_text(bound: Option<f64>) -> String {
    bound.map_or_else(|| "-".to_owned(), |bound| format!("{bound:.3}x"))
}

#[cfg(test)]
pub mod tests {
    use evenkeel_experiment::{Case, Sample};

    use super::*;

    /// A contestant with its times and spreads by round.
    pub type Runs<'a> = (&'a str, &'a [f64], &'a [f64]);

    /// A record with these runs, the baseline first.
    pub fn record(case: &str, program: &str, lines: &[Runs<'_>]) -> Record {
        let contestants = lines.iter().map(|(name, ..)| (*name).to_owned()).collect();
        let mut record = Record::new(&Case {
            name: case.into(),
            program: program.into(),
            contestants,
            ..Case::default()
        });
        for (line, (_, times, spreads)) in record.lines.iter_mut().zip(lines) {
            let runs = times.iter().zip(*spreads).map(|(seconds, spread)| {
                Some(Sample::new([(TIME, *seconds), (SPREAD, *spread), (AVERAGE, 0.8)]))
            });
            line.rounds = runs.collect();
        }
        record
    }

    /// These records and their rows.
    pub fn measured(records: Vec<Record>) -> Measured {
        let rows = rows(&METRICS, &records, &Plan::fixed(4));
        Measured { records, report: Report { rows, ..Report::default() } }
    }

    #[test]
    fn places_are_programs_and_series_contestants() {
        let times = [2.0, 2.1, 2.2];
        let measured = measured(vec![
            record("none", "1", &[("default", &times, &[0.1; 3]), ("lag", &times, &[0.2; 3])]),
            record("none", "2", &[("default", &times, &[0.1; 3])]),
            record("softirq", "1", &[("default", &[9.0], &[0.1])]),
        ]);
        let panel = measured.judged_panel("none", TIME);
        assert_eq!(panel.places, ["1", "2"]);
        assert_eq!(panel.series.len(), 2);
        assert_eq!(panel.series[0].points[1].unwrap().median, 2.1);
        assert_eq!(panel.series[1].points[1], None);
        assert_eq!(panel.series[1].points[0].unwrap().verdict, Some(Verdict::Undecided));
        assert_eq!(measured.panel("none", TIME).series[1].points[0].unwrap().verdict, None);
    }

    #[test]
    fn a_lower_value_is_a_ratio_above_one_and_zeros_do_not_count() {
        let ones = [1.0; 4];
        let default = [0.4, 0.41, 0.0, 0.39];
        let lines: [Runs<'_>; 2] = [("default", &ones, &default), ("lag", &ones, &[0.1; 4])];
        let measured = measured(vec![record("none", "1", &lines)]);
        let compared = measured.compare(SPREAD, "default", "lag");
        assert_eq!(compared.len(), 1);
        assert!((ratio(&compared[0]) - 4.0).abs() < 1e-9);
        assert_eq!(compared[0].verdict, Some(Verdict::Better));
        assert!(!any_worse(&compared));
        assert_eq!(tally(&compared), "1 better, 0 worse of 1");
        assert_eq!(span(&compared), "4.000 to 4.000x");
    }

    #[test]
    fn any_two_contestants_can_be_compared() {
        let [slow, fast] = [[2.0, 2.02, 2.01, 2.0], [1.0, 1.01, 1.0, 1.01]];
        let lines: [Runs<'_>; 3] = [
            ("default", &slow, &[0.1; 4]),
            ("fifo", &slow, &[0.1; 4]),
            ("cache", &fast, &[0.1; 4]),
        ];
        let compared = measured(vec![record("none", "1", &lines)]).compare(TIME, "fifo", "cache");
        assert_eq!(compared[0].against.as_deref(), Some("fifo"));
        assert_eq!(compared[0].verdict, Some(Verdict::Better));
    }

    #[test]
    fn a_slowdown_counts_as_none_only_where_it_is_shown_to_be_small() {
        let default = [1.0, 1.01, 1.0, 1.01];
        let times = |factor: f64| default.map(|time| time * factor);
        let (little, much) = (times(1.01), times(1.1));
        // Half of the rounds are much slower: undecided.
        let unclear = [1.0, 1.2, 1.0, 1.2];
        for (ours, shown) in [(little, 1), (much, 0), (unclear, 0)] {
            let lines: [Runs<'_>; 2] =
                [("default", &default, &[0.1; 4]), ("lag", &ours, &[0.1; 4])];
            let measured = measured(vec![record("none", "1", &lines)]);
            assert_eq!(measured.within_margin("default", "lag", |_| true), (shown, 1), "{ours:?}");
            assert_eq!(measured.within_margin("default", "lag", |_| false), (0, 0));
        }
    }

    #[test]
    fn each_case_has_a_finding_on_two_contestants() {
        let [slow, fast] = [[2.0, 2.02, 2.01, 2.0], [1.0, 1.01, 1.0, 1.01]];
        let lines: [Runs<'_>; 3] =
            [("default", &slow, &[0.1; 4]), ("paper", &slow, &[0.1; 4]), ("lag", &fast, &[0.1; 4])];
        let both = measured(vec![record("none", "1", &lines), record("softirq", "1", &lines)]);
        let findings = both.directly("paper", "lag");
        let claims: Vec<&str> = findings.iter().map(|finding| finding.claim.as_str()).collect();
        assert_eq!(
            claims,
            ["lag directly against paper, none", "lag directly against paper, softirq"]
        );
        assert!(findings[0].ours.ends_with("1 better, 0 worse of 1"), "{}", findings[0].ours);
    }
}
