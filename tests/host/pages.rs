//! The page of a benchmark for a browser, made of a report that is there: nothing is measured. And the
//! names of the pictures that scripts/screenshots draws of such pages: no browser is needed for them.

use std::process::Command;

use serde_json::json;

use crate::html::checked_page;
use crate::support::*;

#[test]
fn a_report_of_a_benchmark_is_a_page_with_charts_machine_and_command() {
    let host = Host::new();
    let row = |program: &str, contestant: &str, seconds: f64| {
        json!({
            "case": "softirq", "program": program, "metric": "time", "contestant": contestant,
            "median": seconds, "ci95": [seconds - 0.1, seconds + 0.1], "foreign_pct": 0.5, "runs": 7,
        })
    };
    let judged = |contestant: &str, ratio: f64, verdict: &str| {
        let mut row = row("static_loop", contestant, 3.0 / ratio);
        row["against"] = "default".into();
        row["ratio"] = ratio.into();
        row["ratio_ci95"] = json!([ratio - 0.1, ratio + 0.1]);
        row["verdict"] = verdict.into();
        row
    };
    let report = json!({
        "experiment": "capability",
        "command": "evenkeel-lab bench capability --html old.html",
        "commit": "0123abc",
        "machine": {"model": "a <processor>", "cpus": 2, "kernel": "6.18", "a note": "its text"},
        "said": ["fast-only & others take no part"],
        "aims": [
            {"case": "softirq", "program": "static_loop", "metric": "time", "contestant": "lag",
             "wanted": ">= 1.10 times default", "found": 1.3, "ci95": [1.2, 1.4],
             "verdict": "better", "reached": "reached"},
        ],
        "rows": [
            row("static_loop", "default", 3.0),
            judged("lag", 1.3, "better"),
            judged("pinned", 0.8, "worse"),
            judged("default again", 1.01, "undecided"),
            // Nothing to compare with: the figures themselves are shown.
            row("ep", "default", 2.0),
            row("ep", "lag", 1.5),
        ],
        "sections": [{"title": "Costs", "items": ["`lag` at rest: 0.05 %"]}],
    });
    let (json, page) = (host.path("report.json"), host.path("page.html"));
    std::fs::write(&json, report.to_string()).unwrap();
    let [json, page] = [json, page].map(|path| path.to_str().unwrap().to_owned());
    let words = ["bench", "capability", "--from", &json, "--html", &page];
    let run = output(&mut host.evenkeel_lab(words));
    assert!(run.status.success(), "{run:?}");
    let text = checked_page(page.as_ref());
    for part in [
        "softirq, static_loop: how many times as good as default",
        "1.30x better",
        "0.80x worse",
        "1.01x undecided",
        "softirq, ep: time",
        "1.500 s",
        "&gt;= 1.10 times default",
        "<td class=\"good\">reached</td>",
        "fast-only &amp; others take no part",
        "<code>lag</code> at rest: 0.05 %",
        "a &lt;processor&gt;, 2 CPUs, Linux 6.18",
        "a note: its text",
        "Measured at commit 0123abc.",
        &format!("<pre>evenkeel-lab bench capability --html {page}</pre>"),
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

/// The same report before and after a change has the same name in two folders.
#[test]
fn pictures_of_reports_with_equal_names_have_names_of_their_own() {
    let source = "import pathlib, runpy, sys\n\
        names = runpy.run_path(sys.argv[1])['picture_names']\n\
        print(*names([pathlib.Path(name) for name in sys.argv[2:]]).values())\n";
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/screenshots");
    let mut python = Command::new("python3");
    python.args(["-c", source, script]);
    python.args(["old/002.html", "new/002.html", "002-2.html", "compare.html"]);
    let Ok(run) = python.output() else {
        let test = "pictures_of_reports_with_equal_names_have_names_of_their_own";
        evenkeel_skip::skip(test, "there is no python3");
        return;
    };
    assert_eq!(text(&run.stdout), "002 002-2 002-2-2 compare\n", "{run:?}");
}
