//! `evenkeel-lab bench programs`: the short form runs all its machinery, goes on from its file, and
//! leaves nothing behind.

use serde_json::Value;

use crate::support::*;

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
    let words = ["--from", json.to_str().unwrap(), "--markdown", page.to_str().unwrap()];
    assert!(bench(&words).status.success());
    assert!(std::fs::read_to_string(&page).unwrap().contains("ep.S-gcc"));
    // The whole form does not go on from a file of the short one.
    let refused = bench(&[&["--only", "ep.S-gcc/none"][..], &files].concat());
    assert!(!refused.status.success());
    assert!(text_of(&refused).contains("is of the short form, and the whole one"), "{refused:?}");
    let unknown = bench(&["--only", "ua"]);
    assert!(text_of(&unknown).contains("no program \"ua\": choose among"), "{unknown:?}");
}

fn text_of(run: &std::process::Output) -> String {
    text(&run.stderr).to_owned()
}
