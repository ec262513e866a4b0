//! The lists of the experiment: figures, aims, contestants, and how the report is to be read. What the
//! kernel of experiments cannot judge case by case is judged here: segments that were overtaken, over
//! all cases.

use evenkeel_experiment::{
    Aim, AimRow, Cases, Contestant, Experiment, Kind, Metric, Reached, Report, Row, Wanted,
};

use super::contestant::{
    AUTO, BALANCED, DEDICATED, HINTED_ISSUER, ISSUER, Method, NONE, RFS, RUNNER,
};
use super::traffic::{self, DISORDERED, PREDICTED, SEGMENTS, SHOWN_CPUS, STEERS};

/// The figure that decides.
pub const GOODPUT: &str = "goodput";
/// CPU time of both ends of the cable.
pub const CPU_TIME: &str = "cpu-per-gb";

const GOODPUT_METRIC: Metric =
    Metric::new(GOODPUT, Kind::MegabytesPerSecond, "what the readers got a second");
const CPU_TIME_METRIC: Metric = Metric::told(
    CPU_TIME,
    Kind::Time,
    "CPU time for a gigabyte: of both ends, the steering threads, and all interrupts and softirqs of \
     the machine. One application in memory has one CPU with si-sais and two with si-irqbalance: what \
     is saved shows here only",
);

const METRIC_COUNT: usize = 2 + traffic::METRICS.len() + SHOWN_CPUS;
static METRICS: [Metric; METRIC_COUNT] = metrics();

const fn metrics() -> [Metric; METRIC_COUNT] {
    let mut all = [GOODPUT_METRIC; METRIC_COUNT];
    all[1] = CPU_TIME_METRIC;
    let mut next = 2;
    while next < METRIC_COUNT {
        let number = next - 2;
        all[next] = if number < traffic::METRICS.len() {
            traffic::METRICS[number]
        } else {
            traffic::cpu_metric(number - traffic::METRICS.len())
        };
        next += 1;
    }
    all
}

/// What is measured, with these aims.
pub fn experiment(aims: Vec<Aim>) -> Experiment<Method> {
    let contestant = |method: Method| Contestant::new(method.name(), method.explanation(), method);
    let methods = Method::IN_MEMORY.into_iter().chain(Method::ALL);
    Experiment {
        name: "sais",
        title: "Benchmarks: packets where their data is wanted",
        intro: "",
        case_word: "case",
        contestants: methods.map(contestant).collect(),
        metrics: &METRICS,
        aims,
        course: COURSE,
        reading: "",
        lists: Vec::new(),
    }
}

const COURSE: &str = "\
Two network namespaces with a cable between them; contestants run in turn (A B C A B C ...), each in a \
network of its own, and are compared round by round. Before a run over the network is measured, all \
contestants have as long to warm up as `auto` needs to judge. Both ends share the CPUs of one machine: \
what one end saves, the other may use; what one end costs, the other may lose.";

/// The margin within which a contestant is not worse.
const MARGIN: f64 = 0.05;
/// Least ratios that are wanted: of `runner` to a dedicated CPU, and of one CPU to two in memory.
const VS_DEDICATED: f64 = 1.15;
const IN_MEMORY: f64 = 1.2;
/// Part of the names of cases with a link of limited rate. There the link is the bound, and no
/// contestant can be better than another.
const SHAPED: &str = " Gb/s";

/// What is wanted of the benchmark.
pub fn aims() -> Vec<Aim> {
    let aim = |ours: Method, metric, wanted| Aim::new(ours.name(), metric, wanted);
    let not_worse = |base: Method| Wanted::NotWorse(MARGIN, base.name());
    let unshaped = |aim: Aim| aim.in_cases(Cases::Without(SHAPED));
    let apart = Method::Apart.name();
    let better = Wanted::Better(BALANCED.name());
    let vs_dedicated = Wanted::Ratio(VS_DEDICATED, DEDICATED.name());
    vec![
        aim(Method::Together, GOODPUT, Wanted::Ratio(IN_MEMORY, apart)),
        aim(AUTO, GOODPUT, not_worse(NONE)),
        aim(AUTO, CPU_TIME, not_worse(NONE)),
        aim(AUTO, GOODPUT, not_worse(RFS)),
        aim(AUTO, CPU_TIME, not_worse(RFS)),
        unshaped(aim(AUTO, GOODPUT, better)),
        unshaped(aim(AUTO, CPU_TIME, better)),
        unshaped(aim(RUNNER, GOODPUT, vs_dedicated)),
        // What the option in each packet costs, the lost fast path included.
        unshaped(aim(HINTED_ISSUER, CPU_TIME, Wanted::Known(ISSUER.name()))),
    ]
}

