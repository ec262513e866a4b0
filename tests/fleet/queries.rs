//! What the dashboard and the alerts ask Prometheus for: each metric is one of the product, with these
//! labels and values. That the product exports what its table of metrics says is tested beside it, and
//! by a running daemon (tests/host/metrics.rs).

use std::collections::BTreeSet;

use evenkeel_host::daemon::METRICS;
use regex::Regex;
use serde_json::Value;

use crate::text_of;

const DASHBOARD: &str = "packaging/fleet/dashboard.json";
const ALERTS: &str = "packaging/fleet/alerts.yml";
const ALERT_TESTS: &str = "packaging/fleet/alerts-test.yml";

/// Labels that Prometheus gives each series.
const GIVEN: [&str; 2] = ["instance", "job"];
/// Metrics of Prometheus itself.
const OF_PROMETHEUS: [&str; 2] = ["up", "scrape_samples_scraped"];
/// The values of labels that have few.
const VALUES: [(&str, &[&str]); 2] = [
    ("proven", &["nothing", "unverified", "measuring", "gains", "withdrawn"]),
    ("cause", &["irq", "softirq", "realtime", "steal"]),
];

/// The texts in a document under one of these names, wherever they stand.
fn texts(value: &Value, names: &[&str]) -> Vec<String> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| match value {
                Value::String(text) if names.contains(&name.as_str()) => vec![text.clone()],
                value => texts(value, names),
            })
            .collect(),
        Value::Array(values) => values.iter().flat_map(|value| texts(value, names)).collect(),
        _ => Vec::new(),
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&text_of(DASHBOARD)).unwrap()
}

fn yaml(path: &str) -> Value {
    serde_yaml_ng::from_str(&text_of(path)).unwrap_or_else(|why| panic!("{path}: {why}"))
}

/// The queries of the dashboard's panels, with values for its variables.
pub fn panel_queries() -> Vec<String> {
    let queries = texts(&dashboard(), &["expr"]).into_iter();
    queries.map(|query| query.replace("$__rate_interval", "5m").replace("$", "")).collect()
}

/// The labels that a query's metrics have.
fn labels_of(query: &str) -> BTreeSet<&'static str> {
    let metrics = METRICS.iter().filter(|metric| query.contains(metric.name));
    metrics.flat_map(|metric| metric.labels).chain(&GIVEN).copied().collect()
}

