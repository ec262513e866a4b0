//! Rounds become rows: medians, comparisons with the kernel's own scheduler, verdicts, and whether
//! what is wanted of the keel was reached.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::contestant::{EEVDF, KEEL};
use super::lab::Clock;
use super::metric::{Kind, Metric, Wanted};
use super::round::Figures;
use crate::stats::{Comparison, Estimate, LEVEL, Verdict, compare, estimate, judge};

/// All rounds on one machine.
pub struct Series {
    /// Its clock.
    pub clock: Clock,
    /// Who took part, the baseline first.
    pub contestants: Vec<String>,
    /// What each gave by name in each round; nothing from where it failed.
    pub rounds: Vec<BTreeMap<String, Figures>>,
    /// Why a contestant was left out.
    pub failed: BTreeMap<String, String>,
}

/// Whether a wish came true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reached {
    /// The whole interval says so.
    Reached,
    /// The whole interval says not.
    Missed,
    /// The wish is within the interval, or there are too few rounds for one.
    Undecided,
}

/// One figure of one contestant on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The machine.
    pub clock: Clock,
    /// The figure.
    pub metric: Metric,
    /// The contestant.
    pub contestant: String,
    /// The median over the rounds: a time in s, an index (0..=1), or instructions.
    pub median: f64,
    /// Its 95 % interval (with fewer than 6 rounds the range).
    pub ci95: [f64; 2],
    /// How many times as good as the kernel's own scheduler, paired by round: above 1 is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vs_eevdf: Option<f64>,
    /// Its 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vs_eevdf_ci95: Option<[f64; 2]>,
    /// Against the kernel's own scheduler, corrected for the number of rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// What is wanted of the keel, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// Whether it came true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Reached>,
    /// Rounds that count.
    pub rounds: usize,
}

/// The rows, all judged as one family. Those without a figure are left out.
pub fn rows(all: &[Series]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut compared = Vec::new();
    for series in all {
        for metric in Metric::ALL {
            for contestant in &series.contestants {
                let Some((row, comparison)) = row(series, metric, contestant) else { continue };
                compared.extend(comparison.map(|comparison| (rows.len(), comparison)));
                rows.push(row);
            }
        }
    }
    let comparisons: Vec<Comparison> = compared.iter().map(|(_, one)| *one).collect();
    // The number of rounds is fixed: they are judged once.
    for ((index, _), judged) in compared.iter().zip(judge(&comparisons, 1)) {
        rows[*index].verdict = Some(judged.verdict);
    }
    rows
}

fn row(series: &Series, metric: Metric, contestant: &str) -> Option<(Row, Option<Comparison>)> {
    let of = |who: &str| {
        let figure = |round: &BTreeMap<String, Figures>| round.get(who)?.get(&metric).copied();
        series.rounds.iter().map(figure).collect::<Vec<Option<f64>>>()
    };
    let figures = of(contestant);
    let values: Vec<f64> = figures.iter().copied().flatten().collect();
    let all = estimate(&values)?;
    let (base, ours): (Vec<f64>, Vec<f64>) =
        of(EEVDF).into_iter().zip(figures).filter_map(|(base, ours)| Some((base?, ours?))).unzip();
    let comparison = (contestant != EEVDF).then(|| better(metric, &base, &ours)).flatten();
    let ratio = comparison.map(|comparison| comparison.ratio);
    let wanted = metric.wanted().filter(|_| contestant == KEEL);
    let row = Row {
        clock: series.clock,
        metric,
        contestant: contestant.to_owned(),
        median: all.median,
        ci95: all.ci95(),
        vs_eevdf: ratio.map(|ratio| ratio.median),
        vs_eevdf_ci95: ratio.map(|ratio| ratio.ci95()),
        verdict: None,
        wanted: wanted.map(Wanted::words),
        reached: wanted.map(|wanted| reached(wanted, all, ratio, &base, &ours)),
        rounds: values.len(),
    };
    Some((row, comparison))
}

/// How many times as good; what grows when it gets better is turned round first.
fn better(metric: Metric, base: &[f64], ours: &[f64]) -> Option<Comparison> {
    match metric.kind() {
        Kind::Time | Kind::Cost => compare(base, ours),
        Kind::Index => compare(ours, base),
    }
}

