//! The archive that the owner of a machine can send in.

use std::time::Duration;

use crate::schema::check;
use crate::support::*;

/// Longer than the report takes: it measures for a minute, and makes and simulates what goes with it.
const REPORT_PATIENCE: Duration = Duration::from_secs(200);

/// Whether a word stands there that is not a part of another one.
fn has_word(text: &str, word: &str) -> bool {
    let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(is_of_word) && !after.starts_with(is_of_word)
    })
}

#[test]
fn a_machine_is_described_shown_and_simulated() {
    let host = Host::alone();
    let file = host.path("here.tar");
    let mut command = host.evenkeel_lab(["report", "--minutes", "1", file.to_str().unwrap()]);
    command.env("HOME", "/home/some_user");
    let done = output_within(&mut command, &[], REPORT_PATIENCE);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    let said = text(&done.stdout);
    assert!(
        said.starts_with("report.json:\n{") && said.contains("machine.toml:\nname = "),
        "{said}"
    );
    // Of a page, too, its text is shown.
    let page = said.split_once("\nstatic_loop.html, its comparison of report.json as a page:\n");
    let page = page.unwrap_or_else(|| panic!("{said}")).1;
    assert!(page.starts_with("Is static_loop ") && !page.contains("<td"), "{page}");
    assert!(page.contains("\nOnce more\nevenkeel compare "), "{page}");
    let list = output(host.command("tar").args(["tf", file.to_str().unwrap()]));
    assert_eq!(text(&list.stdout), "report.json\nmachine.toml\nstatic_loop.html\n");
    let extracted = output(host.command("tar").args(["xOf", file.to_str().unwrap()]));
    let all = text(&extracted.stdout);
    // What was shown is what is in it.
    let shown = said.split_once("report.json:\n").unwrap().1;
    let report = shown.split_once("\nmachine.toml:\n").unwrap().0;
    assert!(all.starts_with(report), "{all}");
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    check("machine-report", &report);
    // Its parts are what other commands write.
    check("doctor", &report["doctor"]);
    check("compare", &report["programs"][0]["comparison"]);
    let accounting = &report["accounting"];
    if accounting.get("why_not").is_none() {
        // As a document of its own it tells its version.
        let mut whole = accounting.clone();
        whole["format"] = evenkeel_bench::verify::FORMAT.into();
        check("noise-verify", &whole);
    }
    let rows = report["programs"][0]["comparison"]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["contestant"] == "run"), "{report}");
    assert_eq!(report["programs"][0]["comparison"]["command"][0], "static_loop");
    assert!(report["doctor"]["checks"].is_array() && report["accounting"].is_object(), "{report}");
    let names = nix::sys::utsname::uname().unwrap();
    let name = names.nodename().to_str().unwrap();
    // These say nothing, and are left in (lab/evenkeel-lab).
    if !["", "root", "host", "localhost", "linux"].contains(&name) {
        assert!(!has_word(&all, name), "{name} is in the report");
    }
    assert!(!all.contains("/home/some_user"), "{all}");
    let machine = file.to_str().unwrap();
    let simulated = output(&mut host.evenkeel_lab(["sim", "run", "hogs", "--machine", machine]));
    assert_eq!(simulated.status.code(), Some(0), "{}", text(&simulated.stderr));
}
