//! Statistics of the daemon and of the time that the CPUs lost: as JSON for `scx_stats` clients, and as
//! OpenMetrics for monitoring systems.

use std::collections::BTreeMap;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use serde_json::{Value, json};

/// All figures. Counters begin at the start of the daemon.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Statistics {
    /// Joined programs now.
    pub programs: u64,
    /// Programs that a `run` without privileges balances with the daemon's figures now.
    pub observed: u64,
    /// The tasks of joined programs now.
    pub tasks: u64,
    /// Intervals that ended, over all programs.
    pub intervals: u64,
    /// Moves by the rule that decided.
    pub moves: BTreeMap<&'static str, u64>,
    /// Tasks that are no longer moved because their user set their mask.
    pub yielded: u64,
    /// Moves that the kernel or a rule refused.
    pub refused: u64,
    /// How fast each program runs with its moves, in thousandths of its pace without, where measured.
    pub pace_milli: BTreeMap<u32, u64>,
    /// CPU time of the daemon itself, in microseconds.
    pub own_cpu_us: u64,
    /// Time lost to fair-class tasks by CPU and cause, in microseconds.
    pub lost_us: BTreeMap<u32, BTreeMap<&'static str, u64>>,
}

/// Name and meaning of each field.
const FIELDS: &[(&str, &str)] = &[
    ("programs", "Programs that are balanced now"),
    ("observed", "Programs that are only observed now, for a run without privileges"),
    ("tasks", "Tasks of the programs that are balanced now"),
    ("intervals", "Balance intervals that ended"),
    ("moves", "Tasks moved, by the rule that decided"),
    ("yielded", "Tasks no longer moved because their user set their mask"),
    ("refused", "Moves that the kernel or a rule refused"),
    (
        "pace_milli",
        "Pace of each program with its moves, as a part of its pace without, where measured",
    ),
    ("own_cpu_us", "CPU time of the daemon itself, in microseconds"),
    ("lost_us", "CPU time lost to ordinary tasks by CPU and cause, in microseconds"),
];

fn help(name: &str) -> &'static str {
    FIELDS.iter().find(|(field, _)| *field == name).map_or("", |(_, help)| help)
}

impl Statistics {
    /// The answer to `stats_meta`: the fields and their meaning in the form of `scx_stats`.
    pub(crate) fn meta() -> Value {
        let fields: BTreeMap<&str, Value> = FIELDS
            .iter()
            .map(|(name, desc)| (*name, json!({"desc": desc, "datum": "u64"})))
            .collect();
        json!({"evenkeel": {"ident": "evenkeel", "top": null, "fields": fields}})
    }

    /// The figures in the OpenMetrics 1.0 text format.
    pub fn to_openmetrics(&self) -> String {
        let mut registry = Registry::with_prefix("evenkeel");
        let gauge = |registry: &mut Registry, name: &str, value: u64| {
            let metric: Gauge = Gauge::default();
            metric.set(i64::try_from(value).unwrap_or(i64::MAX));
            registry.register(name, help(name), metric);
        };
        gauge(&mut registry, "programs", self.programs);
        gauge(&mut registry, "observed", self.observed);
        gauge(&mut registry, "tasks", self.tasks);
        let counter = |registry: &mut Registry, name: &str, value: u64| {
            let metric: Counter = Counter::default();
            metric.inc_by(value);
            registry.register(name, help(name), metric);
        };
        counter(&mut registry, "intervals", self.intervals);
        counter(&mut registry, "yielded", self.yielded);
        counter(&mut registry, "refused", self.refused);

        let moves: Family<Vec<(&str, &str)>, Counter> = Family::default();
        for (rule, count) in &self.moves {
            moves.get_or_create(&vec![("rule", *rule)]).inc_by(*count);
        }
        registry.register("moves", help("moves"), moves);

        let paces: Family<Vec<(&str, String)>, Gauge<f64, std::sync::atomic::AtomicU64>> =
            Family::default();
        for (program, milli) in &self.pace_milli {
            let pace = paces.get_or_create(&vec![("program", program.to_string())]);
            pace.set(*milli as f64 / 1000.0);
        }
        registry.register("pace_ratio", help("pace_milli"), paces);

        let seconds = |us: u64| us as f64 / 1e6;
        let own: Counter<f64, std::sync::atomic::AtomicU64> = Counter::default();
        own.inc_by(seconds(self.own_cpu_us));
        registry.register_with_unit("own_cpu", "CPU time of the daemon itself", Unit::Seconds, own);
        let lost: Family<Vec<(&str, String)>, Counter<f64, std::sync::atomic::AtomicU64>> =
            Family::default();
        for (cpu, causes) in &self.lost_us {
            for (cause, us) in causes {
                let labels = vec![("cpu", cpu.to_string()), ("cause", (*cause).to_owned())];
                lost.get_or_create(&labels).inc_by(seconds(*us));
            }
        }
        let what = "CPU time lost to ordinary tasks";
        registry.register_with_unit("lost", what, Unit::Seconds, lost);

        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_described_and_exported() {
        let statistics = Statistics {
            programs: 2,
            moves: [("behind", 3)].into(),
            pace_milli: [(7, 1_220)].into(),
            own_cpu_us: 1_500_000,
            lost_us: [(1, [("softirq", 250_000)].into())].into(),
            ..Statistics::default()
        };
        let value = serde_json::to_value(&statistics).unwrap();
        let mut fields: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let mut described: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
        fields.sort_unstable();
        described.sort_unstable();
        assert_eq!(fields, described);
        let text = statistics.to_openmetrics();
        for line in [
            "evenkeel_programs 2",
            "evenkeel_moves_total{rule=\"behind\"} 3",
            "evenkeel_pace_ratio{program=\"7\"} 1.22",
            "evenkeel_own_cpu_seconds_total 1.5",
            "evenkeel_lost_seconds_total{cpu=\"1\",cause=\"softirq\"} 0.25",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