/// The aim that no more segments are overtaken where `sais` steers than under `none`: over all runs of
/// all cases, as a share of all segments, because not all contestants have as many runs. With a sentence
/// that gives the counts. `None` where one of the two was not measured.
pub fn disorder(rows: &[Row]) -> Option<(AimRow, String)> {
    let is_steered = |row: &Row| {
        let is_same =
            |other: &Row| (&other.case, &other.contestant) == (&row.case, &row.contestant);
        rows.iter().any(|other| other.metric == STEERS && is_same(other))
    };
    let total = |metric: &str, is_meant: &dyn Fn(&Row) -> bool| -> f64 {
        let meant = rows.iter().filter(|row| row.metric == metric && is_meant(row));
        meant.filter_map(|row| row.total).sum()
    };
    let is_none = |row: &Row| row.contestant == NONE.name();
    let [ours, ours_all] = [DISORDERED, SEGMENTS].map(|metric| total(metric, &is_steered));
    let [none, none_all] = [DISORDERED, SEGMENTS].map(|metric| total(metric, &is_none));
    if ours_all == 0.0 || none_all == 0.0 {
        return None;
    }
    let per_million = |count: f64, all: f64| 1e6 * count / all;
    let (found, most) = (per_million(ours, ours_all), per_million(none, none_all));
    let mut aim = AimRow::counted(
        "all cases",
        "disordered, of a million segments",
        "sais",
        found,
        Wanted::AtMost(most),
    );
    aim.wanted = format!("<= {most:.3}, as with {}", NONE.name());
    if aim.reached == Some(Reached::Missed) && none > 0.0 {
        // A cable that disorders by itself says little.
        aim.reached = Some(Reached::Undecided);
    }
    let sentence = format!(
        "Segments that others overtook: {ours:.0} of {ours_all:.0} where `sais` steers, {none:.0} of \
         {none_all:.0} with {}",
        NONE.name()
    );
    Some((aim, sentence))
}

