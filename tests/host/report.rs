//! What evenkeel reports of a run: the summary as a line and as JSON, the status while it runs, its
//! decisions; and two runs at once.

use evenkeel_noise::{Noise, NoiseConfig, NoiseKind};
use serde_json::Value;

use crate::roles::role;
use crate::support::*;
use crate::worker::Worker;

pub fn json(path: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_summary_is_whole_as_json() {
    let host = Host::new();
    let path = host.path("summary.json");
    let flags = [&["-q", "--json", path.to_str().unwrap()], &EAGER[..]].concat();
    let run = output(&mut host.run(&flags, &["sh", "-c", "sleep 2; kill -TERM $$"]));
    assert!(run.stderr.is_empty() && run.stdout.is_empty(), "{run:?}");
    assert_eq!(wait_status(run.status), libc::SIGTERM);
    let summary = json(&path);
    assert_eq!(summary["command"][0], "sh");
    assert_eq!(summary["exit_code"], 143);
    assert_eq!(summary["placement"], "soft");
    assert_eq!(summary["dry_run"], false);
    assert_eq!(summary["moves"], 0);
    assert!(summary["intervals"].as_u64().unwrap() > 0, "{summary}");
    assert!(summary["elapsed_ns"].as_u64().unwrap() > 0, "{summary}");
    let cpus: Vec<u64> = summary["cpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cpu| cpu["cpu"].as_u64().unwrap())
        .collect();
    let online = std::thread::available_parallelism().unwrap().get();
    assert!(cpus.len() >= online && cpus.is_sorted(), "{summary}");
}

#[test]
fn a_summary_that_cannot_be_written_is_refused_before_the_command_starts() {
    let host = Host::new();
    for path in ["/no/such/directory/file", "/"] {
        let run = output(&mut host.run(&["-q", "--json", path], &["sh", "-c", "echo ran"]));
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        assert!(run.stdout.is_empty(), "the command was started: {run:?}");
        let said = text(&run.stderr);
        assert!(said.starts_with(&format!("evenkeel: --json {path}: ")), "{said}");
    }
    // A disk that is full is found only at the end: the code stays that of the command.
    let run = output(&mut host.run(&["-q", "--json", "/dev/full"], &["sh", "-c", "exit 8"]));
    assert_eq!(run.status.code(), Some(8), "{run:?}");
    assert!(text(&run.stderr).starts_with("evenkeel: --json /dev/full: No space left"), "{run:?}");
    // The report of an earlier run does not pass for that of a command that cannot be started.
    let path = host.path("summary.json");
    let flags = ["--json", path.to_str().unwrap()];
    assert!(output(&mut host.run(&flags, &["true"])).status.success());
    assert_eq!(output(&mut host.run(&flags, &["/no/such"])).status.code(), Some(127));
    let summary = json(&path);
    assert_eq!(summary["exit_code"], 127);
    assert_eq!(summary["command"][0], "/no/such");
}

#[test]
fn the_summary_follows_the_output_of_the_command_on_standard_output() {
    let host = Host::new();
    for path in ["-", "/dev/stdout"] {
        let run = output(&mut host.run(&["-q", "--json", path], &["echo", "first"]));
        let said = text(&run.stdout);
        let summary: Value = serde_json::from_str(said.strip_prefix("first\n").unwrap()).unwrap();
        assert_eq!(summary["command"][1], "first");
        assert!(run.stderr.is_empty(), "{run:?}");
    }
    assert!(!std::path::Path::new("-").exists());
}

#[test]
fn a_dry_run_moves_nothing() {
    let Some(_) = two_cpus("a_dry_run_moves_nothing") else { return };
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let path = host.path("json");
        let flags = ["--dry-run", "--placement", placement, "--json", path.to_str().unwrap()];
        let flags = [&flags[..], &EAGER[..]].concat();
        let mut command = host.run(&flags, &role("worker"));
        command.stderr(std::process::Stdio::piped());
        let mut worker = Worker::start_by(&mut command, 2);
        let mut stderr = worker.evenkeel.stderr.take().unwrap();
        // Beside other load two CPUs can be equally fast for a while.
        wait_for("a proposal", || {
            host.wait_intervals(10);
            let run = &host.status()[0];
            let decisions = run["decisions"].as_array().unwrap();
            decisions.iter().any(|one| !one["moves"].as_array().unwrap().is_empty())
        });
        assert!(worker.is_as(&all()));
        assert!(host.journals().is_empty(), "there is nothing to write down");
        assert_eq!(host.status()[0]["dry_run"], true);
        assert!(worker.end().success());
        let summary = json(&path);
        assert_eq!(summary["moves"], 0, "{summary}");
        assert!(summary["proposed"].as_u64().unwrap() > 0, "nothing was proposed: {summary}");
        let mut said = String::new();
        std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
        assert!(said.contains("would have moved") && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn decisions_are_explained_as_they_are_made() {
    let Some(_) = two_cpus("decisions_are_explained_as_they_are_made") else { return };
    let host = Host::new();
    let flags = [&["--explain"], &EAGER[..]].concat();
    let mut command = host.run(&flags, &role("worker"));
    command.stderr(std::process::Stdio::piped());
    let mut worker = Worker::start_by(&mut command, 2);
    let mut stderr = worker.evenkeel.stderr.take().unwrap();
    worker.wait_moved(&host, 2);
    worker.let_end();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    assert!(ended(&mut worker.evenkeel).success());
    assert!(said.contains("moved task") && said.contains("ECPT"), "{said}");
    assert!(said.trim_end().lines().last().unwrap().starts_with("evenkeel: "), "{said}");
}

#[test]
fn a_disturbed_cpu_makes_the_default_policy_move() {
    let test = "a_disturbed_cpu_makes_the_default_policy_move";
    let Some((x, _)) = two_cpus(test) else { return };
    let host = Host::alone();
    let config = NoiseConfig {
        busy_us: 4_000,
        period_us: 10_000,
        limit: std::time::Duration::from_secs(60),
    };
    let noise = match Noise::start(NoiseKind::Fifo, x, config) {
        Ok(noise) => noise,
        Err(why) if why.is_privilege() => return evenkeel_skip::skip(test, why),
        Err(why) => panic!("{why}"),
    };
    let path = host.path("json");
    let mut command = host.run(&["--json", path.to_str().unwrap()], &role("worker"));
    command.stderr(std::process::Stdio::piped());
    let mut worker = Worker::start_by(&mut command, 2);
    let mut stderr = worker.evenkeel.stderr.take().unwrap();
    worker.wait_moved(&host, 3);
    // Placement is soft: every thread has all CPUs again.
    worker.let_end();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut stderr, &mut said).unwrap();
    noise.stop().unwrap();
    assert!(ended(&mut worker.evenkeel).success());
    let summary = json(&path);
    assert!(summary["moves"].as_u64().unwrap() >= 3, "{summary}");
    assert!(summary["worst"].as_f64() < summary["average"].as_f64(), "{summary}");
    assert!(summary["alike_ns"].as_u64() > Some(0), "{summary}");
    assert!(summary["sign"].is_string(), "it was loaded without a sign: {summary}");
    assert!(said.starts_with("evenkeel: worst CPU ") && said.contains("moved tasks"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn two_runs_do_not_disturb_each_other() {
    let Some(_) = two_cpus("two_runs_do_not_disturb_each_other") else { return };
    let host = Host::new();
    let hard = [&["-q", "--placement", "hard"], &EAGER[..]].concat();
    let soft = [&["-q"], &EAGER[..]].concat();
    let mut first = Worker::start(&host, &hard);
    let second = Worker::start(&host, &soft);
    first.wait_moved(&host, 2);
    second.wait_moved(&host, 2);
    assert_eq!(host.journals().len(), 2);
    wait_for("both records", || host.status().len() == 2);
    for command in ["status", "explain"] {
        let runs = programs_of(&mut host.evenkeel([command, "--json"]));
        let mut roots: Vec<i64> = runs.iter().map(|run| run["root"].as_i64().unwrap()).collect();
        roots.sort_unstable();
        let mut expected = [i64::from(first.pid), i64::from(second.pid)];
        expected.sort_unstable();
        assert_eq!(roots, expected, "{command}");
        let run = output(&mut host.evenkeel([command]));
        for worker in [&first, &second] {
            let pid = format!("(pid {},", worker.pid);
            assert!(text(&run.stdout).contains(&pid), "{command}: {}", text(&run.stdout));
        }
    }
    // One of the runs, named by its program or by its balancer.
    for pid in [second.pid, second.pid_of_evenkeel()] {
        let run = output(&mut host.evenkeel(["explain", "--last", "3", &pid.to_string()]));
        let said = text(&run.stdout);
        assert!(said.contains(&format!("(pid {},", second.pid)), "{said}");
        assert!(!said.contains(&format!("(pid {},", first.pid)), "{said}");
    }
    for run in programs_of(&mut host.evenkeel(["explain", "--last", "1", "--json"])) {
        assert_eq!(run["decisions"].as_array().unwrap().len(), 1, "{run}");
    }
    // `undo` does not touch runs that are alive.
    let report = host.undo();
    assert_eq!(report["live"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(report["restored"].as_array().unwrap().len(), 0, "{report}");
    // When one run ends, even by SIGKILL, the other is not disturbed.
    first.kill_evenkeel();
    wait_for("the first journal's end", || host.journals().len() == 1);
    assert!(first.is_as(&all()));
    assert_eq!(host.status().len(), 1);
    let before = host.pins().len();
    wait_for("more moves of the second", || host.pins().len() > before + 4);
    assert_eq!(host.pins_of(first.threads[0]), 0);
    assert!(second.end().success());
    assert!(host.status().is_empty() && host.status_files().is_empty());
    assert!(host.journals().is_empty());
}

#[test]
fn a_bug_report_says_what_runs_and_names_nobody() {
    let host = Host::new();
    let worker = Worker::start(&host, &[&["-q", "--dry-run"], &EAGER[..]].concat());
    wait_for("its record", || host.status().len() == 1);
    let run = output(&mut host.evenkeel(["bugreport"]));
    assert!(run.status.success(), "{run:?}");
    let said = text(&run.stdout);
    for part in ["## Versions", "## evenkeel doctor", "A program: accounting ", "dry_run true"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    let files = said.find("## Files").unwrap();
    let record = &host.status()[0];
    for word in record["command"].as_array().unwrap() {
        let word = word.as_str().unwrap();
        assert!(word.len() < 8 || !said[..files].contains(word), "{word} is in: {said}");
    }
    // Default configuration files lie there, and its path has the user's name.
    let home = host.path("home").display().to_string();
    assert!(!said.contains(&home) && said.contains("$HOME/.config/evenkeel"), "{said}");
    let file = host.path("report.md");
    assert!(output(&mut host.evenkeel(["bugreport", file.to_str().unwrap()])).status.success());
    assert!(std::fs::read_to_string(file).unwrap().contains("## Versions"));
    worker.end();
}

#[test]
fn undo_says_what_is_left_and_what_was_forced_and_status_what_was_let_go() {
    let test = "undo_says_what_is_left_and_what_was_forced_and_status_what_was_let_go";
    let Some(_) = two_cpus(test) else { return };
    let host = Host::new();
    let worker = Worker::start(&host, &[&["-q", "--placement", "hard"], &EAGER[..]].concat());
    worker.wait_moved(&host, 2);
    stop_while_it_waits(worker.pid_of_evenkeel());
    let says = |words: &[&str]| {
        let done = output(&mut host.evenkeel(words));
        assert!(done.status.success() && done.stderr.is_empty(), "{words:?}: {done:?}");
        text(&done.stdout)
    };
    assert_eq!(says(&["undo", "--killed"]), "Nothing to undo.\n");
    let left = says(&["undo"]);
    let promise = "its balancer is alive and will undo it (--force: undo it now)\n";
    assert!(left.ends_with(promise) && left.lines().count() == 1, "{left}");
    let forced = says(&["undo", "--force"]);
    let done = " CPUs again.\n";
    assert!(
        forced.contains(" (pid ") && forced.ends_with(done) && forced.lines().count() == 1,
        "{forced}"
    );
    assert!(worker.is_as(&all()));
    kill(worker.pid_of_evenkeel(), libc::SIGCONT);
    wait_for("a task that is let go", || host.status()[0]["yielded"].as_u64() > Some(0));
    let status = says(&["status"]);
    assert!(status.contains(" let go (another process set the CPUs)"), "{status}");
    assert!(worker.end().success());
}

#[test]
fn undo_by_force_makes_a_living_run_let_go() {
    let Some(_) = two_cpus("undo_by_force_makes_a_living_run_let_go") else { return };
    let host = Host::new();
    let worker = Worker::start(&host, &[&["-q", "--placement", "hard"], &EAGER[..]].concat());
    worker.wait_moved(&host, 2);
    stop_while_it_waits(worker.pid_of_evenkeel());
    let report = output(&mut host.evenkeel(["undo", "--force", "--json"]));
    assert!(report.status.success(), "{report:?}");
    assert!(worker.is_as(&all()));
    kill(worker.pid_of_evenkeel(), libc::SIGCONT);
    let before = host.pins().len();
    host.wait_intervals(20);
    assert_eq!(host.pins().len(), before, "it was pinned again");
    assert!(worker.is_as(&all()));
    assert!(worker.end().success());
}
