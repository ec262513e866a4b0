//! From outcomes to panels and findings.

use crate::interleave::{Measurement, Outcome};
use crate::repro::page::number;
use crate::repro::study::{Panel, Point, Series};
use crate::stats::{Comparison, Estimate, Judged, Verdict, compare, judge};

/// What is shown of a run.
pub type Value = fn(&Measurement) -> Option<f64>;

/// The medians of one outcome.
pub fn point(outcome: &Outcome, value: Value) -> Option<Point> {
    let values: Vec<f64> = outcome.runs().filter_map(value).collect();
    Point::of(&values)
}

/// A panel of the outcomes of one case: their programs are the places, their contestants the series.
pub fn panel(outcomes: &[Outcome], case: &str, value: Value) -> Panel {
    let of_case: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.case == case).collect();
    let places = distinct(of_case.iter().map(|outcome| outcome.program.as_str()));
    let names = distinct(of_case.iter().map(|outcome| outcome.contestant.as_str()));
    let at = |name: &str, place: &str| {
        of_case.iter().find(|outcome| outcome.contestant == name && outcome.program == place)
    };
    let series = names.iter().map(|name| Series {
        name: name.clone(),
        points: places
            .iter()
            .map(|place| at(name, place).and_then(|outcome| point(outcome, value)))
            .collect(),
    });
    Panel { series: series.collect(), places, ..Panel::default() }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        if all.iter().all(|other| other != name) {
            all.push(name.to_owned());
        }
    }
    all
}

/// Sets the verdicts of the panel's points by those of the outcomes' times.
pub fn with_verdicts(mut panel: Panel, outcomes: &[Outcome], case: &str) -> Panel {
    for series in &mut panel.series {
        for (place, point) in panel.places.iter().zip(&mut series.points) {
            let outcome = outcomes.iter().find(|outcome| {
                (&outcome.contestant, &outcome.program) == (&series.name, place)
                    && outcome.case == case
            });
            if let (Some(point), Some(outcome)) = (point, outcome) {
                point.verdict = outcome.judged.map(|judged| judged.verdict);
            }
        }
    }
    panel
}

/// A contestant's comparisons with the default, one for each case and program.
pub fn ratios<'a>(
    outcomes: &'a [Outcome],
    contestant: &'a str,
) -> impl Iterator<Item = (&'a Outcome, Judged)> {
    outcomes
        .iter()
        .filter(move |outcome| outcome.contestant == contestant)
        .filter_map(|outcome| Some((outcome, outcome.judged?)))
}

/// A contestant against the default by another value than its time, all rows judged together: a
/// ratio above 1 is a lower value. Rounds in which either is 0 do not count.
pub fn compared_by<'a>(
    outcomes: &'a [Outcome],
    contestant: &str,
    value: Value,
) -> Vec<(&'a Outcome, Judged)> {
    let rows: Vec<(&Outcome, Comparison)> = outcomes
        .iter()
        .filter(|outcome| outcome.contestant == contestant)
        .filter_map(|ours| {
            let default = outcomes.iter().find(|other| {
                (&other.case, &other.program) == (&ours.case, &ours.program)
                    && other.contestant == "default"
            })?;
            let pairs = default.rounds.iter().zip(&ours.rounds);
            let (default, values): (Vec<f64>, Vec<f64>) = pairs
                .filter_map(|(default, ours)| {
                    Some((value(default.as_ref()?)?, value(ours.as_ref()?)?))
                })
                .filter(|(default, ours)| *default > 0.0 && *ours > 0.0)
                .unzip();
            Some((ours, compare(&default, &values)?))
        })
        .collect();
    let comparisons: Vec<Comparison> = rows.iter().map(|(_, comparison)| *comparison).collect();
    rows.into_iter().map(|(outcome, _)| outcome).zip(judge(&comparisons, 1)).collect()
}