fn reached(
    wanted: Wanted,
    all: Estimate,
    ratio: Option<Estimate>,
    base: &[f64],
    ours: &[f64],
) -> Reached {
    let differences: Vec<f64> = base.iter().zip(ours).map(|(base, ours)| ours - base).collect();
    // As "at least", so that one rule serves all.
    let (found, least) = match wanted {
        Wanted::Ratio(least) => (ratio, least),
        Wanted::Less(most) => (estimate(&differences), -most),
        Wanted::AtLeast(least) => (Some(all), least),
        Wanted::AtMost(most) => (Some(Estimate { lo: -all.hi, hi: -all.lo, ..all }), -most),
    };
    match found {
        Some(found) if found.coverage >= LEVEL && found.lo >= least => Reached::Reached,
        Some(found) if found.coverage >= LEVEL && found.hi < least => Reached::Missed,
        _ => Reached::Undecided,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(figures: &[(&str, Metric, &[f64])]) -> Series {
        let mut rounds = vec![BTreeMap::<String, Figures>::new(); 10];
        for (contestant, metric, values) in figures {
            for (round, value) in rounds.iter_mut().zip(*values) {
                round.entry((*contestant).to_owned()).or_default().insert(*metric, *value);
            }
        }
        let contestants = [EEVDF, KEEL].map(str::to_owned).to_vec();
        Series { clock: Clock::Counted, contestants, rounds, failed: BTreeMap::new() }
    }

    /// The keel's row.
    fn keel(metric: Metric, base: &[f64], ours: &[f64]) -> Row {
        let rows = rows(&[series(&[(EEVDF, metric, base), (KEEL, metric, ours)])]);
        rows.into_iter().find(|row| row.contestant == KEEL).unwrap()
    }

    #[test]
    fn less_time_is_better() {
        let row = keel(Metric::Hackbench, &[2.0; 10], &[1.0; 10]);
        assert_eq!((row.median, row.vs_eevdf), (1.0, Some(2.0)));
        assert_eq!((row.verdict, row.reached), (Some(Verdict::Better), Some(Reached::Reached)));
        let row = keel(Metric::Hackbench, &[0.9; 10], &[1.0; 10]);
        assert_eq!((row.verdict, row.reached), (Some(Verdict::Worse), Some(Reached::Missed)));
    }

    #[test]
    fn a_higher_index_is_better() {
        let row = keel(Metric::EvenOneMore, &[0.8; 10], &[0.9; 10]);
        assert!(row.vs_eevdf.unwrap() > 1.0);
        assert_eq!((row.verdict, row.reached), (Some(Verdict::Better), Some(Reached::Reached)));
        let row = keel(Metric::EvenOneMore, &[0.95; 10], &[0.93; 10]);
        assert_eq!(row.reached, Some(Reached::Missed));
        let row = keel(Metric::EvenOneMore, &[0.95; 10], &[0.945; 10]);
        assert_eq!(row.reached, Some(Reached::Reached), "within 0.01");
    }

    #[test]
    fn latencies_may_be_half_as_long_again() {
        let reached = |ours| keel(Metric::WakeP99, &[1.0; 10], &[ours; 10]).reached;
        assert_eq!(reached(1.45), Some(Reached::Reached));
        assert_eq!(reached(1.55), Some(Reached::Missed));
    }

    #[test]
    fn costs_need_no_baseline() {
        let rows = rows(&[series(&[(KEEL, Metric::EnqueueDispatch, &[1400.0; 10])])]);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].verdict, rows[0].reached), (None, Some(Reached::Reached)));
        let row = keel(Metric::EnqueueDispatch, &[], &[1600.0; 10]);
        assert_eq!(row.reached, Some(Reached::Missed));
    }

    #[test]
    fn few_or_scattered_rounds_decide_nothing() {
        assert_eq!(keel(Metric::Weights, &[], &[0.99; 4]).reached, Some(Reached::Undecided));
        let scattered = [0.9, 0.99, 0.9, 0.99, 0.9, 0.99, 0.9, 0.99, 0.9, 0.99];
        assert_eq!(keel(Metric::Weights, &[], &scattered).reached, Some(Reached::Undecided));
        // A round that only one of them has cannot be paired.
        assert_eq!(keel(Metric::Hackbench, &[1.0; 10], &[1.0; 3]).rounds, 3);
    }
}
