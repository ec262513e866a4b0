//! The short forms of benchmarks that end with a table of what was wanted: `evenkeel-lab bench large`,
//! `bench waiting` and `bench startup`.

use evenkeel_cbinfo::{Cbinfo, Error};
use serde_json::Value;

use crate::html::checked_page;
use crate::schema::check;
use crate::support::*;

/// The figures of a short form, after a look at its page and a check by their schema.
fn quick(host: &Host, name: &str, on_page: &str) -> Value {
    let file = |end: &str| host.path(&format!("{name}.{end}")).to_str().unwrap().to_owned();
    let (json, html) = (file("json"), file("html"));
    let words = ["bench", name, "--quick", "--json", &json, "--html", &html];
    let done = output(&mut host.evenkeel_lab(words));
    assert_eq!(done.status.code(), Some(0), "{}{}", text(&done.stdout), text(&done.stderr));
    assert!(text(&done.stdout).contains("wanted"), "{}", text(&done.stdout));
    assert!(checked_page(html.as_ref()).contains(on_page));
    let report = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    check(&format!("bench-{name}"), &report);
    report
}

/// Does for a moment what `bench waiting` does.
fn can_see_waiting() -> Result<(), Error> {
    let mut cbinfo = Cbinfo::open(&[])?;
    let waiting = cbinfo.waiting()?;
    waiting.barriers().open_window()?;
    waiting.barriers().close_window()?;
    waiting.start_sampling(&[all().iter().next().unwrap()], 100)?;
    waiting.stop_sampling();
    Ok(())
}

/// What became of each goal.
fn reached(report: &Value) -> Vec<&str> {
    let wanted = report["wanted"].as_array().unwrap();
    wanted.iter().map(|row| row["reached"].as_str().unwrap()).collect()
}

#[test]
#[ignore = "calculates for some seconds: make bench-test"]
fn what_large_machines_reach_is_judged() {
    let report = quick(&Host::new(), "large", "least of the bound");
    let phases: Vec<_> =
        report["rows"].as_array().unwrap().iter().map(|row| &row["phase_ms"]).collect();
    assert_eq!(phases, [1, 10, 100, 1_000]);
    // Programs so short decide nothing: the figures themselves are checked where they are calculated.
    assert_eq!(reached(&report), ["undecided"; 3], "{report}");
    assert_eq!(report["lasts_ms"], 500, "{report}");
}

#[test]
#[ignore = "measures for some seconds: make bench-test"]
fn what_seeing_waiting_costs_is_judged() {
    const TEST: &str = "what_seeing_waiting_costs_is_judged";
    if !needs_root(TEST) {
        return;
    }
    // Root of a container may have no BPF, or no clock that interrupts a CPU.
    if let Err(why) = can_see_waiting() {
        let is_refused = matches!(why, Error::Unsupported(_)) || why.is_privilege();
        assert!(is_refused, "{why}");
        return evenkeel_skip::skip(TEST, why);
    }
    let report = quick(&Host::alone(), "waiting", "a wake-up at a barrier, in ns");
    // So few pairs decide nothing.
    assert_eq!(reached(&report), ["undecided"; 3], "{report}");
    for figure in ["heartbeat_ns", "call_more_ns"] {
        assert!(report[figure]["median"].is_number(), "{report}");
    }
}

#[test]
#[ignore = "measures for some seconds: make bench-test"]
fn what_run_adds_is_judged() {
    let report = quick(&Host::alone(), "startup", "a barrier every 2 ms");
    assert_eq!(reached(&report), ["undecided"; 2], "{report}");
    assert_eq!(report["rows"].as_array().unwrap().len(), 6);
}
