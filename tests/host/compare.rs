//! `evenkeel compare`: a user's program under the kernel alone and under evenkeel, in turn.

use std::process::{Output, Stdio};

use crate::compiled::Compiled;
use crate::html::checked_page;
use crate::support::*;

/// `evenkeel compare FLAGS --json FILE -- sh -c SCRIPT`, and the JSON if it wrote one.
fn compare(host: &Host, flags: &[&str], script: &str) -> (Output, serde_json::Value) {
    let json = host.path("comparison.json");
    let mut command = host.evenkeel(["compare", "--json"]);
    command.arg(&json).args(flags).args(["--", "sh", "-c", script]);
    let output = output(&mut command);
    let bytes = std::fs::read(json).unwrap_or_default();
    (output, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn names(comparison: &serde_json::Value) -> Vec<&str> {
    let rows = comparison["rows"].as_array().unwrap();
    rows.iter().map(|row| row["contestant"].as_str().unwrap()).collect()
}

#[test]
fn each_contestant_has_a_row_and_the_output_is_kept_apart() {
    let host = Host::new();
    // The command itself is shown, and holds neither word.
    let script = "cat; echo re''sult $$; echo re''mark >&2";
    let (output, comparison) = compare(&host, &["--rounds", "2"], script);
    assert!(output.status.success(), "{output:?}");
    let shown = text(&output.stdout);
    assert!(!shown.contains("result") && !text(&output.stderr).contains("remark"), "{output:?}");
    let expected = ["default", "pinned", "run", "run --shares", "run --threads 4", "default again"];
    assert_eq!(names(&comparison), expected);
    for (row, runs) in comparison["rows"].as_array().unwrap().iter().zip([2, 0, 2, 0, 0, 2]) {
        assert_eq!(row["runs"], runs, "{row}");
        // The process number differs from run to run.
        let agreement = if runs == 0 { None } else { Some("same-but-numbers") };
        assert_eq!(row["printed"].as_str(), agreement, "{row}");
    }
    assert!(shown.contains("pinned is left out: it acts on OpenMP programs only"), "{shown}");
    let left_out = "run --shares is left out: it divides loops of LLVM's OpenMP runtime";
    assert!(shown.contains(left_out), "{shown}");
    assert!(shown.contains(&format!("Use: {}", comparison["recommended"].as_str().unwrap())));
}

#[test]
fn openmp_is_seen_in_short_programs_and_in_static_ones() {
    let host = Host::new();
    let source = host.path("team.c");
    let c =
        "#include <unistd.h>\nint main(void) {\n#pragma omp parallel\nusleep(50000);\nreturn 0; }";
    std::fs::write(&source, c).unwrap();
    let source = source.to_str().unwrap();
    for flags in [&["-fopenmp"][..], &["-fopenmp", "-static"]] {
        let program = Compiled::compile(&host, source, "team", flags);
        let mut command = host.evenkeel(["compare", "--rounds", "1", "--contestants", "pinned"]);
        let output = output(command.arg("--").arg(&program.path));
        assert!(output.status.success(), "{output:?}");
        let shown = text(&output.stdout);
        assert!(!shown.contains("left out"), "{flags:?}: {shown}");
    }
}

#[test]
fn openmp_is_seen_behind_a_launcher_of_mpi() {
    let host = Host::new();
    let compile = |name: &str, c: &str, flags: &[&str]| {
        let source = host.path(&format!("{name}.c"));
        std::fs::write(&source, c).unwrap();
        Compiled::compile(&host, source.to_str().unwrap(), name, flags).path
    };
    // Its runtime is seen before it starts the program.
    let launcher = compile(
        "launcher",
        "#include <stdlib.h>\n#include <unistd.h>\nint MPI_Init(void) { return 0; }\n\
         int main(int count, char **words) {\nusleep(100000);\n\
         return MPI_Init() + system(words[1]); }",
        &[],
    );
    let rank = compile(
        "rank",
        "#include <unistd.h>\nint main(void) {\n#pragma omp parallel\nusleep(300000);\nreturn 0; }",
        &["-fopenmp"],
    );
    let mut command = host.evenkeel(["compare", "--rounds", "1", "--contestants", "pinned"]);
    let output = output(command.args(["--", &launcher, &rank]));
    assert!(output.status.success(), "{output:?}");
    let shown = text(&output.stdout);
    assert!(!shown.contains("left out"), "{shown}");
}

#[test]
fn a_program_that_prints_something_else_under_a_contestant_is_told() {
    let host = Host::new();
    // The command of its parent: compare, or run.
    let script = "tr '\\0' '\\n' < /proc/$PPID/cmdline | sed -n 2p";
    let flags = ["--rounds", "2", "--contestants", "run"];
    let page = host.path("comparison.html");
    let flags = [&flags[..], &["--html", page.to_str().unwrap()]].concat();
    let (output, comparison) = compare(&host, &flags, script);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(names(&comparison), ["default", "run", "default again"]);
    let page = checked_page(&page);
    let sentence = comparison["sentence"].as_str().unwrap();
    assert!(page.contains(sentence) && page.contains("it is not recommended"), "{page}");
    assert_eq!(comparison["rows"][0]["printed"], "same");
    assert_eq!(comparison["rows"][1]["printed"], "different");
    assert!(text(&output.stdout).contains("it is not recommended"), "{output:?}");
}

#[test]
fn a_program_that_changes_its_input_is_said_to_differ_by_itself() {
    let host = Host::new();
    let state = host.path("state");
    // Each run leaves more for the next one.
    let script = format!("echo again >> {state}; cat {state}", state = state.display());
    let flags = ["--rounds", "2", "--contestants", "run"];
    let (output, comparison) = compare(&host, &flags, &script);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(comparison["rows"][1]["printed"], "unknown", "{comparison}");
    assert!(text(&output.stdout).contains("differs by itself"), "{output:?}");
}

#[test]
fn an_interactive_program_finds_the_end_of_its_input_at_once() {
    let host = Host::new();
    let script = "if read line; then sleep 600; else echo re''sult; fi";
    let flags = ["--rounds", "1", "--contestants", "run"];
    let mut command =
        host.evenkeel([&["compare"], &flags[..], &["--", "sh", "-c", script]].concat());
    // The input of compare itself stays for others.
    let output = crate::support::output_of(&mut command, b"a line\n");
    assert!(output.status.success(), "{output:?}");
    // A program that takes an empty input for an error is told, as each that fails.
    let (output, _) = compare(&host, &flags, "read line || { echo no input >&2; exit 4; }");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("no input"), "{output:?}");
}

#[test]
fn the_runs_have_the_configuration_that_is_named() {
    let host = Host::new();
    let (config, log) = (host.path("named.toml"), host.path("log"));
    std::fs::write(&config, "[run]\npolicy = \"paper\"\n").unwrap();
    let config = config.to_str().unwrap();
    // The command of its parent: compare, or run.
    let script =
        format!("(tr '\\0' ' ' < /proc/$PPID/cmdline; echo) >> {log}", log = log.display());
    let flags = ["--rounds", "1", "--contestants", "run", "--config", config];
    let (output, _) = compare(&host, &flags, &script);
    assert!(output.status.success(), "{output:?}");
    let log = std::fs::read_to_string(log).unwrap();
    let line = log.lines().find(|line| line.contains(" run --quiet ")).unwrap();
    assert!(line.contains(&format!(" --config {config} -- sh ")), "{line}");
    // Each run reads it, which a pipe allows once.
    let mut command = host.command("bash");
    command.arg("-c").arg(format!("{EVENKEEL} compare --config <(echo) -- true"));
    let output = crate::support::output(&mut command);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("it is a pipe"), "{output:?}");
}

