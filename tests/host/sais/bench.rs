//! `evenkeel bench sais` works, and leaves nothing.

use serde_json::Value;

use super::{can_run, threads};
use crate::support::*;

#[test]
fn the_quick_form_measures_every_contestant_and_leaves_nothing() {
    let Some(_) = can_run("the_quick_form_measures") else { return };
    let host = Host::alone();
    let flow_table = "/proc/sys/net/core/rps_sock_flow_entries";
    let before = std::fs::read_to_string(flow_table).unwrap();
    let path = host.path("sais.json");
    // Real programs take part where they were fetched.
    let parts = ["--parts", "memory,network"];
    let words =
        [&["bench", "sais", "--quick", "--json", path.to_str().unwrap()], &parts[..]].concat();
    let run = output(&mut host.evenkeel(words));
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
        // Auto mostly has no reason to steer.
        if !contestant.starts_with("auto") {
            assert_eq!(traffic["home_pct"].is_number(), is_steered, "{row}");
            assert_eq!(traffic["hinted_pct"].is_number(), contestant.ends_with("hint"), "{row}");
        }
    }
    let aims = report["aims"].as_array().unwrap();
    let is_about = |what: &str| aims.iter().any(|aim| aim["what"].as_str().unwrap().contains(what));
    for what in [
        "si-sais against si-irqbalance",
        "auto against none",
        "runner against dedicated:0",
        "who is pinned",
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
    wait_for("the steering threads to end", || threads().is_empty());
}

#[test]
fn what_the_model_needs_is_measured() {
    let Some(_) = can_run("what_the_model_needs") else { return };
    let host = Host::new();
    let path = host.path("pm.json");
    let words = ["bench", "sais", "--measure-pm", "--json", path.to_str().unwrap()];
    let run = output(&mut host.evenkeel(words));
    assert!(run.status.success(), "{run:?}");
    assert!(text(&run.stdout).starts_with("A strip of 64 KiB: P = "), "{run:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(report["strip_times"]["process_us"].as_f64().unwrap() > 0.0);
    assert_eq!(report["rows"].as_array().unwrap().len(), 0);
}
