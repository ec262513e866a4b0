//! Rounds become rows: medians, comparisons with the baseline, verdicts; and whether what is wanted
//! was reached.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Aim, Clock, Experiment, Figures, Metric, Wanted};
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

impl Series {
    /// A contestant's figure in each round.
    fn figures(&self, contestant: &str, metric: &str) -> Vec<Option<f64>> {
        let figure =
            |round: &BTreeMap<String, Figures>| round.get(contestant)?.get(metric).copied();
        self.rounds.iter().map(figure).collect()
    }

    /// How much more a contestant has than another one.
    fn more(&self, metric: &Metric, aim: &Aim, whom: &str) -> Option<Estimate> {
        let (base, ours) = self.pairs(metric.name, whom, aim.contestant);
        let more: Vec<f64> = base.iter().zip(&ours).map(|(base, ours)| ours - base).collect();
        estimate(&more)
    }

    /// How much more it has for each of those that another figure of its own counts, in the rounds in
    /// which there are any.
    fn more_each(&self, metric: &Metric, aim: &Aim, whom: &str, each: &str) -> Option<Estimate> {
        let [base, ours] = [whom, aim.contestant].map(|who| self.figures(who, metric.name));
        let count = self.figures(aim.contestant, each);
        let more = |((base, ours), count): ((Option<f64>, Option<f64>), Option<f64>)| {
            let count = count.filter(|count| *count > 0.0)?;
            Some((ours? - base?) / count)
        };
        let more: Vec<f64> = base.into_iter().zip(ours).zip(count).filter_map(more).collect();
        estimate(&more)
    }

    /// How much of the way from one contestant to another a third one has gone, in the rounds in which
    /// there is a way.
    fn way(&self, metric: &Metric, aim: &Aim, from: &str, to: &str) -> Option<Estimate> {
        let [from, to, ours] = [from, to, aim.contestant].map(|who| self.figures(who, metric.name));
        let way = |((from, to), ours): ((Option<f64>, Option<f64>), Option<f64>)| {
            let (from, to) = (from?, to?);
            (from > to).then_some((from - ours?) / (from - to))
        };
        let gone: Vec<f64> = from.into_iter().zip(to).zip(ours).filter_map(way).collect();
        estimate(&gone)
    }

    /// The figures of two contestants in the rounds that both have.
    fn pairs(&self, metric: &str, base: &str, ours: &str) -> (Vec<f64>, Vec<f64>) {
        let both = self.figures(base, metric).into_iter().zip(self.figures(ours, metric));
        both.filter_map(|(base, ours)| Some((base?, ours?))).unzip()
    }
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
    pub metric: String,
    /// The contestant.
    pub contestant: String,
    /// The median over the rounds, in the unit of the metric's kind.
    pub median: f64,
    /// Its 95 % interval (with fewer than 6 rounds the range).
    pub ci95: [f64; 2],
    /// How many times as good as the baseline, paired by round: above 1 is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Its 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_ci95: Option<[f64; 2]>,
    /// Against the baseline, corrected for the number of rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Rounds that count.
    pub rounds: usize,
}

/// One aim on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AimRow {
    /// The machine.
    pub clock: Clock,
    /// The figure.
    pub metric: String,
    /// The contestant.
    pub contestant: String,
    /// What was wanted, in words.
    pub wanted: String,
    /// What was found, in the unit of what was wanted; `None`: there was nothing to find it from.
    pub found: Option<f64>,
    /// Its 95 % interval (with fewer than 6 rounds the range).
    pub ci95: Option<[f64; 2]>,
    /// Whether it came true.
    pub reached: Reached,
}