#[test]
fn a_wrong_configuration_is_told_before_the_first_run() {
    let host = Host::new();
    let (config, log) = (host.path("wrong.toml"), host.path("log"));
    for wrong in ["[run]\npolcy = \"lag\"\n", "[run]\ncpus = \"x-\"\n"] {
        std::fs::write(&config, wrong).unwrap();
        let mut command = host.evenkeel(["compare", "--config"]);
        command.arg(&config).args(["--", "touch"]).arg(&log);
        let output = output(&mut command);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("wrong.toml"), "{output:?}");
        assert!(!log.exists(), "the program was started");
    }
}

#[test]
fn a_program_that_fails_by_itself_is_an_error() {
    let host = Host::new();
    let log = host.path("log");
    let script = format!("echo >> {}; echo because >&2; exit 3", log.display());
    let (output, comparison) = compare(&host, &[], &script);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(std::fs::read(&log).unwrap().len(), 1, "it was started again");
    let error = text(&output.stderr);
    assert!(error.contains("nothing to compare") && error.contains("because"), "{error}");
    assert!(comparison.is_null());
    let mut absent = host.evenkeel(["compare", "--", "/no/such/program"]);
    let error = text(&crate::support::output(&mut absent).stderr);
    assert!(error.contains("cannot start /no/such/program"), "{error}");
}

#[test]
fn a_program_that_never_ends_is_ended_at_the_limit() {
    let host = Host::new();
    let flags = ["--rounds", "1", "--run-limit", "200ms"];
    let (output, _) = compare(&host, &flags, "sleep 600 & sleep 600");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = text(&output.stderr);
    assert!(error.contains("took more than 0.2 s") && error.contains("--run-limit"), "{error}");
    assert!(!error.contains("by itself"), "{error}");
}

#[test]
fn ctrl_c_gives_the_table_so_far() {
    let host = Host::new();
    let log = host.path("log");
    let mut command = host.evenkeel(["compare", "--contestants", "run", "--", "sh", "-c"]);
    // The fifth run, of the second round, lasts until it is ended.
    let log_name = log.display();
    command.arg(format!("echo >> {log_name}; [ $(wc -l < {log_name}) -lt 5 ] || sleep 600"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let runs = || std::fs::read(&log).unwrap_or_default().len();
    wait_for("a round", || runs() > 4);
    kill(child.id() as i32, libc::SIGINT);
    let status = ended(&mut child);
    assert_eq!(status.code(), Some(128 + libc::SIGINT));
    let mut shown = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut shown).unwrap();
    assert!(shown.contains("Ended early") && shown.contains("default again"), "{shown}");
    assert!(!shown.contains("left out"), "{shown}");
}

#[test]
fn both_forms_of_the_result_cannot_have_one_file() {
    let host = Host::new();
    let (file, log) = (host.path("result"), host.path("log"));
    let mut command = host.evenkeel(["compare", "--json"]);
    command.arg(&file).arg("--html").arg(&file).args(["--", "touch"]).arg(&log);
    let output = output(&mut command);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("both are the same file"), "{output:?}");
    assert!(!log.exists() && !file.exists(), "the program was started, or a new file is left");
}

#[test]
fn a_contestant_that_does_not_exist_is_told() {
    let host = Host::new();
    let mut command = host.evenkeel(["compare", "--contestants", "fast", "--", "true"]);
    let output = output(&mut command);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("no contestant \"fast\"") && error.contains("pinned, run"), "{error}");
}
