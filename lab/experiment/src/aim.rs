//! Aims: the figures that contestants should reach, set before measuring, and what became of them.

use evenkeel_stats::{Comparison, Estimate, Verdict, estimate, judge};
use evenkeel_trial::{Claim, Reached, Record};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Metric;

/// What a contestant is to reach.
#[derive(Debug, Clone, PartialEq)]
pub struct Aim {
    /// The contestant.
    pub contestant: &'static str,
    /// The figure.
    pub metric: &'static str,
    /// How much.
    pub wanted: Wanted,
    /// In which cases.
    pub cases: Cases,
}

/// The cases that an aim is for, by a part of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cases {
    /// All.
    All,
    /// Those with this in their names.
    With(&'static str),
    /// All others.
    Without(&'static str),
}

impl Cases {
    fn include(self, case: &str) -> bool {
        match self {
            Self::All => true,
            Self::With(part) => case.contains(part),
            Self::Without(part) => !case.contains(part),
        }
    }
}

impl Aim {
    /// In all cases.
    pub const fn new(contestant: &'static str, metric: &'static str, wanted: Wanted) -> Self {
        Self { contestant, metric, wanted, cases: Cases::All }
    }

    /// The same aim in these cases only.
    pub const fn in_cases(self, cases: Cases) -> Self {
        Self { cases, ..self }
    }
}

/// How much is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted {
    /// Better than this contestant, by the corrected verdict.
    Better(&'static str),
    /// At most this part worse than this contestant, and not worse by the corrected verdict.
    NotWorse(f64, &'static str),
    /// Shown to be less than this part worse than this contestant, by a test that is corrected like a
    /// verdict: undecided does not reach it.
    NotInferior(f64, &'static str),
    /// At least so many times as good as this contestant.
    Ratio(f64, &'static str),
    /// How many times as good as this contestant: the figure is reported, and nothing is wanted.
    Known(&'static str),
    /// At most so much less than this contestant has.
    Less(f64, &'static str),
    /// At most so much more than this contestant has.
    AtMostMore(f64, &'static str),
    /// At most so much more than this contestant has, for each one that the third field's figure counts.
    AtMostMoreEach(f64, &'static str, &'static str),
    /// At least this part of the way from what the first contestant has to what the second has,
    /// where that is less.
    Way(f64, &'static str, &'static str),
    /// At least this, whatever others reach.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// At least this share of the bound, which is another figure of the same contestant.
    OfBound(f64, &'static str),
}

impl Wanted {
    /// For a column of a table.
    pub fn words(self) -> String {
        match self {
            Self::Better(base) => format!("better than {base}"),
            Self::NotWorse(margin, base) => {
                format!("not worse than {base} (margin {} %)", percent(margin))
            }
            Self::NotInferior(margin, base) => {
                format!("shown to lose less than {} % against {base}", percent(margin))
            }
            Self::Ratio(least, base) => format!(">= {least:.2} times {base}"),
            Self::Known(base) => format!("against {base}"),
            Self::Less(most, base) => format!(">= {base} - {most}"),
            Self::AtMostMore(most, base) => format!("<= {base} + {most}"),
            Self::AtMostMoreEach(most, base, each) => {
                format!("<= {base} + {most} for each of {each}")
            }
            Self::Way(least, from, to) => format!(">= {least} of the way from {from} to {to}"),
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
            Self::OfBound(least, bound) => format!(">= {least} of {bound}"),
        }
    }

    /// The contestant that it compares with.
    pub fn against(self) -> Option<&'static str> {
        match self {
            Self::Better(base)
            | Self::NotWorse(_, base)
            | Self::NotInferior(_, base)
            | Self::Ratio(_, base)
            | Self::Known(base)
            | Self::Less(_, base)
            | Self::AtMostMore(_, base)
            | Self::AtMostMoreEach(_, base, _)
            | Self::Way(_, base, _) => Some(base),
            Self::AtLeast(_) | Self::AtMost(_) | Self::OfBound(..) => None,
        }
    }

    fn claim(self) -> Option<Claim> {
        match self {
            Self::Known(_) => None,
            // What it must be better than is moved by the margin.
            Self::Better(_) | Self::NotInferior(..) => Some(Claim::Better),
            Self::NotWorse(margin, _) => Some(Claim::NotWorse(margin)),
            Self::Ratio(least, _)
            | Self::Way(least, ..)
            | Self::AtLeast(least)
            | Self::OfBound(least, _) => Some(Claim::AtLeast(least)),
            Self::Less(most, _) => Some(Claim::AtLeast(-most)),
            Self::AtMostMore(most, _) | Self::AtMostMoreEach(most, ..) | Self::AtMost(most) => {
                Some(Claim::AtMost(most))
            }
        }
    }
}

/// A part in percent, to a tenth: 2, or 0.3.
fn percent(part: f64) -> f64 {
    (1000.0 * part).round() / 10.0
}

/// What became of one aim in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AimRow {
    /// The case.
    pub case: String,
    /// The program.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// The figure.
    pub metric: String,
    /// The contestant.
    pub contestant: String,
    /// What was wanted, in words.
    pub wanted: String,
    /// What was found, in the unit of what was wanted; `None`: no round has all that it takes.
    pub found: Option<f64>,
    /// Its 95 % interval (with fewer than 6 rounds the range).
    pub ci95: Option<[f64; 2]>,
    /// Against the other contestant, corrected for the number of such aims and of looks; `None` where
    /// the aim compares no ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Whether it was reached; `None`: nothing was wanted.
    pub reached: Option<Reached>,
}

impl AimRow {
    /// A figure that is exact, because it was counted and not sampled: one value decides.
    pub fn counted(case: &str, metric: &str, contestant: &str, count: f64, wanted: Wanted) -> Self {
        let exact = Estimate { median: count, lo: count, hi: count, coverage: 1.0 };
        Self::estimated(case, metric, contestant, Some(exact), wanted)
    }

    /// A figure that was estimated from several cases; `None`: they do not show it.
    pub fn estimated(
        case: &str,
        metric: &str,
        contestant: &str,
        found: Option<Estimate>,
        wanted: Wanted,
    ) -> Self {
        Self {
            case: case.to_owned(),
            program: String::new(),
            metric: metric.to_owned(),
            contestant: contestant.to_owned(),
            wanted: wanted.words(),
            found: found.map(|found| found.median),
            ci95: found.map(|found| found.ci95()),
            verdict: None,
            reached: wanted.claim().map(|claim| claim.judge(found, None)),
        }
    }
}

/// The aims in each case that has their figures and their contestants at all. All ratios are judged as
/// one family: the chance of even one wrong verdict among them is 5 %, however often they are looked at
/// within `looks`.
pub fn judge_aims(
    aims: &[Aim],
    metrics: &[Metric],
    records: &[Record],
    looks: usize,
) -> Vec<AimRow> {
    let found: Vec<(&Record, &Aim, Found)> = records
        .iter()
        .flat_map(|record| aims.iter().map(move |aim| (record, aim)))
        .filter_map(|(record, aim)| Some((record, aim, find(record, metrics, aim)?)))
        .collect();
    let comparison = |(_, _, found): &(&Record, &Aim, Found)| match found {
        Found::Ratio(comparison) | Found::Shifted(_, comparison) => Some(*comparison),
        Found::Figure(_) => None,
    };
    let comparisons: Vec<Comparison> = found.iter().filter_map(comparison).collect();
    let mut judged = judge(&comparisons, looks).into_iter();
    let row = |(record, aim, found): (&Record, &Aim, Found)| {
        let mut judged = || judged.next().map(|judged| judged.verdict);
        // The verdict on a shifted ratio is no verdict on the ratio that is shown.
        let (found, verdict, shown) = match found {
            Found::Ratio(comparison) => {
                let verdict = judged();
                (Some(comparison.ratio), verdict, verdict)
            }
            Found::Shifted(ratio, _) => (Some(ratio), judged(), None),
            Found::Figure(figure) => (figure, None, None),
        };
        AimRow {
            case: record.case.clone(),
            program: record.program.clone(),
            metric: aim.metric.to_owned(),
            contestant: aim.contestant.to_owned(),
            wanted: aim.wanted.words(),
            found: found.map(|found| found.median),
            ci95: found.map(|found| found.ci95()),
            verdict: shown,
            reached: aim.wanted.claim().map(|claim| claim.judge(found, verdict)),
        }
    };
    found.into_iter().map(row).collect()
}

/// What is compared with what is wanted.
enum Found {
    /// How many times as good as another contestant.
    Ratio(Comparison),
    /// The same, and the comparison with that contestant made worse by a margin.
    Shifted(Estimate, Comparison),
    /// Any other figure; `None`: no round has all that it takes.
    Figure(Option<Estimate>),
}

/// The figure of an aim in a case, from all rounds that have what it takes; `None` where the aim is not
/// for this case, or the case has not its figure or contestants.
fn find(record: &Record, metrics: &[Metric], aim: &Aim) -> Option<Found> {
    let metric = metrics.iter().find(|metric| metric.name == aim.metric)?;
    let line = record.line(aim.contestant)?;
    let has_base = aim.wanted.against().is_none_or(|base| record.line(base).is_some());
    let has_figure = line.values(aim.metric).any(|value| value.is_some());
    if !aim.cases.include(&record.case) || !has_base || !has_figure {
        return None;
    }
    let name = aim.metric;
    let values = |contestant: &str, figure: &str| -> Vec<Option<f64>> {
        record.line(contestant).map_or_else(Vec::new, |line| line.values(figure).collect())
    };
    let ours = values(aim.contestant, name);
    let combined: Vec<f64> = match aim.wanted {
        Wanted::Better(base)
        | Wanted::NotWorse(_, base)
        | Wanted::Ratio(_, base)
        | Wanted::Known(base) => {
            let compared = record.compare(&metric.figure(), base, aim.contestant);
            return Some(compared.map_or(Found::Figure(None), Found::Ratio));
        }
        Wanted::NotInferior(margin, base) => {
            let figure = metric.figure();
            let ratio = record.compare(&figure, base, aim.contestant);
            let shifted = record.compare_with_margin(&figure, base, aim.contestant, margin);
            let both = ratio.zip(shifted);
            let found = |(ratio, shifted): (Comparison, _)| Found::Shifted(ratio.ratio, shifted);
            return Some(both.map_or(Found::Figure(None), found));
        }
        Wanted::Less(_, base) | Wanted::AtMostMore(_, base) => {
            let more = |(base, ours): (Option<f64>, Option<f64>)| Some(ours? - base?);
            values(base, name).into_iter().zip(ours).filter_map(more).collect()
        }
        Wanted::AtMostMoreEach(_, base, each) => {
            let more = |((base, ours), count): ((Option<f64>, Option<f64>), Option<f64>)| {
                let count = count.filter(|count| *count > 0.0)?;
                Some((ours? - base?) / count)
            };
            let counts = values(aim.contestant, each);
            values(base, name).into_iter().zip(ours).zip(counts).filter_map(more).collect()
        }
        Wanted::Way(_, from, to) => {
            let way = |((from, to), ours): ((Option<f64>, Option<f64>), Option<f64>)| {
                let (from, to) = (from?, to?);
                (from > to).then_some((from - ours?) / (from - to))
            };
            values(from, name).into_iter().zip(values(to, name)).zip(ours).filter_map(way).collect()
        }
        Wanted::OfBound(_, bound) => {
            let share = |(ours, bound): (Option<f64>, Option<f64>)| {
                let (ours, bound) = (ours?, bound.filter(|bound| *bound > 0.0)?);
                Some(ours / bound)
            };
            ours.into_iter().zip(values(aim.contestant, bound)).filter_map(share).collect()
        }
        Wanted::AtLeast(_) | Wanted::AtMost(_) => ours.into_iter().flatten().collect(),
    };
    Some(Found::Figure(estimate(&combined)))
}

#[cfg(test)]
mod tests {
    use evenkeel_trial::{Case, Sample};

    use super::*;
    use crate::Kind;

    const METRICS: [Metric; 4] = [
        Metric::new("time", Kind::Time, ""),
        Metric::new("index", Kind::Index, ""),
        Metric::new("cost", Kind::Cost, ""),
        Metric::told("often", Kind::Frequency, ""),
    ];

    /// A record in which each contestant gives the same in all rounds but those that are `None`.
    fn record(lines: &[(&str, &[Option<Sample>])]) -> Record {
        let contestants = lines.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut record = Record::new(&Case { contestants, ..Case::default() });
        for (line, (_, rounds)) in record.lines.iter_mut().zip(lines) {
            line.rounds = rounds.to_vec();
        }
        record
    }

    fn rounds(metric: &str, values: &[f64]) -> Vec<Option<Sample>> {
        let mut rounds: Vec<Option<Sample>> =
            values.iter().map(|value| Some(Sample::new([(metric, *value)]))).collect();
        rounds.resize(10, None);
        rounds
    }

    /// What becomes of the keel's aim.
    fn keel(metric: &'static str, wanted: Wanted, base: &[f64], ours: &[f64]) -> AimRow {
        let record = record(&[("eevdf", &rounds(metric, base)), ("keel", &rounds(metric, ours))]);
        judge_aims(&[Aim::new("keel", metric, wanted)], &METRICS, &[record], 1).remove(0)
    }

    const AS_GOOD: Wanted = Wanted::Ratio(0.95, "eevdf");

    #[test]
    fn less_time_is_better() {
        let aim = keel("time", AS_GOOD, &[2.0; 10], &[1.0; 10]);
        assert_eq!((aim.found, aim.reached), (Some(2.0), Some(Reached::Reached)));
        let aim = keel("time", AS_GOOD, &[0.9; 10], &[1.0; 10]);
        assert_eq!(aim.reached, Some(Reached::Missed));
    }

    #[test]
    fn a_higher_index_is_better() {
        let wanted = Wanted::Less(0.01, "eevdf");
        let reached = |base, ours| keel("index", wanted, &[base; 10], &[ours; 10]).reached;
        assert_eq!(reached(0.8, 0.9), Some(Reached::Reached));
        assert_eq!(reached(0.95, 0.93), Some(Reached::Missed));
        assert_eq!(reached(0.95, 0.945), Some(Reached::Reached), "within 0.01");
    }

    #[test]
    fn costs_need_no_baseline() {
        let wanted = Wanted::AtMost(1500.0);
        let aim = keel("cost", wanted, &[], &[1400.0; 10]);
        assert_eq!((aim.found, aim.reached), (Some(1400.0), Some(Reached::Reached)));
        assert_eq!(keel("cost", wanted, &[], &[1600.0; 10]).reached, Some(Reached::Missed));
    }

    #[test]
    fn so_much_more_is_allowed() {
        let wanted = Wanted::AtMostMore(150.0, "eevdf");
        let aim = keel("cost", wanted, &[1000.0; 10], &[1100.0; 10]);
        assert_eq!((aim.found, aim.reached), (Some(100.0), Some(Reached::Reached)));
        let reached = keel("cost", wanted, &[1000.0; 10], &[1200.0; 10]).reached;
        assert_eq!(reached, Some(Reached::Missed));
    }

    #[test]
    fn so_much_more_for_each_is_allowed() {
        let wanted = Wanted::AtMostMoreEach(60.0, "eevdf", "often");
        let aim = |often: f64| {
            let rounds =
                |cost: f64| vec![Some(Sample::new([("cost", cost), ("often", often)])); 10];
            let record = record(&[("eevdf", &rounds(1000.0)), ("keel", &rounds(1030.0))]);
            let aim = Aim::new("keel", "cost", wanted);
            judge_aims(&[aim], &METRICS, &[record], 1).remove(0)
        };
        assert_eq!((aim(0.5).found, aim(0.5).reached), (Some(60.0), Some(Reached::Reached)));
        assert_eq!((aim(0.25).found, aim(0.25).reached), (Some(120.0), Some(Reached::Missed)));
        assert_eq!((aim(0.0).found, aim(0.0).reached), (None, Some(Reached::Undecided)));
        assert_eq!(aim(0.5).wanted, "<= eevdf + 60 for each of often");
    }

    #[test]
    fn not_inferior_is_shown_by_a_corrected_test_against_the_margin() {
        let wanted = Wanted::NotInferior(0.02, "eevdf");
        let noisy = |middle: f64, spread: f64| -> Vec<f64> {
            (0..10).map(|round| middle + spread * f64::from(round % 3 - 1)).collect()
        };
        let aim = |metric, ours: &[f64]| keel(metric, wanted, &[1.0; 10], ours);
        // A loss of 1 % that is certain is within the margin, a better verdict would miss it.
        let slower = aim("time", &noisy(1.01, 0.001));
        assert_eq!((slower.reached, slower.verdict), (Some(Reached::Reached), None));
        assert!(slower.found.unwrap() < 1.0, "the ratio is shown as it is: {slower:?}");
        assert_eq!(aim("time", &noisy(1.01, 0.03)).reached, Some(Reached::Undecided));
        assert_eq!(aim("time", &noisy(1.05, 0.001)).reached, Some(Reached::Missed));
        assert_eq!(aim("index", &noisy(0.99, 0.001)).reached, Some(Reached::Reached));
        assert_eq!(aim("index", &noisy(0.95, 0.001)).reached, Some(Reached::Missed));
        // One among many must be clearer: p of this one is about 0.004.
        let ours = noisy(1.01, 0.011);
        let records = |count: usize| {
            let (base, ours) = (rounds("time", &[1.0; 10]), rounds("time", &ours));
            vec![record(&[("eevdf", &base), ("keel", &ours)]); count]
        };
        let aims = [Aim::new("keel", "time", wanted)];
        let reached = |count| judge_aims(&aims, &METRICS, &records(count), 1)[0].reached;
        assert_eq!(reached(1), Some(Reached::Reached));
        assert_eq!(reached(32), Some(Reached::Undecided));
    }

    #[test]
    fn a_part_of_the_way() {
        let wanted = Wanted::Way(0.8, "eevdf", "still");
        let aim = |keel: f64| {
            // In one round there is no way.
            let mut still = [5.0; 10];
            still[3] = 11.0;
            let record = record(&[
                ("eevdf", &rounds("time", &[10.0; 10])),
                ("keel", &rounds("time", &[keel; 10])),
                ("still", &rounds("time", &still)),
            ]);
            let aim = Aim::new("keel", "time", wanted);
            judge_aims(&[aim], &METRICS, &[record], 1).remove(0)
        };
        assert_eq!((aim(6.0).found, aim(6.0).reached), (Some(0.8), Some(Reached::Reached)));
        assert_eq!((aim(7.0).found, aim(7.0).reached), (Some(0.6), Some(Reached::Missed)));
        assert_eq!(aim(7.0).wanted, ">= 0.8 of the way from eevdf to still");
    }

    #[test]
    fn a_share_of_the_bound() {
        let wanted = Wanted::OfBound(0.9, "often");
        let rounds = vec![Some(Sample::new([("index", 0.95), ("often", 1.0)])); 10];
        let record = record(&[("eevdf", &rounds)]);
        let aim = Aim::new("eevdf", "index", wanted);
        let row = judge_aims(&[aim], &METRICS, &[record], 1).remove(0);
        assert_eq!((row.found, row.reached), (Some(0.95), Some(Reached::Reached)));
    }

    #[test]
    fn what_is_only_to_be_known_is_not_judged() {
        let aim = keel("time", Wanted::Known("eevdf"), &[2.0; 10], &[1.0; 10]);
        assert_eq!((aim.found, aim.reached), (Some(2.0), None));
    }

    #[test]
    fn few_or_scattered_rounds_decide_nothing() {
        let wanted = Wanted::AtLeast(0.95);
        let undecided = Some(Reached::Undecided);
        assert_eq!(keel("index", wanted, &[], &[0.99; 4]).reached, undecided);
        let scattered = [0.9, 0.99, 0.9, 0.99, 0.9, 0.99, 0.9, 0.99, 0.9, 0.99];
        assert_eq!(keel("index", wanted, &[], &scattered).reached, undecided);
        // Nothing is found where no round has both.
        assert_eq!(keel("time", AS_GOOD, &[], &[1.0; 10]).found, None);
    }

    #[test]
    fn better_and_not_worse_follow_the_corrected_verdict() {
        let ours = [1.0, 1.001, 1.002, 1.003, 1.004, 1.005, 1.006, 1.007];
        let found = |factor: f64, wanted| {
            let row = keel("time", wanted, &ours.map(|time| time * factor), &ours);
            (row.verdict, row.reached)
        };
        let (better, not_worse) = (Wanted::Better("eevdf"), Wanted::NotWorse(0.05, "eevdf"));
        let (won, lost) = (Some(Verdict::Better), Some(Verdict::Worse));
        assert_eq!(found(1.5, better), (won, Some(Reached::Reached)));
        assert_eq!(found(0.9, better), (lost, Some(Reached::Missed)));
        assert_eq!(found(1.5, not_worse), (won, Some(Reached::Reached)));
        // A loss that is shown is a loss, also within the margin.
        assert_eq!(found(0.98, not_worse), (lost, Some(Reached::Missed)));
        let equal = (Some(Verdict::Undecided), Some(Reached::Reached));
        assert_eq!(found(1.0, not_worse), equal);
        assert_eq!(found(1.0, better), (equal.0, Some(Reached::Undecided)));
        assert_eq!(not_worse.words(), "not worse than eevdf (margin 5 %)");
        let not_inferior = Wanted::NotInferior(0.003, "eevdf");
        assert_eq!(not_inferior.words(), "shown to lose less than 0.3 % against eevdf");
    }

    #[test]
    fn an_aim_is_for_its_cases_and_for_those_that_have_both_contestants() {
        let with = |case: &str, contestants: &[&str]| {
            let lines: Vec<_> =
                contestants.iter().map(|name| (*name, rounds("time", &[1.0; 6]))).collect();
            let lines: Vec<(&str, &[Option<Sample>])> =
                lines.iter().map(|(name, rounds)| (*name, rounds.as_slice())).collect();
            Record { case: case.to_owned(), ..record(&lines) }
        };
        let records = [
            with("3 Gb/s, 8 servers", &["eevdf", "keel"]),
            with("unshaped, 8 servers", &["eevdf", "keel"]),
            with("unshaped, 1 server", &["other", "keel"]),
        ];
        let cases = |cases: Cases| -> Vec<String> {
            let aim = Aim::new("keel", "time", Wanted::Better("eevdf")).in_cases(cases);
            let rows = judge_aims(&[aim], &METRICS, &records, 1);
            rows.into_iter().map(|row| row.case).collect()
        };
        assert_eq!(cases(Cases::All), ["3 Gb/s, 8 servers", "unshaped, 8 servers"]);
        assert_eq!(cases(Cases::With(" Gb/s")), ["3 Gb/s, 8 servers"]);
        assert_eq!(cases(Cases::Without(" Gb/s")), ["unshaped, 8 servers"]);
    }

    #[test]
    fn a_counted_figure_is_decided_by_one_value() {
        let reached = |count, wanted| AimRow::counted("c", "own", "keel", count, wanted).reached;
        assert_eq!(reached(160.0, Wanted::AtMost(160.0)), Some(Reached::Reached));
        assert_eq!(reached(161.0, Wanted::AtMost(160.0)), Some(Reached::Missed));
        assert_eq!(reached(99.89, Wanted::AtLeast(99.9)), Some(Reached::Missed));
    }

    #[test]
    fn an_aim_pairs_rounds_and_leaves_out_those_that_one_contestant_missed() {
        let mut lag = rounds("time", &[2.0, 9.0, 3.0]);
        lag[1] = None;
        let pinned = rounds("time", &[4.0, 4.0, 6.0]);
        let default = rounds("time", &[3.0; 3]);
        let record = record(&[("default", &default), ("pinned", &pinned), ("lag", &lag)]);
        let aim = Aim::new("lag", "time", Wanted::Known("pinned"));
        let row = judge_aims(&[aim], &METRICS, &[record], 1).remove(0);
        let [lo, hi] = row.ci95.unwrap();
        for ratio in [row.found.unwrap(), lo, hi] {
            assert!((ratio - 2.0).abs() < 1e-12, "{row:?}");
        }
        assert_eq!(row.wanted, "against pinned");
    }
}
