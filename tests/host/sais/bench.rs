//! `evenkeel-lab bench sais` measures every contestant, and leaves nothing behind.

use std::process::Stdio;

use serde_json::Value;

use super::{can_run, wait_no_threads};
use crate::support::*;

#[test]
#[ignore = "measures for half a minute: make bench-test"]
fn the_quick_form_measures_every_contestant_and_leaves_nothing() {
    let Some(_) = can_run("the_quick_form_measures_every_contestant_and_leaves_nothing") else {
        return;
    };
    let host = Host::alone();
    let flow_table = "/proc/sys/net/core/rps_sock_flow_entries";
    let before = std::fs::read_to_string(flow_table).unwrap();
    let path = host.path("sais.json");
    // Real programs take part where they were fetched.
    let parts = ["--parts", "memory,network,placement"];
    let words =
        [&["bench", "sais", "--quick", "--json", path.to_str().unwrap()], &parts[..]].concat();
    let page = |words: &[&str]| {
        let page = host.path("sais.md");
        let words = [&["bench", "sais", "--markdown", page.to_str().unwrap()], words].concat();
        let run = output(&mut host.evenkeel_lab(words));
        assert!(run.status.success(), "{run:?}");
        std::fs::read_to_string(page).unwrap()
    };
    let run = output(&mut host.evenkeel_lab(words));
    assert!(run.status.success(), "{run:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let figure = |row: &Value, metric: &str| {
        let is_meant = |other: &&Value| {
            other["metric"] == metric
                && other["case"] == row["case"]
                && other["contestant"] == row["contestant"]
        };
        rows.iter().find(is_meant).map(|row| row["median"].as_f64().unwrap())
    };
    let of = |metric: &'static str| rows.iter().filter(move |row| row["metric"] == metric);
    // Three cases in memory, one over the network with all contestants, and an A/A row in each part.
    let goodput: Vec<&Value> = of("goodput").collect();
    assert_eq!(goodput.len(), 3 * 2 + 13 + 2, "{rows:?}");
    assert_eq!(goodput.iter().filter(|row| row["is_again"] == true).count(), 2, "{rows:?}");
    for row in goodput {
        assert_eq!(row["runs"], 3, "{row}");
        assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(figure(row, "cpu-per-gb").unwrap() > 0.0, "{row}");
        if row["case"].as_str().unwrap().starts_with("in memory") {
            continue;
        }
        assert!(figure(row, "resent").unwrap() >= 0.0, "{row}");
        let contestant = row["contestant"].as_str().unwrap();
        let is_steered = !["none", "none again", "rps", "rfs", "round robin"].contains(&contestant);
        // By the kernel's word, whatever steers.
        assert!(figure(row, "at-home").is_some(), "{row}");
        let by_cpu: f64 = (0..8).filter_map(|cpu| figure(row, &format!("cpu-{cpu}"))).sum();
        assert!(by_cpu > 50.0, "{row}");
        assert_eq!(figure(row, "steers").is_some(), is_steered, "{row}");
        // Auto mostly has no reason to steer.
        if !contestant.starts_with("auto") {
            assert_eq!(figure(row, "at-home-by-sais").is_some(), is_steered, "{row}");
            assert_eq!(figure(row, "hinted").is_some(), contestant.ends_with("hint"), "{row}");
        }
    }
    // In all of their runs our program was on the device.
    for row in of("steers").filter(|row| !row["contestant"].as_str().unwrap().starts_with("auto")) {
        assert_eq!(row["total"], 3.0, "{row}");
    }
    let aims = report["aims"].as_array().unwrap();
    let is_about = |contestant: &str, metric: &str, wanted: &str| {
        aims.iter().any(|aim| {
            aim["contestant"] == contestant
                && aim["metric"].as_str().unwrap().contains(metric)
                && aim["wanted"].as_str().unwrap().contains(wanted)
        })
    };
    for (contestant, metric, wanted) in [
        ("si-sais", "goodput", "times si-irqbalance"),
        ("auto", "goodput", "not worse than none"),
        ("auto", "cpu-per-gb", "not worse than rfs"),
        ("auto", "goodput", "better than least-loaded"),
        ("sais", "disordered", "as with none"),
        ("runner", "goodput", "times dedicated:0"),
        ("runner", "at-home", ">= 99.9"),
        ("runner", "disordered", "<= 0"),
        ("issuer, hint", "hinted", ">= 100"),
    ] {
        assert!(is_about(contestant, metric, wanted), "{contestant} {metric} {wanted}: {aims:?}");
    }
    assert_eq!(std::fs::read_to_string(flow_table).unwrap(), before);
    wait_no_threads();
    let page = page(&["--from", path.to_str().unwrap()]);
    for part in [
        "| in memory, 1 applications | si-sais |",
        "| runner, hint |",
        "## Wanted",
        "A strip of 64 KiB: P = ",
        "Segments that others overtook: ",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

/// It is killed while it uses the kernel's own steering, which has one table for the whole machine, and
/// while parts of ours run in its namespaces.
#[test]
#[ignore = "measures for half a minute: make bench-test"]
fn a_bench_that_is_killed_leaves_nothing() {
    let Some(_) = can_run("a_bench_that_is_killed_leaves_nothing") else { return };
    let host = Host::alone();
    let flow_table = "/proc/sys/net/core/rps_sock_flow_entries";
    let table = || std::fs::read_to_string(flow_table).unwrap();
    let before = table();
    let is_there = |field: &str| {
        let said = text(&output(&mut host.evenkeel(["sais", "status", "--json"])).stdout);
        said.contains(field)
    };
    let stages: [(&str, &dyn Fn() -> bool); 3] = [
        ("the flow table", &|| table() != before),
        ("the steering part", &|| is_there("\"device\"")),
        ("the serving part", &|| is_there("\"cgroup\"")),
    ];
    for (stage, is_reached) in stages {
        if stage == "the flow table" && before.trim() != "0" {
            println!("a_bench_that_is_killed: {flow_table} is on already: not looked at");
            continue;
        }
        let words = ["bench", "sais", "--quick", "--parts", "network"];
        let mut bench = host.evenkeel_lab(words).stdout(Stdio::null()).spawn().unwrap();
        wait_for(stage, is_reached);
        kill(bench.id() as i32, libc::SIGKILL);
        assert!(!ended(&mut bench).success());
        wait_for("the table to be as before", || table() == before);
        wait_no_threads();
        wait_for("all parts to end", || !is_there("{"));
        // `Host` checks that no journal and no process is left.
    }
}

#[test]
#[ignore = "measures for half a minute: make bench-test"]
fn what_the_model_needs_is_measured() {
    let Some(_) = can_run("what_the_model_needs_is_measured") else { return };
    let host = Host::new();
    let path = host.path("pm.json");
    let words = ["bench", "sais", "--measure-pm", "--json", path.to_str().unwrap()];
    let run = output(&mut host.evenkeel_lab(words));
    assert!(run.status.success(), "{run:?}");
    assert!(text(&run.stdout).starts_with("A strip of 64 KiB: P = "), "{run:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(report["details"]["strip_times"]["process_us"].as_f64().unwrap() > 0.0);
    assert_eq!(report["rows"].as_array().unwrap().len(), 0);

    // Where the times are not given, the model takes the measured ones.
    let model = |more: &[&str]| {
        let words =
            [&["sais", "model", "--cores", "8", "--servers", "48", "--json"], more].concat();
        let run = output(&mut host.evenkeel(words));
        assert!(run.status.success(), "{run:?}");
        let value: Value = serde_json::from_slice(&run.stdout).unwrap();
        ["process_us", "migrate_us"].map(|time| value[time].as_f64().unwrap())
    };
    let [process_us, migrate_us] = model(&[]);
    assert!(process_us > 0.0 && migrate_us >= 0.0, "{process_us} {migrate_us}");
    assert_eq!(model(&["--process-us", "2", "--migrate-us", "16"]), [2.0, 16.0]);
    assert_eq!(model(&["--migrate-us", "0.125"])[1], 0.125);
}
