//! The figures as OpenMetrics, under the names, kinds and labels of [`METRICS`].

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric as Registered, Registry, Unit};

use super::known_metrics::{MAX_PACES, MAX_RULES, MAX_RUN_PACES, METRICS};
use super::statistics::Statistics;

/// Metrics on their way into the registry.
struct Exported {
    registry: Registry,
}

type Labels = Vec<(&'static str, String)>;

impl Exported {
    /// Registers a metric under the name and the help that it has in [`METRICS`].
    fn add(&mut self, name: &str, values: impl Registered) {
        let help = METRICS.iter().find(|metric| metric.name == name).map_or("", |found| found.help);
        // The registry adds the prefix, the unit and the end that the kind asks for.
        let base = name.trim_start_matches("evenkeel_");
        let base = base.trim_end_matches("_total").trim_end_matches("_info");
        match base.strip_suffix("_seconds") {
            Some(base) => self.registry.register_with_unit(base, help, Unit::Seconds, values),
            None => self.registry.register(base, help, values),
        }
    }

    fn gauge(&mut self, name: &str, value: u64) {
        let metric: Gauge = Gauge::default();
        metric.set(i64::try_from(value).unwrap_or(i64::MAX));
        self.add(name, metric);
    }

    fn counter(&mut self, name: &str, value: u64) {
        let metric: Counter = Counter::default();
        metric.inc_by(value);
        self.add(name, metric);
    }

    /// Counters by one label.
    fn counters<'a>(
        &mut self,
        name: &str,
        label: &'static str,
        values: impl Iterator<Item = (&'a str, f64)>,
    ) {
        let family: Family<Labels, Counter<f64, AtomicU64>> = Family::default();
        for (of, value) in values {
            family.get_or_create(&vec![(label, of.to_owned())]).inc_by(value);
        }
        self.add(name, family);
    }

    /// Gauges by one label.
    fn gauges(
        &mut self,
        name: &str,
        label: &'static str,
        values: impl Iterator<Item = (String, f64)>,
    ) {
        let family: Family<Labels, Gauge<f64, AtomicU64>> = Family::default();
        for (of, value) in values {
            family.get_or_create(&vec![(label, of)]).set(value);
        }
        self.add(name, family);
    }
}

impl Statistics {
    /// The figures in the OpenMetrics 1.0 text format: at most [`super::MAX_SERIES`] series.
    pub fn to_openmetrics(&self) -> String {
        let mut exported = Exported { registry: Registry::with_prefix("evenkeel") };
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        exported.add("evenkeel_build_info", Info::new(version));
        for (name, value) in [
            ("evenkeel_programs", self.programs),
            ("evenkeel_observed", self.observed),
            ("evenkeel_tasks", self.tasks),
            ("evenkeel_cpus", self.cpus),
            ("evenkeel_exact", self.exact),
            ("evenkeel_moving", self.moving),
        ] {
            exported.gauge(name, value);
        }
        for (name, value) in [
            ("evenkeel_intervals_total", self.intervals),
            ("evenkeel_yielded_total", self.yielded),
            ("evenkeel_refused_total", self.refused),
        ] {
            exported.counter(name, value);
        }
        let moves = self.moves.iter().take(MAX_RULES).map(|(rule, count)| (*rule, *count as f64));
        exported.counters("evenkeel_moves_total", "rule", moves);
        let gains = self.gains.iter().map(|(proven, count)| ((*proven).to_owned(), *count as f64));
        exported.gauges("evenkeel_gains", "proven", gains);
        let paces = self.pace_milli.iter().take(MAX_PACES);
        let paces = paces.map(|(program, milli)| (program.to_string(), *milli as f64 / 1000.0));
        exported.gauges("evenkeel_pace_ratio", "program", paces);
        self.export_runs(&mut exported);

        let seconds = |us: u64| us as f64 / 1e6;
        let own: Counter<f64, AtomicU64> = Counter::default();
        own.inc_by(seconds(self.own_cpu_us));
        exported.add("evenkeel_own_cpu_seconds_total", own);
        let lost = self.all_cpus_lost_us.iter().map(|(cause, us)| (*cause, seconds(*us)));
        exported.counters("evenkeel_lost_seconds_total", "cause", lost);
        let worst = self.worst_cpu_lost_milli.iter();
        let worst = worst.map(|(cause, milli)| ((*cause).to_owned(), *milli as f64 / 1000.0));
        exported.gauges("evenkeel_worst_cpu_lost_ratio", "cause", worst);

        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &exported.registry);
        text
    }

    /// The programs that other processes balance.
    fn export_runs(&self, exported: &mut Exported) {
        exported.gauge("evenkeel_run_programs", self.run_programs);
        let gains = self.run_gains.iter();
        let gains = gains.map(|(proven, count)| ((*proven).to_owned(), *count as f64));
        exported.gauges("evenkeel_run_gains", "proven", gains);
        let family: Family<Labels, Gauge<f64, AtomicU64>> = Family::default();
        for (program, run) in self.run_paces.iter().take(MAX_RUN_PACES) {
            let labels = vec![
                ("program", program.to_string()),
                ("user", run.user.to_string()),
                ("step", run.step.clone()),
            ];
            family.get_or_create(&labels).set(run.pace_milli as f64 / 1000.0);
        }
        exported.add("evenkeel_run_pace_ratio", family);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::daemon::known_metrics::{Kind, MAX_SERIES, Metric};
    use crate::daemon::lost::CAUSES;
    use crate::daemon::statistics::RunPace;

    /// Figures of a machine with this many programs and CPUs, in which each figure has a value.
    fn full(programs: u32, cpus: u32) -> Statistics {
        let causes: BTreeMap<&'static str, u64> = CAUSES.into_iter().zip(1..).collect();
        // No machine has so many rules.
        const RULES: [&str; 40] = [
            "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q",
            "r", "s", "t", "u", "v", "w", "x", "y", "z", "aa", "ab", "ac", "ad", "ae", "af", "ag",
            "ah", "ai", "aj", "ak", "al", "am", "an",
        ];
        let proven = ["nothing", "unverified", "measuring", "gains", "withdrawn"];
        let run = RunPace { user: 1000, step: "77.0".to_owned(), pace_milli: 1_330 };
        Statistics {
            programs: 2,
            moves: RULES.map(|rule| (rule, 3)).into(),
            gains: proven.map(|proven| (proven, 1)).into(),
            pace_milli: (1..=programs).map(|program| (program, 1_220)).collect(),
            run_programs: 4,
            run_gains: proven.map(|proven| (proven, 2)).into(),
            run_paces: (1..=programs).map(|program| (program, run.clone())).collect(),
            own_cpu_us: 1_500_000,
            lost_us: (0..cpus).map(|cpu| (cpu, causes.clone())).collect(),
            all_cpus_lost_us: causes.clone(),
            worst_cpu_lost_milli: causes,
            ..Statistics::default()
        }
    }

    /// The series of a text: name and labels.
    fn series(text: &str) -> Vec<(&str, Vec<&str>)> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| {
                let (series, _) = line.rsplit_once(' ').unwrap();
                let (name, labels) = series.split_once('{').unwrap_or((series, ""));
                let labels =
                    labels.trim_end_matches('}').split(',').filter(|part| !part.is_empty());
                (name, labels.map(|label| label.split_once('=').unwrap().0).collect())
            })
            .collect()
    }

    #[test]
    fn every_field_is_described_and_exported() {
        let statistics = Statistics {
            moves: [("behind", 3)].into(),
            pace_milli: [(7, 1_220)].into(),
            all_cpus_lost_us: [("softirq", 750_000)].into(),
            worst_cpu_lost_milli: [("softirq", 250)].into(),
            run_paces: full(1, 0).run_paces,
            ..full(0, 0)
        };
        let value = serde_json::to_value(&statistics).unwrap();
        let fields: BTreeSet<&str> =
            value.as_object().unwrap().keys().map(String::as_str).collect();
        let described = Statistics::meta()["evenkeel"]["fields"].clone();
        let described = described.as_object().unwrap();
        assert_eq!(fields, described.keys().map(String::as_str).collect::<BTreeSet<_>>());
        assert!(METRICS.iter().all(|metric| !metric.help.is_empty()));
        let text = statistics.to_openmetrics();
        for line in [
            "evenkeel_programs 2",
            "evenkeel_moves_total{rule=\"behind\"} 3.0",
            "evenkeel_gains{proven=\"withdrawn\"} 1.0",
            "evenkeel_pace_ratio{program=\"7\"} 1.22",
            "evenkeel_run_programs 4",
            "evenkeel_run_gains{proven=\"gains\"} 2.0",
            "evenkeel_run_pace_ratio{program=\"1\",user=\"1000\",step=\"77.0\"} 1.33",
            "evenkeel_own_cpu_seconds_total 1.5",
            "evenkeel_lost_seconds_total{cause=\"softirq\"} 0.75",
            "evenkeel_worst_cpu_lost_ratio{cause=\"softirq\"} 0.25",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn the_metrics_have_the_names_kinds_and_labels_of_the_table() {
        let text = full(3, 2).to_openmetrics();
        let found: BTreeSet<(&str, Vec<&str>)> = series(&text).into_iter().collect();
        let known: BTreeSet<(&str, Vec<&str>)> =
            METRICS.iter().map(|metric| (metric.name, metric.labels.to_vec())).collect();
        assert_eq!(found, known);
        for Metric { name, kind, .. } in METRICS {
            let (family, kind) = match kind {
                Kind::Gauge => (*name, "gauge"),
                Kind::Counter => (name.trim_end_matches("_total"), "counter"),
                Kind::Info => (name.trim_end_matches("_info"), "info"),
            };
            let line = format!("# TYPE {family} {kind}");
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_node_has_no_more_series_than_it_may_have() {
        let most: usize = METRICS.iter().map(|metric| metric.most_series).sum();
        assert!(most <= MAX_SERIES, "{most}");
        let text = full(5_000, 1_024).to_openmetrics();
        let series = series(&text);
        assert!(series.len() <= MAX_SERIES, "{}", series.len());
        for metric in METRICS {
            let of = series.iter().filter(|(name, _)| *name == metric.name).count();
            assert!(of <= metric.most_series, "{}: {of}", metric.name);
        }
        // Those that have been there the longest, so that a series stays while its program does.
        assert!(text.contains("{program=\"64\"}") && !text.contains("{program=\"65\"}"), "{text}");
    }
}
