//! The whole experiment, small: a hog (which needs no privilege), two contestants, a loop of a
//! tenth of a second. What is tested is that it comes to an end with the agreed JSON and a page;
//! figures mean nothing at this size.

#![allow(clippy::unwrap_used)]

use evenkeel_bench::capability::{CapabilityReport, Filter, Options, run};

#[test]
fn a_small_experiment_from_its_noise_to_its_page() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| Some(directory.path().join(name));
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
    let options = Options {
        // No contestant here needs evenkeel itself.
        executable: "/bin/false".into(),
        filter: Filter {
            cases: names(&["hog"]),
            programs: names(&["static_loop"]),
            contestants: names(&["pinned"]),
        },
        runs: Some(1),
        max_runs: Some(1),
        loop_s: Some(0.1),
        json: path("rows.json"),
        markdown: path("page.md"),
        command: "evenkeel-lab bench capability".into(),
        ..Options::default()
    };
    assert_eq!(run(&options).unwrap(), 0);
    let text = std::fs::read_to_string(path("rows.json").unwrap()).unwrap();
    let report: CapabilityReport = serde_json::from_str(&text).unwrap();
    let rows = &report.report.rows;
    if rows[0].case == "none" {
        eprintln!("SKIPPED: {:?}", report.said);
        return;
    }
    let named: Vec<&str> = rows.iter().map(|row| row.contestant.as_str()).collect();
    assert_eq!(named, ["default", "pinned"]);
    for row in rows {
        assert_eq!((row.case.as_str(), row.runs, row.failed.as_ref()), ("hog", 1, None));
        assert!(row.median_s.unwrap() > 0.0 && row.reference_s.unwrap() > 0.0);
        // Half of a CPU's time or more is the hog's.
        assert!(row.bound.unwrap() > 1.1 && row.average.unwrap() < 1.0, "{row:?}");
        assert!(row.efficiency.unwrap() > 0.0);
    }
    let page = std::fs::read_to_string(path("page.md").unwrap()).unwrap();
    assert!(page.contains("hog's share beside the program"), "{page}");

    // The page can be had from the JSON again, without measuring.
    let again =
        Options { from: path("rows.json"), markdown: path("again.md"), ..Options::default() };
    assert_eq!(run(&again).unwrap(), 0);
    assert_eq!(std::fs::read_to_string(path("again.md").unwrap()).unwrap(), page);
}