/// How many segments took TCP's fast path in flow mode and in hint mode, in the first case with both.
pub fn fast_path(report: &Report) -> Option<String> {
    let of = |method: Method| {
        let is_meant = |row: &&Row| row.metric == PREDICTED && row.contestant == method.name();
        report.rows.iter().find(is_meant).map(|row| row.median)
    };
    let (flow, hint) = (of(ISSUER)?, of(HINTED_ISSUER)?);
    Some(format!(
        "Segments on TCP's fast path at the client (header prediction), issuer: {flow:.0} % in flow \
         mode, {hint:.0} % in hint mode"
    ))
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::{Case, Plan, Record, Sample, judge_aims, rows};

    use super::*;

    /// A case in which each contestant gives the same (goodput, CPU time) in each round, but for the
    /// small differences that all measurements have.
    fn record(case: &str, lines: &[(Method, f64, f64)]) -> Record {
        let contestants = lines.iter().map(|(method, ..)| method.name().to_owned()).collect();
        let mut record = Record::new(&Case { name: case.into(), contestants, ..Case::default() });
        for (line, (_, goodput, cpu)) in record.lines.iter_mut().zip(lines) {
            let sample = |round: usize| {
                let more = 1.0 + round as f64 * 1e-3;
                Some(Sample::new([(GOODPUT, goodput / more), (CPU_TIME, cpu * more)]))
            };
            line.rounds = (0..12).map(sample).collect();
        }
        record
    }

    #[test]
    fn losses_are_said_like_gains() {
        let lines = [
            (NONE, 1000.0, 1.0),
            (DEDICATED, 500.0, 2.0),
            (BALANCED, 1000.0 / 1.5, 1.0),
            (RUNNER, 1000.0 / 1.9, 2.0),
            (AUTO, 1000.0, 1.4),
        ];
        let records = [record("unshaped", &lines), record("1 Gb/s", &lines)];
        let aims = judge_aims(&aims(), &METRICS, &records, 1);
        let reached = |case: &str, ours: Method, metric: &str, wanted: &str| {
            let is_meant = |aim: &&AimRow| {
                (aim.case.as_str(), aim.metric.as_str()) == (case, metric)
                    && aim.contestant == ours.name()
                    && aim.wanted.contains(wanted)
            };
            aims.iter().find(is_meant).and_then(|aim| aim.reached)
        };
        let (yes, no) = (Some(Reached::Reached), Some(Reached::Missed));
        assert_eq!(reached("unshaped", AUTO, GOODPUT, "not worse than none"), yes);
        assert_eq!(reached("unshaped", AUTO, CPU_TIME, "not worse than none"), no);
        assert_eq!(reached("unshaped", AUTO, GOODPUT, "better than least-loaded"), yes);
        assert_eq!(reached("unshaped", AUTO, CPU_TIME, "better than least-loaded"), no);
        assert_eq!(reached("unshaped", RUNNER, GOODPUT, "times dedicated:0"), no);
        // Where the link is the bound, only losses count; what takes no part is compared with nothing.
        assert_eq!(reached("1 Gb/s", AUTO, GOODPUT, "not worse than none"), yes);
        assert_eq!(reached("1 Gb/s", AUTO, GOODPUT, "better"), None);
        assert_eq!(reached("1 Gb/s", RUNNER, GOODPUT, "times dedicated:0"), None);
        assert_eq!(aims.len(), 5 + 2, "{aims:?}");
    }

    /// The rows of contestants with so many overtaken segments of 1,000, and whether `sais` steers.
    fn packet_rows(contestants: &[(&str, f64, bool)]) -> Vec<Row> {
        let rows_of =
            |(number, (contestant, disordered, is_steered)): (usize, &(&str, f64, bool))| {
                let contestants = vec![(*contestant).to_owned()];
                let name = number.to_string();
                let mut record = Record::new(&Case { name, contestants, ..Case::default() });
                let mut sample = Sample::new([(DISORDERED, *disordered), (SEGMENTS, 1000.0)]);
                sample.set(STEERS, is_steered.then_some(1.0));
                record.lines[0].rounds = vec![Some(sample)];
                rows(&METRICS, &[record], &Plan::fixed(1))
            };
        contestants.iter().enumerate().flat_map(rows_of).collect()
    }

    #[test]
    fn overtaken_segments_are_added_over_all_runs_and_cases() {
        let mut contestants =
            vec![("none", 0.0, false), ("runner", 0.0, true), ("auto", 0.0, true)];
        let reached = |contestants: &[(&str, f64, bool)]| {
            disorder(&packet_rows(contestants)).and_then(|(aim, _)| aim.reached)
        };
        assert_eq!(reached(&contestants), Some(Reached::Reached));
        // What is not ours does not matter.
        contestants.push(("round robin", 70.0, false));
        assert_eq!(reached(&contestants), Some(Reached::Reached));
        contestants.push(("issuer, hint", 1.0, true));
        assert_eq!(reached(&contestants), Some(Reached::Missed));
        contestants.push(("none", 1.0, false));
        assert_eq!(reached(&contestants), Some(Reached::Reached), "1 of 3000 against 1 of 2000");
        contestants.push(("auto", 9.0, true));
        assert_eq!(reached(&contestants), Some(Reached::Undecided));
        let (_, sentence) = disorder(&packet_rows(&contestants)).unwrap();
        assert!(sentence.contains("10 of 4000 where `sais` steers, 1 of 2000"), "{sentence}");
        assert_eq!(reached(&contestants[..1]), None, "sais steers in no run");
    }

    #[test]
    fn each_figure_has_a_name_of_its_own() {
        let mut names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
    }
}
