//! What commands print as JSON is what their schemas say.

use std::time::Duration;

use evenkeel_lab::schemas::all;
use serde_json::Value;

use crate::report::json;
use crate::schema::{check, check_by};
use crate::support::*;
use crate::worker::Worker;

/// Longer than any of the benchmarks of costs takes.
const BENCH_PATIENCE: Duration = Duration::from_secs(600);

/// What `evenkeel WORDS` prints.
fn printed(host: &Host, words: &[&str]) -> Value {
    let done = output(&mut host.evenkeel(words));
    serde_json::from_slice(&done.stdout).unwrap_or_else(|why| panic!("{words:?}: {why}: {done:?}"))
}

#[test]
fn a_value_that_is_not_as_its_schema_says_is_found() {
    let wrong = std::panic::catch_unwind(|| check("undo", &serde_json::json!({"restored": 1})));
    assert!(wrong.is_err());
    // A name that the schema does not have, where it allows no others.
    let schema = serde_json::json!({
        "type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false,
    });
    assert_eq!(check_by(&schema, &serde_json::json!({"a": 1})), Ok(()));
    let wrong = check_by(&schema, &serde_json::json!({"a": 1, "b": 2})).unwrap_err();
    assert!(wrong.ends_with("does not keep additionalProperties false"), "{wrong}");
    // Others may be of one kind.
    let schema = serde_json::json!({
        "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"},
    });
    assert_eq!(check_by(&schema, &serde_json::json!({"a": 1, "b": "x"})), Ok(()));
    assert!(check_by(&schema, &serde_json::json!({"a": 1, "b": 2})).is_err());
    let schema = serde_json::json!({
        "patternProperties": {"^\\d+$": {"type": "integer"}}, "additionalProperties": false,
    });
    assert_eq!(check_by(&schema, &serde_json::json!({"7": 1})), Ok(()));
    assert!(check_by(&schema, &serde_json::json!({"b": 1})).is_err());
}

#[test]
fn runs_print_what_their_schemas_say() {
    let Some(_) = two_cpus("runs_print_what_their_schemas_say") else { return };
    let host = Host::new();
    let path = host.path("json");
    // One that is over before it is observed, and one that is balanced.
    let flags = ["-q", "--json", path.to_str().unwrap()];
    assert!(output(&mut host.run(&flags, &["true"])).status.success());
    check("run", &json(&path));
    let worker = Worker::start(&host, &[&flags[..], &EAGER[..]].concat());
    worker.wait_moved(&host, 2);
    host.wait_intervals(5);
    for command in ["status", "explain"] {
        let shown = printed(&host, &[command, "--json"]);
        let programs = shown["programs"].as_array().unwrap();
        assert_eq!(programs.len(), 1);
        assert!(!programs[0]["decisions"].as_array().unwrap().is_empty());
        check(command, &shown);
    }
    let screen = printed(&host, &["top", "--json", "--interval", "100ms"]);
    assert_eq!(screen["programs"].as_array().unwrap().len(), 1);
    assert!(screen["cpus"]["figures"]["cpus"].as_array().unwrap().len() > 1);
    check("top", &screen);
    assert!(worker.end().success());
    check("run", &json(&path));
    assert!(json(&path)["moves"].as_u64() > Some(0));
    // What a killed one left.
    let mut worker = Worker::start(&host, &[&flags[..], &EAGER[..], &["--no-supervisor"]].concat());
    worker.wait_moved(&host, 1);
    worker.kill_evenkeel();
    // This removes its status file.
    assert!(host.status().is_empty());
    let report = host.undo();
    check("undo", &report);
    worker.let_end();
}

#[test]
fn commands_that_look_print_what_their_schemas_say() {
    let host = Host::new();
    check("doctor", &printed(&host, &["doctor", "--watch", "10ms", "--json"]));
    check("irq-status", &printed(&host, &["irq", "status", "--watch", "10ms", "--json"]));
    check("irq-plan", &printed(&host, &["irq", "plan", "--watch", "10ms", "--json"]));
    let path = host.path("config.toml");
    std::fs::write(&path, "[run]\ncpus = \"0\"\n[zone]\nbalance_level = 2\n").unwrap();
    let shown = printed(&host, &["config", "show", "--json", "--config", path.to_str().unwrap()]);
    assert_eq!(shown["values"].as_array().unwrap().len(), 2);
    check("config-show", &shown);
    check("sais-status", &printed(&host, &["sais", "status", "--json"]));
    check("sais-explain", &printed(&host, &["sais", "explain", "--json"]));
    let times = ["--cores", "4", "--servers", "8", "--process-us", "5", "--migrate-us", "9"];
    check("sais-model", &printed(&host, &[&["sais", "model", "--json"], &times[..]].concat()));
    let path = host.path("json");
    let words = ["compare", "--rounds", "1", "--json", path.to_str().unwrap(), "--", "true"];
    let done = output(&mut host.evenkeel(words));
    check(
        "compare",
        &serde_json::from_slice(
            &std::fs::read(&path).unwrap_or_else(|why| panic!("{why}: {done:?}")),
        )
        .unwrap(),
    );
}

#[test]
fn noise_writes_what_its_schema_says() {
    let host = Host::alone();
    let path = host.path("json");
    let words = ["noise", "hog", "--limit", "100ms", "--json", path.to_str().unwrap()];
    let done = output(&mut host.evenkeel_lab(words));
    assert!(done.status.success(), "{done:?}");
    check("noise", &json(&path));
}

#[test]
#[ignore = "measures for some minutes: make bench-test"]
fn benchmarks_of_costs_write_what_their_schemas_say() {
    let host = Host::alone();
    let path = host.path("json");
    let mut names = vec![&["refill", "--quick"][..], &["startup"], &["daemon"], &["plan"]];
    // The windows and samples are of cbinfo.
    names.extend(evenkeel_cbinfo::support().is_ok().then_some(&["waiting"][..]));
    for words in names {
        let words = [&["bench"], words, &["--json", path.to_str().unwrap()]].concat();
        let done = output_within(&mut host.evenkeel_lab(&words), &[], BENCH_PATIENCE);
        assert!(done.status.success(), "{words:?}: {done:?}");
        check(&format!("bench-{}", words[1]), &json(&path));
    }
}

#[test]
fn the_schemas_are_written_by_a_command() {
    let host = Host::new();
    let directory = host.path("schemas");
    let words = ["generate", "schemas", directory.to_str().unwrap()];
    assert!(output(&mut host.evenkeel_lab(words)).status.success());
    for known in all() {
        assert_eq!(json(&directory.join(known.file_name())), known.schema());
    }
    let moved = output(&mut host.evenkeel(words));
    assert_eq!(moved.status.code(), Some(2));
    let error = String::from_utf8_lossy(&moved.stderr);
    assert!(error.contains("evenkeel-lab generate schemas"), "{error}");
}
