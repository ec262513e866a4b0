//! `evenkeel-lab bench programs`: the short form runs all its machinery, goes on from its file, and
//! leaves nothing behind.

use std::time::Duration;

use serde_json::Value;

use crate::html::checked_page;
use crate::schema::check;
use crate::support::*;

/// Longer than a dozen runs of programs take on a machine at a third of the pace.
const DEMO_PATIENCE: Duration = Duration::from_secs(300);

fn read(path: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_short_form_measures_and_goes_on_from_its_file() {
    const TEST: &str = "the_short_form_measures_and_goes_on_from_its_file";
    if !needs_root(TEST) || two_cpus(TEST).is_none() {
        return;
    }
    let host = Host::alone();
    let (json, page) = (host.path("programs.json"), host.path("programs.md"));
    let bench = |more: &[&str]| {
        let mut command = host.command(EVENKEEL_LAB);
        command.args(["bench", "programs"]).args(more);
        output(&mut command)
    };
    let files = ["--json", json.to_str().unwrap(), "--markdown", page.to_str().unwrap()];
    let quick = [&["--quick"][..], &files].concat();
    let run = bench(&quick);
    assert!(run.status.success(), "{run:?}");
    let report = read(&json);
    check("bench-report", &report);
    let cells = report["details"]["cells"]["cells"].as_array().unwrap();
    let noises: Vec<_> = cells.iter().map(|cell| cell["noise"].as_str().unwrap()).collect();
    assert_eq!(noises, ["none", "softirq-fine"]);
    for cell in cells {
        let lines = cell["lines"].as_array().unwrap();
        let names: Vec<_> = lines.iter().map(|line| line["contestant"].as_str().unwrap()).collect();
        assert_eq!((names[0], names[names.len() - 1]), ("default", "default again"));
        for wanted in ["pinned", "run", "by hand"] {
            assert!(names.contains(&wanted), "{names:?}");
        }
        for line in lines {
            let runs = line["runs"].as_array().unwrap();
            assert!(runs.len() == 3 && runs.iter().all(|run| !run.is_null()), "{line}");
        }
        let run = lines.iter().find(|line| line["contestant"] == "run").unwrap();
        assert!(run["runs"][0]["figures"]["moves"].as_f64().is_some(), "{run}");
    }
    // Under noise the bound is seen.
    let bound = |row: &&Value| row["metric"] == "bound" && row["contestant"] == "default";
    let rows = report["rows"].as_array().unwrap();
    let noisy = rows.iter().filter(bound).find(|row| row["case"] != "none (no claim)").unwrap();
    assert!(noisy["median"].as_f64().unwrap() > 1.1, "{noisy}");
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("The short form") && text.contains("| A/A: "), "{text}");

    // What is finished is not measured again, and what is not, is.
    let mut half = report.clone();
    half["details"]["cells"]["cells"].as_array_mut().unwrap().pop();
    std::fs::write(&json, half.to_string()).unwrap();
    let again = bench(&quick);
    assert!(again.status.success(), "{again:?}");
    let resumed = read(&json);
    let cells_of = |report: &Value| report["details"]["cells"]["cells"].as_array().unwrap().clone();
    assert_eq!(cells_of(&resumed).len(), 2);
    assert_eq!(cells_of(&resumed)[0], cells[0], "it was measured again");
    assert_ne!(cells_of(&resumed)[1], cells[1], "it was not measured again");

    // The page again, from the file alone.
    let html = host.path("programs.html");
    let words = ["--from", json.to_str().unwrap(), "--markdown", page.to_str().unwrap()];
    assert!(bench(&[&words[..], &["--html", html.to_str().unwrap()]].concat()).status.success());
    assert!(checked_page(&html).contains("ep.S-gcc"));
    assert!(std::fs::read_to_string(&page).unwrap().contains("ep.S-gcc"));
    // The whole form does not go on from a file of the short one.
    let refused = bench(&[&["--only", "ep.S-gcc/none"][..], &files].concat());
    assert!(!refused.status.success());
    assert!(text_of(&refused).contains("is of the short form, and the whole one"), "{refused:?}");
    let unknown = bench(&["--only", "ua"]);
    assert!(text_of(&unknown).contains("no program \"ua\": choose among"), "{unknown:?}");
}

#[test]
fn the_demo_shows_three_programs_and_ends_with_its_sentence() {
    const TEST: &str = "the_demo_shows_three_programs_and_ends_with_its_sentence";
    if !needs_root(TEST) || two_cpus(TEST).is_none() {
        return;
    }
    let host = Host::alone();
    let json = host.path("demo.json");
    let mut command = host.command(EVENKEEL_LAB);
    let words = ["bench", "programs", "--demo", "--runs", "1", "--json", json.to_str().unwrap()];
    let run = output_within(command.args(words), &[], DEMO_PATIENCE);
    assert!(run.status.success(), "{run:?}");
    let report = read(&json);
    let rows = report["rows"].as_array().unwrap();
    let times = rows.iter().filter(|row| row["metric"] == "time");
    let of = |program: &str| {
        let rows = times.clone().filter(|row| row["program"] == program);
        rows.map(|row| row["contestant"].as_str().unwrap()).collect::<Vec<_>>().join(", ")
    };
    let programs = [
        ("static_loop", "default, run, default again"),
        ("sp.W-clang", "default, run, run --shares, default again"),
        ("ep.W-gcc", "default, run, run --threads 4, default again"),
    ];
    let absent: Vec<&str> = report["absent"].as_array().map_or_else(Vec::new, |all| {
        all.iter().map(|one| one["program"].as_str().unwrap()).collect()
    });
    // Only what clang compiles may be absent.
    assert!(absent.iter().all(|name| name.ends_with("-clang")), "{}", report["absent"]);
    for (program, contestants) in programs.iter().filter(|(name, _)| !absent.contains(name)) {
        assert_eq!(of(program), *contestants, "{run:?}");
    }
    let sentence = report["sentence"].as_str().unwrap();
    let printed = text(&run.stdout);
    assert_eq!(printed.lines().last(), Some(sentence));
    // A single run decides nothing.
    let count = programs.len() - absent.len();
    assert!(sentence.starts_with("On this machine, while softirqs took "), "{sentence}");
    assert!(
        sentence.contains(&format!("evenkeel ran none of {count} programs faster")),
        "{sentence}"
    );
    for (program, _) in programs {
        assert!(printed.contains(program) && sentence.contains(program), "{program}: {printed}");
    }
    // It is no file that the whole form goes on from.
    let whole = ["bench", "programs", "--only", "ep.S-gcc/none", "--json", json.to_str().unwrap()];
    let refused = output(host.command(EVENKEEL_LAB).args(whole));
    assert!(text_of(&refused).contains("no cells are in it"), "{refused:?}");
}

fn text_of(run: &std::process::Output) -> String {
    text(&run.stderr).to_owned()
}
