//! `evenkeel-lab bench irq`: the quick form measures, and leaves nothing behind.

use std::time::Duration;

use evenkeel_bench::irq::stage::queue_threads;
use serde_json::Value;

use crate::support::*;

/// Repeats of disturbed runs included.
const LONG: Duration = Duration::from_secs(600);

#[test]
#[ignore = "measures for more than a minute: make bench-test"]
fn the_quick_form_of_interrupts_measures_and_leaves_nothing() {
    const TEST: &str = "the_quick_form_of_interrupts_measures_and_leaves_nothing";
    if !needs_root(TEST) || two_cpus(TEST).is_none() || !needs_no_irqbalance(TEST) {
        return;
    }
    let host = Host::alone();
    let flow_table = "/proc/sys/net/core/rps_sock_flow_entries";
    let before = std::fs::read_to_string(flow_table).unwrap();
    let file = |name: &str| host.path(name).to_str().unwrap().to_owned();
    let (json, page) = (file("irq.json"), file("irq.md"));
    let mut bench = host.evenkeel_lab(["bench", "irq", "--quick", "--json", &json]);
    let run = output_within(&mut bench, &[], LONG);
    if text(&run.stderr).contains("no TCX") {
        evenkeel_skip::skip(TEST, "this kernel has no TCX (Linux 6.6)");
        return;
    }
    assert!(run.status.success(), "{run:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["failed"].as_array().unwrap().len(), 0, "{report}");
    let rows = report["rows"].as_array().unwrap();
    let of = |metric: &str| -> Vec<(&str, &Value)> {
        let rows = rows.iter().filter(|row| row["metric"] == metric);
        rows.map(|row| (row["contestant"].as_str().unwrap(), row)).collect()
    };
    let names = |metric: &str| of(metric).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let received = ["none", "rfs", "source-aware", "none again"];
    let disturbed = ["none", "level", "none again"];
    assert_eq!(names("cpu-per-gb"), received, "{rows:?}");
    assert_eq!(names("goodput"), [&received[..], &disturbed[..]].concat(), "{rows:?}");
    for metric in ["goodput", "cpu-per-gb"] {
        let is_above_0 = |row: &Value| row["median"].as_f64().unwrap() > 0.0;
        assert!(of(metric).iter().all(|(_, row)| is_above_0(row)), "{metric}: {rows:?}");
    }
    // Where the kernel places the threads of the queues, nothing need be at home.
    assert_eq!(names("at-home"), received, "{rows:?}");
    for (name, row) in of("at-home") {
        let least = if name.starts_with("none") { 0.0 } else { f64::MIN_POSITIVE };
        assert!((least..=100.0).contains(&row["median"].as_f64().unwrap()), "{row}");
    }
    for metric in ["time", "of avg(C)"] {
        assert_eq!(names(metric), disturbed, "{metric}: {rows:?}");
    }
    assert_eq!(names("moves"), ["source-aware", "level"], "only `irq run` moves: {rows:?}");
    for row in rows {
        assert_eq!(row["runs"], 2, "{row}");
    }

    let words = ["bench", "irq", "--from", &json, "--markdown", &page];
    let shown = output(&mut host.evenkeel_lab(words));
    assert!(shown.status.success(), "{shown:?}");
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["# Benchmarks: interrupts as a lever", "## Wanted", "a program beside a hot queue"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(std::fs::read_to_string(flow_table).unwrap(), before);
    wait_for("the card's threads to end", || queue_threads().unwrap().is_empty());
}