/// The rows, all judged as one family. Those without a figure are left out.
pub fn rows(experiment: &Experiment, all: &[Series]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut compared = Vec::new();
    for series in all {
        for metric in experiment.metrics {
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

fn row(series: &Series, metric: &Metric, contestant: &str) -> Option<(Row, Option<Comparison>)> {
    let values: Vec<f64> = series.figures(contestant, metric.name).into_iter().flatten().collect();
    let all = estimate(&values)?;
    let baseline = series.contestants.first().filter(|baseline| *baseline != contestant);
    let comparison = baseline.and_then(|baseline| better(series, metric, baseline, contestant));
    let ratio = comparison.map(|comparison| comparison.ratio);
    let row = Row {
        clock: series.clock,
        metric: metric.name.to_owned(),
        contestant: contestant.to_owned(),
        median: all.median,
        ci95: all.ci95(),
        ratio: ratio.map(|ratio| ratio.median),
        ratio_ci95: ratio.map(|ratio| ratio.ci95()),
        verdict: None,
        rounds: values.len(),
    };
    Some((row, comparison))
}

/// How many times as good; what grows when it gets better is turned round first.
fn better(series: &Series, metric: &Metric, base: &str, ours: &str) -> Option<Comparison> {
    let (base, ours) = series.pairs(metric.name, base, ours);
    if metric.kind.is_better_if_more() { compare(&ours, &base) } else { compare(&base, &ours) }
}

/// What is wanted, on each machine that has the figure at all.
pub fn aims(experiment: &Experiment, all: &[Series]) -> Vec<AimRow> {
    let of = |series: &Series, aim: &Aim| {
        let metric = experiment.metric(aim.metric)?;
        let is_here = series.figures(aim.contestant, aim.metric).iter().any(Option::is_some);
        is_here.then(|| aim_row(series, metric, aim))
    };
    all.iter()
        .flat_map(|series| experiment.aims.iter().filter_map(move |aim| of(series, aim)))
        .collect()
}

fn aim_row(series: &Series, metric: &Metric, aim: &Aim) -> AimRow {
    let own: Vec<f64> = series.figures(aim.contestant, aim.metric).into_iter().flatten().collect();
    let (found, is_reached): (_, Box<dyn Fn(f64) -> bool>) = match aim.wanted {
        Wanted::Ratio(least, whom) => {
            let comparison = better(series, metric, whom, aim.contestant);
            (comparison.map(|one| one.ratio), Box::new(move |found| found >= least))
        }
        Wanted::Less(most, whom) => {
            (series.more(metric, aim, whom), Box::new(move |found| found >= -most))
        }
        Wanted::AtMostMore(most, whom) => {
            (series.more(metric, aim, whom), Box::new(move |found| found <= most))
        }
        Wanted::AtMostMoreEach(most, whom, each) => {
            (series.more_each(metric, aim, whom, each), Box::new(move |found| found <= most))
        }
        Wanted::Way(least, from, to) => {
            (series.way(metric, aim, from, to), Box::new(move |found| found >= least))
        }
        Wanted::AtLeast(least) => (estimate(&own), Box::new(move |found| found >= least)),
        Wanted::AtMost(most) => (estimate(&own), Box::new(move |found| found <= most)),
    };
    AimRow {
        clock: series.clock,
        metric: metric.name.to_owned(),
        contestant: aim.contestant.to_owned(),
        wanted: aim.wanted.words(),
        found: found.map(|found| found.median),
        ci95: found.map(|found| found.ci95()),
        reached: reached(found, is_reached),
    }
}

fn reached(found: Option<Estimate>, is_reached: impl Fn(f64) -> bool) -> Reached {
    match found {
        Some(found) if found.coverage >= LEVEL => {
            match (is_reached(found.lo), is_reached(found.hi)) {
                (true, true) => Reached::Reached,
                (false, false) => Reached::Missed,
                _ => Reached::Undecided,
            }
        }
        _ => Reached::Undecided,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Contestant, Kind};
    use super::*;

    const METRICS: [Metric; 4] = [
        Metric { name: "time", kind: Kind::Time, explanation: "" },
        Metric { name: "index", kind: Kind::Index, explanation: "" },
        Metric { name: "cost", kind: Kind::Cost, explanation: "" },
        Metric { name: "often", kind: Kind::Frequency, explanation: "" },
    ];

    fn experiment(metric: &'static str, wanted: Wanted) -> Experiment {
        let contestants = vec![Contestant::eevdf(), Contestant::keel("keel", "", "")];
        let aims = vec![Aim { contestant: "keel", metric, wanted }];
        Experiment { aims, ..Experiment::sample(contestants, &METRICS) }
    }

    /// The keel's row and what became of the aim, after ten rounds or fewer.
    fn keel(metric: &'static str, wanted: Wanted, base: &[f64], ours: &[f64]) -> (Row, AimRow) {
        let experiment = experiment(metric, wanted);
        let mut rounds = vec![BTreeMap::<String, Figures>::new(); 10];
        for (contestant, values) in [("eevdf", base), ("keel", ours)] {
            for (round, value) in rounds.iter_mut().zip(values) {
                let figures = round.entry(contestant.to_owned()).or_default();
                figures.insert(metric.to_owned(), *value);
            }
        }
        let contestants = ["eevdf", "keel"].map(str::to_owned).to_vec();
        let clock = Clock::Counted;
        let series = [Series { clock, contestants, rounds, failed: BTreeMap::new() }];
        let rows = rows(&experiment, &series);
        let row = rows.into_iter().find(|row| row.contestant == "keel").unwrap();
        (row, aims(&experiment, &series).remove(0))
    }

    const AS_GOOD: Wanted = Wanted::Ratio(0.95, "eevdf");

    #[test]
    fn less_time_is_better() {
        let (row, aim) = keel("time", AS_GOOD, &[2.0; 10], &[1.0; 10]);
        assert_eq!((row.median, row.ratio), (1.0, Some(2.0)));
        assert_eq!((row.verdict, aim.reached), (Some(Verdict::Better), Reached::Reached));
        let (row, aim) = keel("time", AS_GOOD, &[0.9; 10], &[1.0; 10]);
        assert_eq!((row.verdict, aim.reached), (Some(Verdict::Worse), Reached::Missed));
        let (row, _) = keel("often", AS_GOOD, &[2.0; 10], &[1.0; 10]);
        assert_eq!(row.ratio, Some(2.0));
    }

    #[test]
    fn a_higher_index_is_better() {
        let wanted = Wanted::Less(0.01, "eevdf");
        let (row, aim) = keel("index", wanted, &[0.8; 10], &[0.9; 10]);
        assert!(row.ratio.unwrap() > 1.0);
        assert_eq!((row.verdict, aim.reached), (Some(Verdict::Better), Reached::Reached));
        let reached = |ours| keel("index", wanted, &[0.95; 10], &[ours; 10]).1.reached;
        assert_eq!(reached(0.93), Reached::Missed);
        assert_eq!(reached(0.945), Reached::Reached, "within 0.01");
    }

    #[test]
    fn costs_need_no_baseline() {
        let wanted = Wanted::AtMost(1500.0);
        let (row, aim) = keel("cost", wanted, &[], &[1400.0; 10]);
        assert_eq!((row.ratio, row.verdict), (None, None));
        assert_eq!((aim.found, aim.reached), (Some(1400.0), Reached::Reached));
        assert_eq!(keel("cost", wanted, &[], &[1600.0; 10]).1.reached, Reached::Missed);
    }

    #[test]
    fn so_much_more_is_allowed() {
        let wanted = Wanted::AtMostMore(150.0, "eevdf");
        let (_, aim) = keel("cost", wanted, &[1000.0; 10], &[1100.0; 10]);
        assert_eq!((aim.found, aim.reached), (Some(100.0), Reached::Reached));
        let reached = keel("cost", wanted, &[1000.0; 10], &[1200.0; 10]).1.reached;
        assert_eq!(reached, Reached::Missed);
    }

    #[test]
    fn so_much_more_for_each_is_allowed() {
        let series = |often: f64| {
            let figures = |cost: f64| {
                let both = [("cost", cost), ("often", often)];
                Figures::from(both.map(|(name, value)| (name.to_owned(), value)))
            };
            let round = [("eevdf", 1000.0), ("keel", 1030.0)]
                .map(|(who, cost)| (who.to_owned(), figures(cost)));
            let contestants = round.iter().map(|(who, _)| who.clone()).collect();
            let rounds = vec![BTreeMap::from(round); 10];
            Series { clock: Clock::Counted, contestants, rounds, failed: BTreeMap::new() }
        };
        let wanted = Wanted::AtMostMoreEach(60.0, "eevdf", "often");
        let aim = |often| aims(&experiment("cost", wanted), &[series(often)]).remove(0);
        assert_eq!((aim(0.5).found, aim(0.5).reached), (Some(60.0), Reached::Reached));
        assert_eq!((aim(0.25).found, aim(0.25).reached), (Some(120.0), Reached::Missed));
        assert_eq!((aim(0.0).found, aim(0.0).reached), (None, Reached::Undecided));
        assert_eq!(aim(0.5).wanted, "<= eevdf + 60 for each of often");
    }

    #[test]
    fn a_part_of_the_way() {
        let series = |keel: f64| {
            let round = [("eevdf", 10.0), ("keel", keel), ("still", 5.0)]
                .map(|(who, value)| (who.to_owned(), Figures::from([("time".to_owned(), value)])));
            let contestants = round.iter().map(|(who, _)| who.clone()).collect();
            let mut rounds = vec![BTreeMap::from(round.clone()); 10];
            // One in which there is no way.
            rounds[3].insert("still".into(), Figures::from([("time".to_owned(), 11.0)]));
            Series { clock: Clock::Counted, contestants, rounds, failed: BTreeMap::new() }
        };
        let wanted = Wanted::Way(0.8, "eevdf", "still");
        let aim = |keel| aims(&experiment("time", wanted), &[series(keel)]).remove(0);
        assert_eq!((aim(6.0).found, aim(6.0).reached), (Some(0.8), Reached::Reached));
        assert_eq!((aim(7.0).found, aim(7.0).reached), (Some(0.6), Reached::Missed));
        assert_eq!(aim(7.0).wanted, ">= 0.8 of the way from eevdf to still");
    }

    #[test]
    fn few_or_scattered_rounds_decide_nothing() {
        let wanted = Wanted::AtLeast(0.95);
        assert_eq!(keel("index", wanted, &[], &[0.99; 4]).1.reached, Reached::Undecided);
        let scattered = [0.9, 0.99, 0.9, 0.99, 0.9, 0.99, 0.9, 0.99, 0.9, 0.99];
        assert_eq!(keel("index", wanted, &[], &scattered).1.reached, Reached::Undecided);
        // A round that only one of them has cannot be paired, and nothing is found from none.
        assert_eq!(keel("time", AS_GOOD, &[1.0; 10], &[1.0; 3]).0.rounds, 3);
        assert_eq!(keel("time", AS_GOOD, &[], &[1.0; 10]).1.found, None);
    }
}
