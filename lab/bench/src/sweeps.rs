//! `evenkeel-lab sim compare`: two sweeps, run by run with the same workload, machine and seed.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_experiment::simulator::Value;
use evenkeel_experiment::{Case, Experiment, Kind, Metric, Plan, Record, Report, Sample};
use evenkeel_sim::Row;

/// The figures by which runs are compared.
pub static FIGURES: [(Metric, Value); 4] = [
    (Metric::new("turn-around", Kind::Time, "the mean turn-around time"), |run| {
        run.tat.mean_ms / 1e3
    }),
    (Metric::new("response", Kind::Time, "the 99th percentile"), |run| run.response.p99_ms / 1e3),
    (Metric::new("makespan", Kind::Time, "until all tasks have ended"), |run| {
        run.makespan_ms / 1e3
    }),
    (Metric::new("slowdown", Kind::Factor, "the mean slowdown"), |run| run.slowdown_mean),
];

/// The experiment of one of these figures.
pub fn experiment(figure: &'static (Metric, Value)) -> Experiment<()> {
    Experiment {
        name: "sim compare",
        title: "",
        intro: "",
        case_word: "machine",
        contestants: Vec::new(),
        metrics: std::slice::from_ref(&figure.0),
        aims: Vec::new(),
        course: "",
        reading: "",
        lists: Vec::new(),
    }
}

/// The figure of a sweep's runs, by machine and workload, by scheduler and slice, by seed.
type Series = BTreeMap<(String, String), BTreeMap<String, BTreeMap<u64, f64>>>;

fn series(rows: &[Row], value: Value) -> Series {
    let mut series = Series::new();
    // A run that ended early does not show how long it takes.
    for Row { slice_us, report, .. } in rows.iter().filter(|row| row.report.is_good()) {
        let slice = if *slice_us > 0 { format!(" {slice_us} us") } else { String::new() };
        series
            .entry((report.machine.clone(), report.workload.clone()))
            .or_default()
            .entry(format!("{}{slice}", report.scheduler))
            .or_default()
            .insert(report.seed, value(report));
    }
    series
}

/// All that is in both sweeps, paired by seed, and judged together. A scheduler of the first sweep is
/// the baseline of all of the second; its A/A row compares the first half of its seeds with the other.
pub fn compare(before: &[Row], after: &[Row], figure: &'static (Metric, Value)) -> Report {
    let (metric, value) = figure;
    let (before, after) = (series(before, *value), series(after, *value));
    let mut records = Vec::new();
    for (place, schedulers) in &before {
        let Some(others) = after.get(place) else { continue };
        for (name, times) in schedulers {
            let after = others.keys().map(|name| format!("after: {name}"));
            let (machine, workload) = place.clone();
            let mut record = Record::new(&Case {
                name: machine,
                program: workload,
                contestants: std::iter::once(format!("before: {name}")).chain(after).collect(),
                has_second_baseline: true,
                ..Case::default()
            });
            let half = times.len() / 2;
            let again = times.keys().copied().zip(times.values().skip(times.len() - half).copied());
            let again: BTreeMap<u64, f64> = again.take(half).collect();
            let all: Vec<&BTreeMap<u64, f64>> =
                std::iter::once(times).chain(others.values()).chain([&again]).collect();
            let seeds: BTreeSet<u64> = all.iter().flat_map(|one| one.keys().copied()).collect();
            for (line, times) in record.lines.iter_mut().zip(all) {
                let sample = |seed| Some(Sample::new([(metric.name, *times.get(seed)?)]));
                line.rounds = seeds.iter().map(sample).collect();
            }
            records.push(record);
        }
    }
    Report::new(&experiment(figure), &records, &Plan::fixed(1), "")
}

#[cfg(test)]
mod tests {
    use evenkeel_keel::{Options, Slice};
    use evenkeel_machine::Machine;
    use evenkeel_sim::{Grid, Scheduler, Shard, Workers, read_rows, sweep};

    use super::*;
    use crate::stats::Verdict;

    #[test]
    fn runs_are_compared_seed_by_seed_and_the_baseline_with_itself() {
        let dir = tempfile::tempdir().unwrap();
        let rows = |name: &str, slice_us: u64| {
            let slice = Slice::from_us(slice_us).unwrap();
            let grid = Grid {
                workloads: vec!["arrivals:tasks=20,work=20ms,gap=1ms".to_owned()],
                machines: vec![Machine::preset("small").unwrap()],
                schedulers: vec![Scheduler::Keel(Options { slice, ..Options::default() })],
                aggregation: None,
                together: None,
                seeds: 1..9,
            };
            let (out, shard) = (dir.path().join(name), Shard { index: 1, of: 1 });
            sweep(&grid, shard, Workers::Threads(2), &out, |_, _| {}).unwrap();
            read_rows(&out).unwrap()
        };
        let (short, long) = (rows("short", 500), rows("long", 100_000));
        let verdicts = |before: &[Row], after: &[Row], figure: usize| {
            let report = compare(before, after, &FIGURES[figure]);
            let ratios = report.rows.iter().map(|row| (row.is_again, row.ratio, row.verdict));
            ratios.collect::<Vec<_>>()
        };
        // With long slices programs end one after the other, so the mean turn-around time is shorter.
        let found = verdicts(&short, &long, 0);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], (false, None, None));
        assert_eq!((found[1].0, found[1].2), (false, Some(Verdict::Better)));
        assert_eq!((found[2].0, found[2].2), (true, Some(Verdict::Undecided)));
        assert_ne!(found[2].1, Some(1.0), "other seeds are another workload");
        assert_eq!(verdicts(&long, &short, 0)[1].2, Some(Verdict::Worse));
        let equal = verdicts(&short, &short, 2)[1];
        assert_eq!(equal, (false, Some(1.0), Some(Verdict::Undecided)));
    }
}
