//! `evenkeel repro`: the short form runs all its machinery; what it writes is whole.

use std::path::Path;

use serde_json::Value;

use crate::support::*;

fn ids(path: &Path) -> Vec<String> {
    let study: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let parts = study["parts"].as_array().unwrap();
    parts.iter().map(|part| part["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn parts_are_measured_joined_and_written() {
    const TEST: &str = "parts_are_measured_joined_and_written";
    if !needs_root(TEST) || two_cpus(TEST).is_none() {
        return;
    }
    let host = Host::alone();
    let (first, second, docs) = (host.path("1.json"), host.path("2.json"), host.path("docs"));
    std::fs::create_dir(&docs).unwrap();
    let repro = |args: &[&str], json: &Path| {
        let mut command = host.command(EVENKEEL);
        command.args(["repro", "000", "--quick"]).args(args).arg("--json").arg(json);
        let run = output(command.arg("--docs").arg(&docs));
        assert!(run.status.success(), "{run:?}");
        text(&run.stdout).to_owned()
    };
    let said = repro(&["--parts", "cg,figure-12"], &first);
    assert!(said.contains("table 5"), "{said}");
    assert_eq!(ids(&first), ["figure-12", "cg"]);
    let from = first.to_str().unwrap();
    repro(&["--parts", "table-3", "--from", from], &second);
    assert_eq!(ids(&second), ["figure-12", "table-3", "cg"]);

    let page = std::fs::read_to_string(docs.join("000.md")).unwrap();
    for picture in ["figure-12", "table-3", "cg"] {
        assert!(page.contains(&format!("(000/{picture}.svg)")), "{page}");
        assert!(docs.join(format!("000/{picture}.svg")).exists(), "{picture}");
    }
}

#[test]
fn packets_are_measured_and_written() {
    const TEST: &str = "packets_are_measured_and_written";
    if !needs_root(TEST) || two_cpus(TEST).is_none() {
        return;
    }
    let host = Host::alone();
    let (json, docs) = (host.path("001.json"), host.path("docs"));
    std::fs::create_dir(&docs).unwrap();
    let mut command = host.command(EVENKEEL);
    command.args(["repro", "001", "--quick", "--json"]).arg(&json).arg("--docs").arg(&docs);
    let run = output(&mut command);
    assert!(run.status.success(), "{run:?}");
    assert_eq!(ids(&json), ["one-gigabit", "figure-5", "figure-6", "figure-12", "figure-14"]);
    let page = std::fs::read_to_string(docs.join("001.md")).unwrap();
    assert!(page.contains("no hardware counters here"), "{page}");
    for picture in ["goodput-1g", "cpu-1g", "goodput-3g", "goodput-clients", "figure-14"] {
        assert!(page.contains(&format!("(001/{picture}.svg)")), "{page}");
        assert!(docs.join(format!("001/{picture}.svg")).exists(), "{picture}");
    }
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
    ] {
        let run = output(host.command(EVENKEEL).args(args));
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        assert!(text(&run.stderr).contains(word) && run.stdout.is_empty(), "{run:?}");
    }
}
