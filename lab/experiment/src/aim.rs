//! Aims: the figures that contestants should reach, set before measuring, and what became of them.

use evenkeel_stats::{Estimate, estimate};
use evenkeel_trial::{Claim, Reached, Record};
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
}

/// How much is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted {
    /// At least so many times as good as this contestant.
    Ratio(f64, &'static str),
    /// How many times as good as this contestant: to be known, nothing is wanted.
    Known(&'static str),
    /// At most so much less than this contestant has.
    Less(f64, &'static str),
    /// At most so much more than this contestant has.
    AtMostMore(f64, &'static str),
    /// The same for each of those that this other figure counts.
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
            Self::Ratio(_, base)
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

/// What became of one aim in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Whether it was reached; `None`: nothing was wanted.
    pub reached: Option<Reached>,
}

/// The aims in each case that has their figures at all.
pub fn judge_aims(aims: &[Aim], metrics: &[Metric], records: &[Record]) -> Vec<AimRow> {
    let row = |record: &Record, aim: &Aim| {
        let metric = metrics.iter().find(|metric| metric.name == aim.metric)?;
        let line = record.line(aim.contestant)?;
        line.values(aim.metric).any(|value| value.is_some()).then(|| judge_aim(record, metric, aim))
    };
    records.iter().flat_map(|record| aims.iter().filter_map(move |aim| row(record, aim))).collect()
}

fn judge_aim(record: &Record, metric: &Metric, aim: &Aim) -> AimRow {
    let found = find(record, metric, aim);
    AimRow {
        case: record.case.clone(),
        program: record.program.clone(),
        metric: metric.name.to_owned(),
        contestant: aim.contestant.to_owned(),
        wanted: aim.wanted.words(),
        found: found.map(|found| found.median),
        ci95: found.map(|found| found.ci95()),
        reached: aim.wanted.claim().map(|claim| claim.judge(found, None)),
    }
}

/// The figure that is compared with what is wanted, from all rounds that have what it takes.
fn find(record: &Record, metric: &Metric, aim: &Aim) -> Option<Estimate> {
    let name = aim.metric;
    let values = |contestant: &str, figure: &str| -> Vec<Option<f64>> {
        record.line(contestant).map_or_else(Vec::new, |line| line.values(figure).collect())
    };
    let ours = values(aim.contestant, name);
    let combined: Vec<f64> = match aim.wanted {
        Wanted::Ratio(_, base) | Wanted::Known(base) => {
            let compared = record.compare(&metric.figure(), base, aim.contestant);
            return compared.map(|compared| compared.ratio);
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
    estimate(&combined)
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
        judge_aims(&[Aim { contestant: "keel", metric, wanted }], &METRICS, &[record]).remove(0)
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
            let aim = Aim { contestant: "keel", metric: "cost", wanted };
            judge_aims(&[aim], &METRICS, &[record]).remove(0)
        };
        assert_eq!((aim(0.5).found, aim(0.5).reached), (Some(60.0), Some(Reached::Reached)));
        assert_eq!((aim(0.25).found, aim(0.25).reached), (Some(120.0), Some(Reached::Missed)));
        assert_eq!((aim(0.0).found, aim(0.0).reached), (None, Some(Reached::Undecided)));
        assert_eq!(aim(0.5).wanted, "<= eevdf + 60 for each of often");
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
            let aim = Aim { contestant: "keel", metric: "time", wanted };
            judge_aims(&[aim], &METRICS, &[record]).remove(0)
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
        let aim = Aim { contestant: "eevdf", metric: "index", wanted };
        let row = judge_aims(&[aim], &METRICS, &[record]).remove(0);
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
}
