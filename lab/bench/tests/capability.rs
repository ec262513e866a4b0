//! The whole experiment, small: a hog (which needs no privilege), two contestants, a loop of a
//! tenth of a second. What is tested is that it comes to an end with the agreed JSON and a page;
//! figures mean nothing at this size.

#![allow(clippy::unwrap_used)]

use evenkeel_bench::capability::{AVERAGE, Asked, BOUND, EFFICIENCY, REFERENCE, TIME, run};
use evenkeel_experiment::{Only, Options, Report};

#[test]
fn a_small_experiment_from_its_noise_to_its_page() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| Some(directory.path().join(name));
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
    let options = Options {
        only: Only {
            cases: names(&["hog"]),
            programs: names(&["static_loop"]),
            contestants: names(&["pinned"]),
            ..Only::default()
        },
        runs: Some(1),
        max_runs: Some(1),
        json: path("rows.json"),
        markdown: path("page.md"),
        command: "evenkeel-lab bench capability".into(),
        ..Options::default()
    };
    // No contestant here needs evenkeel itself.
    let asked = Asked { executable: "/bin/false".into(), loop_s: Some(0.1), options };
    assert_eq!(run(&asked).unwrap(), 0);
    let text = std::fs::read_to_string(path("rows.json").unwrap()).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    if report.rows[0].case == "none" {
        evenkeel_skip::skip(
            "a_small_experiment_from_its_noise_to_its_page",
            format!("{:?}", report.said),
        );
        return;
    }
    let times: Vec<_> = report.rows.iter().filter(|row| row.metric == TIME).collect();
    let named: Vec<&str> = times.iter().map(|row| row.contestant.as_str()).collect();
    assert_eq!(named, ["default", "pinned", "default again"]);
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    for row in times {
        assert_eq!((row.case.as_str(), row.runs), ("hog", 1));
        let figure =
            |metric| report.row(&row.case, &row.program, metric, &row.contestant).unwrap().median;
        assert!(row.median > 0.0 && figure(REFERENCE) > 0.0);
        // Half of a CPU's time or more is the hog's.
        assert!(figure(BOUND) > 1.1 && figure(AVERAGE) < 1.0, "{row:?}");
        assert!(figure(EFFICIENCY) > 0.0);
    }
    let page = std::fs::read_to_string(path("page.md").unwrap()).unwrap();
    assert!(page.contains("hog's share beside the program"), "{page}");

    // The page can be had from the JSON again, without measuring. (It names the file that it is in.)
    std::fs::remove_file(path("page.md").unwrap()).unwrap();
    let options =
        Options { from: path("rows.json"), markdown: path("page.md"), ..Options::default() };
    assert_eq!(run(&Asked { options, ..Asked::default() }).unwrap(), 0);
    assert_eq!(std::fs::read_to_string(path("page.md").unwrap()).unwrap(), page);
}
