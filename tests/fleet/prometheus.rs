//! The alerts, the example of a configuration and the queries of the dashboard, read by Prometheus' own
//! tool. `scripts/setup fleet` installs it; without it these tests are skipped.

use std::path::Path;
use std::process::{Command, Output};

use crate::project;
use crate::queries::panel_queries;

/// Runs promtool; nothing, with a skip, where there is none.
fn promtool(test: &str, words: &[&str], folder: &Path) -> Option<Output> {
    match Command::new("promtool").args(words).current_dir(folder).output() {
        Ok(output) => Some(output),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {
            evenkeel_skip::skip(test, "there is no promtool: scripts/setup fleet installs it");
            None
        }
        Err(why) => panic!("promtool: {why}"),
    }
}

fn succeeds(output: &Output) {
    let [said, why] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{said}{why}");
}

#[test]
fn each_alert_fires_where_it_should_and_nowhere_else() {
    let folder = project("packaging/fleet");
    let words = ["test", "rules", "alerts-test.yml"];
    if let Some(output) =
        promtool("each_alert_fires_where_it_should_and_nowhere_else", &words, &folder)
    {
        succeeds(&output);
    }
}

#[test]
fn prometheus_reads_the_example_of_its_configuration() {
    let folder = project("packaging/fleet");
    let words = ["check", "config", "prometheus.yml"];
    if let Some(output) =
        promtool("prometheus_reads_the_example_of_its_configuration", &words, &folder)
    {
        succeeds(&output);
        assert!(String::from_utf8_lossy(&output.stdout).contains("8 rules"), "{output:?}");
    }
}

/// As rules, since the tool reads queries only there.
#[test]
fn prometheus_understands_the_queries_of_the_dashboard() {
    let folder = tempfile::tempdir().unwrap();
    let rules: Vec<_> = (0..)
        .zip(panel_queries())
        .map(
            |(number, expr)| serde_json::json!({"record": format!("panel:{number}"), "expr": expr}),
        )
        .collect();
    let file = serde_json::json!({"groups": [{"name": "panels", "rules": rules}]});
    std::fs::write(folder.path().join("rules.yml"), file.to_string()).unwrap();
    let words = ["check", "rules", "rules.yml"];
    let test = "prometheus_understands_the_queries_of_the_dashboard";
    if let Some(output) = promtool(test, &words, folder.path()) {
        succeeds(&output);
    }
}