/// What is wrong with a query.
fn faults(query: &str) -> Vec<String> {
    let regex = |text: &str| Regex::new(text).unwrap();
    let mut faults = Vec::new();
    // Names are what no parenthesis follows, outside of texts and of lists of labels.
    let selector = regex(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}");
    let name = regex(r"\bevenkeel_\w+");
    let known = |name: &str| METRICS.iter().find(|metric| metric.name == name);
    for found in name.find_iter(query).filter(|found| known(found.as_str()).is_none()) {
        faults.push(format!("{} is no metric of evenkeel", found.as_str()));
    }
    let matcher = regex(r#"(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)""#);
    for found in selector.captures_iter(query) {
        let (metric, labels) = (&found[1], &found[2]);
        let own = known(metric).map_or(&[][..], |metric| metric.labels);
        if known(metric).is_none() && !OF_PROMETHEUS.contains(&metric) {
            faults.push(format!("{metric} is no metric of evenkeel"));
        }
        for label in matcher.captures_iter(labels) {
            let (name, value) = (&label[1], &label[2]);
            if !own.contains(&name) && !GIVEN.contains(&name) {
                faults.push(format!("{metric} has no label {name}"));
            }
            let values = VALUES.iter().find(|(label, _)| *label == name);
            if values.is_some_and(|(_, values)| !values.contains(&value)) {
                faults.push(format!("{name} of {metric} is never {value}"));
            }
        }
    }
    let there = labels_of(query);
    let grouping = regex(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)");
    for found in grouping.captures_iter(query) {
        let labels = found[1].split(',').map(str::trim).filter(|label| !label.is_empty());
        for label in labels.filter(|label| !there.contains(label)) {
            faults.push(format!("no metric of {query} has the label {label}"));
        }
    }
    faults
}

/// The labels that a text names, in the dashboard's way or in that of alerts.
fn labels_in(text: &str) -> Vec<String> {
    let pattern = Regex::new(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}").unwrap();
    pattern.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

#[test]
fn the_dashboard_asks_for_metrics_of_the_product() {
    let dashboard = dashboard();
    let queries = texts(&dashboard, &["expr", "query"]);
    assert!(queries.len() > 15, "{queries:?}");
    let faults: Vec<String> = queries.iter().flat_map(|query| faults(query)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let there = labels_of(target["expr"].as_str().unwrap());
            for label in labels_in(target["legendFormat"].as_str().unwrap()) {
                assert!(there.contains(label.as_str()), "{}: {label}", panel["title"]);
            }
        }
    }
}

#[test]
fn the_dashboard_shows_what_an_operator_asks_for() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    for (title, metric) in [
        ("Nodes by lost capability and cause", "evenkeel_worst_cpu_lost_ratio"),
        ("Jobs by measured gain", "evenkeel_pace_ratio"),
        ("Nodes where evenkeel withdrew", "evenkeel_gains"),
    ] {
        let panel = panels.iter().find(|panel| panel["title"] == title).expect(title);
        assert!(panel["targets"][0]["expr"].as_str().unwrap().contains(metric), "{title}");
    }
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    // No panel covers another one.
    let mut cells = BTreeSet::new();
    for panel in panels {
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{}", panel["title"]);
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(cells.insert((x, y)), "{}", panel["title"]);
            }
        }
    }
}

#[test]
fn the_alerts_ask_for_metrics_of_the_product_and_are_tested() {
    let alerts = yaml(ALERTS);
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    let tests = yaml(ALERT_TESTS);
    let tested: BTreeSet<String> = texts(&tests, &["alertname"]).into_iter().collect();
    for rule in rules {
        let (name, query) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        assert!(faults(query).is_empty(), "{name}: {:?}", faults(query));
        let there = labels_of(query);
        for text in texts(&rule["annotations"], &["summary", "description"]) {
            for label in labels_in(&text) {
                assert!(there.contains(label.as_str()), "{name}: {label}");
            }
        }
        assert!(tested.contains(name), "{name} has no test in {ALERT_TESTS}");
    }
    let faults: Vec<String> =
        texts(&tests, &["series"]).iter().flat_map(|one| faults(one)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let job = yaml("packaging/fleet/prometheus.yml");
    assert_eq!(job["scrape_configs"][0]["job_name"], "evenkeel");
    let limit = job["scrape_configs"][0]["sample_limit"].as_u64().unwrap();
    assert_eq!(limit as usize, evenkeel_host::daemon::MAX_SERIES);
}

#[test]
fn what_the_product_does_not_have_is_found() {
    for (query, fault) in [
        ("evenkeel_lost_total", "evenkeel_lost_total is no metric"),
        ("rate(evenkeel_moves[5m])", "evenkeel_moves is no metric"),
        ("node_load1{job=\"a\"}", "node_load1 is no metric"),
        ("evenkeel_gains{cause=\"irq\"}", "evenkeel_gains has no label cause"),
        ("evenkeel_gains{proven=\"lost\"}", "proven of evenkeel_gains is never lost"),
        ("sum by (rule) (evenkeel_gains)", "has the label rule"),
        ("evenkeel_programs / on (node) evenkeel_cpus", "has the label node"),
    ] {
        assert!(
            faults(query).iter().any(|found| found.contains(fault)),
            "{query}: {:?}",
            faults(query)
        );
    }
    assert!(faults("sum by (proven, instance) (evenkeel_gains{proven=\"gains\"})").is_empty());
    assert_eq!(labels_in("{{instance}}: {{ $labels.cause }} {{ $value }}"), ["instance", "cause"]);
}
