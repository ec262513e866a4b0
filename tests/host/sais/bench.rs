//! `evenkeel-lab bench sais` measures every contestant, and leaves nothing behind.

use std::process::Stdio;

use serde_json::Value;

use super::{can_run, wait_no_threads};
use crate::support::*;

#[test]
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
    // Three cases in memory, and one over the network with all contestants.
    assert_eq!(rows.len(), 3 * 2 + 13, "{rows:?}");
    for row in rows.iter().filter(|row| !row["case"].as_str().unwrap().starts_with("in memory")) {
        let traffic = &row["traffic"];
        assert!(traffic["retransmitted"].as_f64().unwrap() >= 0.0, "{row}");
        let contestant = row["contestant"].as_str().unwrap();
        let is_steered = !["none", "rps", "rfs", "round robin"].contains(&contestant);
        // Where packets were processed is the kernel's word, under every contestant.
        assert!(traffic["home_pct"].is_number(), "{row}");
        let by_core = traffic["by_core_pct"].as_object().unwrap();
        assert!(by_core.values().map(|share| share.as_f64().unwrap()).sum::<f64>() > 50.0, "{row}");
        assert_eq!(traffic["steering_pct"].is_number(), is_steered, "{row}");
        // The policy auto mostly has no reason to steer.
        if !contestant.starts_with("auto") {
            assert_eq!(traffic["steered_home_pct"].is_number(), is_steered, "{row}");
            assert_eq!(traffic["hinted_pct"].is_number(), contestant.ends_with("hint"), "{row}");
            assert!(!is_steered || traffic["steering_pct"] == 100.0, "{row}");
        }
    }
    let aims = report["aims"].as_array().unwrap();
    let is_about = |what: &str| aims.iter().any(|aim| aim["what"].as_str().unwrap().contains(what));
    for what in [
        "si-sais against si-irqbalance",
        "auto against none",
        "auto against rfs",
        "auto against least-loaded",
        "segments that others overtook",
        "runner against dedicated:0",
        "who is pinned",
        "of those sent in order",
        "after the first round trip",
    ] {
        assert!(is_about(what), "{what}: {aims:?}");
    }
    for row in rows {
        assert_eq!(row["runs"], 3, "{row}");
        assert!(row["mb_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["cpu_s_per_gb"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(std::fs::read_to_string(flow_table).unwrap(), before);
    wait_no_threads();
    let page = page(&["--from", path.to_str().unwrap()]);
    for part in ["| in memory, 1 applications | si-sais |", "| runner, hint |", "## Wanted"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

/// It is killed while it uses the kernel's own steering, which has one table for the whole machine, and
/// while parts of ours run in its namespaces.
#[test]
fn a_bench_that_is_killed_leaves_nothing() {
    let Some(_) = can_run("a_bench_that_is_killed_leaves_nothing") else { return };
    let host = Host::alone();
    let flow_table = "/proc/sys/net/core/rps_sock_flow_entries";
    let table = || std::fs::read_to_string(flow_table).unwrap();
    let before = table();
    let is_there = |field: &str| {
        let said = text(&output(&mut host.evenkeel_lab(["sais", "status", "--json"])).stdout);
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
fn what_the_model_needs_is_measured() {
    let Some(_) = can_run("what_the_model_needs_is_measured") else { return };
    let host = Host::new();
    let path = host.path("pm.json");
    let words = ["bench", "sais", "--measure-pm", "--json", path.to_str().unwrap()];
    let run = output(&mut host.evenkeel_lab(words));
    assert!(run.status.success(), "{run:?}");
    assert!(text(&run.stdout).starts_with("A strip of 64 KiB: P = "), "{run:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(report["strip_times"]["process_us"].as_f64().unwrap() > 0.0);
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