/// Whether one of the rows is known to be worse.
pub fn any_worse(rows: &[(&Outcome, Judged)]) -> bool {
    rows.iter().any(|(_, judged)| judged.verdict == Verdict::Worse)
}

/// `1.270 (1.235 - 1.319)`.
pub fn ranged(estimate: &Estimate) -> String {
    let Estimate { median, lo, hi, .. } = estimate;
    format!("{} ({} - {})", number(*median), number(*lo), number(*hi))
}

/// The lowest and the highest of the rows' median ratios: `0.990 to 1.020`.
pub fn span(rows: &[(&Outcome, Judged)]) -> String {
    let medians = || rows.iter().map(|(_, judged)| judged.comparison.ratio.median);
    let (lo, hi) = (medians().fold(f64::INFINITY, f64::min), medians().fold(0.0, f64::max));
    if rows.is_empty() { "-".to_owned() } else { format!("{} to {}x", number(lo), number(hi)) }
}

/// How the verdicts fell: `3 better, 1 worse of 9`.
pub fn tally(rows: &[(&Outcome, Judged)]) -> String {
    let count = |verdict| rows.iter().filter(|(_, judged)| judged.verdict == verdict).count();
    let (better, worse) = (count(Verdict::Better), count(Verdict::Worse));
    format!("{better} better, {worse} worse of {}", rows.len())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An outcome with these times and spreads, judged against `default` if that is given.
    pub fn outcome(
        case: &str,
        program: &str,
        contestant: &str,
        times: &[f64],
        spreads: &[f64],
        default: Option<&[f64]>,
    ) -> Outcome {
        let run = |(seconds, spread): (&f64, &f64)| {
            Some(Measurement {
                seconds: *seconds,
                spread: Some(*spread),
                average: Some(0.8),
                worst: Some(0.6),
                ..Measurement::default()
            })
        };
        Outcome {
            case: case.into(),
            program: program.into(),
            contestant: contestant.into(),
            rounds: times.iter().zip(spreads).map(run).collect(),
            judged: default.map(|default| judge(&[compare(default, times).unwrap()], 1)[0]),
            repeated: 0,
            failed: None,
        }
    }

    #[test]
    fn places_are_programs_and_series_contestants() {
        let times = [2.0, 2.1, 2.2];
        let outcomes = [
            outcome("none", "1", "default", &times, &[0.1; 3], None),
            outcome("none", "1", "lag", &times, &[0.2; 3], Some(&times)),
            outcome("none", "2", "default", &times, &[0.1; 3], None),
            outcome("softirq", "1", "default", &[9.0], &[0.1], None),
        ];
        let panel = panel(&outcomes, "none", |run| Some(run.seconds));
        assert_eq!(panel.places, ["1", "2"]);
        assert_eq!(panel.series.len(), 2);
        assert_eq!(panel.series[0].points[1].unwrap().median, 2.1);
        assert_eq!(panel.series[1].points[1], None);
        let panel = with_verdicts(panel, &outcomes, "none");
        assert_eq!(panel.series[1].points[0].unwrap().verdict, Some(Verdict::Undecided));
    }

    #[test]
    fn a_lower_value_is_a_ratio_above_one_and_zeros_do_not_count() {
        let ones = [1.0; 4];
        let outcomes = [
            outcome("none", "1", "default", &ones, &[0.4, 0.41, 0.0, 0.39], None),
            outcome("none", "1", "lag", &ones, &[0.1, 0.1, 0.1, 0.1], None),
        ];
        let rows = compared_by(&outcomes, "lag", |run| run.spread);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].1.comparison.pairs, 3);
        assert!((rows[0].1.comparison.ratio.median - 4.0).abs() < 1e-9);
        assert_eq!(rows[0].1.verdict, Verdict::Better);
        assert!(!any_worse(&rows));
        assert_eq!(tally(&rows), "1 better, 0 worse of 1");
        assert_eq!(span(&rows), "4.000 to 4.000x");
    }
}
