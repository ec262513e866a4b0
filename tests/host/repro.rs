//! `evenkeel-lab repro`: the short form runs all its machinery; what it writes is whole.

use std::path::Path;

use serde_json::Value;

use crate::html::checked_page;
use crate::schema::check;
use crate::support::*;

fn ids(path: &Path) -> Vec<String> {
    let study: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let parts = study["parts"].as_array().unwrap();
    parts.iter().map(|part| part["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
#[ignore = "measures for half a minute: make bench-test"]
fn parts_are_measured_joined_and_written() {
    const TEST: &str = "parts_are_measured_joined_and_written";
    if !needs_root(TEST) || two_cpus(TEST).is_none() {
        return;
    }
    let host = Host::alone();
    let (first, second, docs) = (host.path("1.json"), host.path("2.json"), host.path("docs"));
    std::fs::create_dir(&docs).unwrap();
    let repro = |args: &[&str], json: &Path| {
        let mut command = host.command(EVENKEEL_LAB);
        command.args(["repro", "000", "--quick"]).args(args).arg("--json").arg(json);
        let run = output(command.arg("--docs").arg(&docs).arg("--html").arg(&docs));
        assert!(run.status.success(), "{run:?}");
        for file in [json, &docs.join("000.md"), &docs.join("000.html")] {
            let line = format!("wrote {}", file.display());
            assert!(text(&run.stdout).lines().any(|said| said == line), "{run:?}");
        }
        text(&run.stdout).to_owned()
    };
    let said = repro(&["--parts", "cg,figure-12"], &first);
    assert!(said.contains("table 5"), "{said}");
    assert_eq!(ids(&first), ["figure-12", "cg"]);
    let from = first.to_str().unwrap();
    repro(&["--parts", "table-3", "--from", from], &second);
    assert_eq!(ids(&second), ["figure-12", "table-3", "cg"]);

    let page = std::fs::read_to_string(docs.join("000.md")).unwrap();
    assert!(page.contains("(000/figure-12.svg)"), "{page}");
    assert!(docs.join("000/figure-12.svg").exists());
    let html = checked_page(&docs.join("000.html"));
    for picture in ["figure-12", "table-3", "cg"] {
        assert!(html.contains(&format!("<figure id=\"{picture}\">")), "{html}");
    }
}

#[test]
#[ignore = "measures for half a minute: make bench-test"]
fn packets_are_measured_and_written() {
    const TEST: &str = "packets_are_measured_and_written";
    if !needs_root(TEST) || two_cpus(TEST).is_none() {
        return;
    }
    let host = Host::alone();
    let (json, docs) = (host.path("001.json"), host.path("docs"));
    std::fs::create_dir(&docs).unwrap();
    let mut command = host.command(EVENKEEL_LAB);
    command.args(["repro", "001", "--quick", "--json"]).arg(&json).arg("--docs").arg(&docs);
    let run = output(command.arg("--html").arg(&docs));
    assert!(run.status.success(), "{run:?}");
    assert_eq!(ids(&json), ["one-gigabit", "figure-5", "figure-6", "figure-12", "figure-14"]);
    let page = std::fs::read_to_string(docs.join("001.md")).unwrap();
    assert!(page.contains("- others, in the most disturbed row: "), "{page}");
    assert!(page.contains("no hardware counters here"), "{page}");
    checked_page(&docs.join("001.html"));
    for figure in ["goodput-1g", "cpu-1g"] {
        assert!(
            !docs.join(format!("001/{figure}.svg")).exists(),
            "{figure} is on the HTML page only"
        );
    }
    for picture in ["goodput-3g", "goodput-clients", "figure-14"] {
        assert!(page.contains(&format!("(001/{picture}.svg)")), "{page}");
        assert!(docs.join(format!("001/{picture}.svg")).exists(), "{picture}");
    }
}

/// The names of the cells of paper 002, in order; readers of these files rely on them.
const CELL_FIELDS: [&str; 11] = [
    "ci95",
    "gain_algorithm1_pct",
    "gain_ours_pct",
    "gain_ours_real_signals_pct",
    "optimum_ms",
    "paper_gain_pct",
    "paper_tat_unaware_ms",
    "processes",
    "system",
    "tat_unaware_ms",
    "workload",
];
/// The cells that are simulated many times.
const JUDGED: [&str; 4] =
    ["gain_algorithm1_pct", "gain_ours_pct", "gain_ours_real_signals_pct", "tat_unaware_ms"];

#[test]
fn cells_are_simulated_and_written() {
    let host = Host::new();
    let (json, docs) = (host.path("002.json"), host.path("docs"));
    std::fs::create_dir(&docs).unwrap();
    let mut command = host.command(EVENKEEL_LAB);
    command.args(["repro", "002", "--quick", "--json"]).arg(&json).arg("--docs").arg(&docs);
    let run = output(command.arg("--html").arg(&docs));
    assert!(run.status.success(), "{run:?}");
    assert_eq!(
        ids(&json),
        ["tables", "fit", "readings", "signals", "slices", "parts", "causes", "layouts"]
    );
    let study: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    check("repro", &study);
    let rows = study["parts"][0]["rows"].as_array().unwrap();
    assert!((1..=30).contains(&rows.len()), "{} cells", rows.len());
    let mut cells = std::collections::BTreeSet::new();
    for row in rows {
        let row = row.as_object().unwrap();
        let names: std::collections::BTreeSet<&str> = row.keys().map(String::as_str).collect();
        assert!(names.iter().eq(CELL_FIELDS.iter()), "{row:?}");
        let number = |name: &str| row[name].as_f64().unwrap();
        for name in ["paper_tat_unaware_ms", "tat_unaware_ms", "optimum_ms"] {
            assert!(number(name) > 0.0, "{name}: {row:?}");
        }
        assert!(number("optimum_ms") < number("tat_unaware_ms"), "{row:?}");
        for name in JUDGED {
            let interval = row["ci95"][name].as_array().unwrap();
            let [least, most] = [0, 1].map(|at: usize| interval[at].as_f64().unwrap());
            assert!((least..=most).contains(&number(name)), "{name}: {row:?}");
        }
        let words = ["system", "workload"].map(|name| row[name].as_str().unwrap().to_owned());
        cells.insert((words, row["processes"].as_u64().unwrap()));
    }
    assert_eq!(cells.len(), rows.len(), "a cell twice: {cells:?}");
    for system in ["AMC1", "AMC2", "AMC3"] {
        assert!(cells.iter().any(|([of, _], _)| of == system), "{system}: {cells:?}");
    }
    let page = std::fs::read_to_string(docs.join("002.md")).unwrap();
    assert!(page.contains("(002/amc1-w1-gain.svg)"), "{page}");
    assert!(docs.join("002/amc1-w1-gain.svg").exists());
    let html = checked_page(&docs.join("002.html"));
    for part in ["<figure id=\"amc1-w1-gain\">", "prefers-color-scheme: dark", ", Linux "] {
        assert!(html.contains(part), "{part} is missing in {html}");
    }
    let command =
        format!("--json {} --docs {docs} --html {docs}", json.display(), docs = docs.display());
    assert!(html.contains(&command), "the command to repeat is missing in {html}");
}

/// The short form decides nothing: it is written where its user says so, and never over the results
/// that are committed.
#[test]
fn a_short_form_leaves_the_results_of_its_folder_alone() {
    let host = Host::new();
    let results = host.path("docs/results");
    std::fs::create_dir_all(&results).unwrap();
    std::fs::write(results.join("002.md"), "measured in full").unwrap();
    let quick = |more: &[&str]| {
        let mut command = host.command(EVENKEEL_LAB);
        command.args(["repro", "002", "--quick", "--parts", "tables"]).args(more);
        output(command.current_dir(host.path(".")))
    };
    let run = quick(&[]);
    let said = text(&run.stdout);
    assert!(run.status.success(), "{run:?}");
    // In place of a table without rows.
    assert_eq!(said, "The short form decides nothing; it measured: tables.\n");
    for place in ["docs/results", "docs/../docs/results/"] {
        let refused = quick(&["--docs", place]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(text(&refused.stderr).contains("--quick decides nothing"), "{refused:?}");
    }
    let names: Vec<_> =
        std::fs::read_dir(&results).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["002.md"]);
    assert_eq!(std::fs::read_to_string(results.join("002.md")).unwrap(), "measured in full");
}

#[test]
fn what_does_not_exist_is_refused_before_anything_is_measured() {
    let host = Host::new();
    for (args, word) in [
        (&["repro", "007"][..], "choose 000, 001, 002"),
        (&["repro", "000", "--parts", "figure-99"], "figure-8"),
        (&["repro", "001", "--parts", "figure-99"], "figure-14"),
        (&["repro", "000", "--from", "/no/such"], "/no/such"),
        (&["repro", "000", "--json", "/no/such/file"], "/no/such/file"),
        (&["repro", "002", "--quick", "--check"], "--quick"),
    ] {
        let run = output(host.command(EVENKEEL_LAB).args(args));
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        assert!(text(&run.stderr).contains(word) && run.stdout.is_empty(), "{run:?}");
    }
}
