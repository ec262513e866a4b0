//! `evenkeel cluster report`, from records that `run` itself writes for tasks of a step, and by commands
//! in place of Slurm's. tests/cluster has it on a real Slurm.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::job::as_task;
use crate::report::json;
use crate::roles::role;
use crate::schema::check;
use crate::support::*;
use crate::time_left::shows_on_a_terminal;
use crate::worker::Worker;

/// Where a node keeps its own records.
fn own_records(host: &Host) -> PathBuf {
    host.runtime().join("jobs")
}

/// Runs `true` as a task that is alone on its node of step 77.3, which has two nodes.
fn short_task(host: &Host, flags: &[&str]) -> Output {
    let mut command = host.run(flags, &["true"]);
    as_task(&mut command, 0)
        .env("SLURM_STEP_TASKS_PER_NODE", "1(x2)")
        .env("SLURM_STEP_NUM_NODES", "2")
        .env("SLURM_STEP_NODELIST", "n[7-8]");
    output(&mut command)
}

fn report(host: &Host, words: &[&str]) -> Output {
    output(&mut host.evenkeel([&["cluster", "report"], words].concat()))
}

/// The report of a directory as JSON, which is as its schema says.
fn report_of(host: &Host, folder: &Path, code: i32) -> Value {
    let done = report(host, &["77", "--json", "--from", folder.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(code), "{done:?}");
    let report = serde_json::from_slice(&done.stdout).unwrap();
    check("cluster-report", &report);
    report
}

#[test]
fn ranks_of_a_step_have_one_record_with_what_their_line_says() {
    let test = "ranks_of_a_step_have_one_record_with_what_their_line_says";
    if two_cpus(test).is_none() {
        return;
    }
    let host = Host::new();
    let errors = host.path("errors");
    let ranks = [0, 1].map(|local| {
        let mut command = host.run(&EAGER, &role("worker"));
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&errors).unwrap();
        Worker::start_by(as_task(&mut command, local).stderr(file), 1)
    });
    ranks.iter().for_each(|rank| rank.wait_moved(&host, 2));
    ranks.into_iter().for_each(|rank| assert!(rank.end().success()));
    let report = report_of(&host, &own_records(&host), 0);
    let step = &report["steps"][0];
    assert_eq!((report["steps"].as_array().unwrap().len(), &step["step"]), (1, &3.into()));
    let record = &step["records"][0];
    assert_eq!(step["records"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!((&record["node"], &record["ranks"]), (&"n7".into(), &2.into()), "{report:#}");
    assert!(record["moves"].as_u64() > Some(0) && record["is_running"] == false, "{report:#}");
    let average = record["capability"]["average"].as_f64().unwrap();
    assert!(average > 0.0 && average <= 1.0, "{report:#}");
    // A single node holds no other up.
    assert_eq!(step["slowest"], Value::Null);
    let line = std::fs::read_to_string(&errors).unwrap();
    let outcome = record["outcome"].as_str().unwrap();
    assert_eq!(line, format!("evenkeel: 2 ranks of step 77.3 on n7: {outcome}\n"));
    let own = own_records(&host);
    let said = text(&self::report(&host, &["77", "--from", own.to_str().unwrap()]).stdout);
    assert!(said.starts_with("Step 77.3 on n7:\n  n7: 2 ranks, "), "{said}");
    assert!(said.contains(outcome), "{said}");
}

#[test]
fn nodes_without_a_record_are_counted() {
    let host = Host::new();
    only_summary(&short_task(&host, &[]));
    let report = report_of(&host, &own_records(&host), 1);
    let step = &report["steps"][0];
    assert_eq!((&step["nodes"], &step["nodes_without_record"]), (&2.into(), &1.into()));
    assert_eq!(step["records"][0]["capability"], Value::Null, "nothing was measured");
    let done = self::report(&host, &["77", "--from", own_records(&host).to_str().unwrap()]);
    let said = text(&done.stdout);
    assert!(said.contains("Step 77.3 on n[7-8]:\n"), "{said}");
    assert!(said.contains("  no record of 1 of its 2 nodes\n"), "{said}");
}

#[test]
fn a_record_is_kept_where_the_line_is_printed_and_by_jobs_alone() {
    let host = Host::new();
    assert!(short_task(&host, &["--quiet"]).status.success());
    only_summary(&output(&mut host.run(&[], &["true"])));
    assert!(!own_records(&host).exists());
}

#[test]
fn records_go_to_the_directory_of_the_configuration_and_never_fail_a_job() {
    let host = Host::new();
    let shared = host.path("shared");
    let folder = host.path("home/.config/evenkeel");
    std::fs::create_dir_all(&folder).unwrap();
    let table = format!("[cluster]\nrecords = \"{}\"\n", shared.display());
    std::fs::write(folder.join("config.toml"), table).unwrap();
    // The administrator has not made it yet.
    let without = short_task(&host, &[]);
    assert_eq!(without.status.code(), Some(0));
    let said = text(&without.stderr);
    assert!(said.contains("nothing is kept of this job") && said.contains("/shared"), "{said}");
    std::fs::create_dir(&shared).unwrap();
    only_summary(&short_task(&host, &[]));
    let files: Vec<_> = std::fs::read_dir(&shared).unwrap().flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let mode = files[0].metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it has a command line");
    assert!(!own_records(&host).exists());
    // The report reads there by itself, and needs no Slurm.
    let said = text(&report(&host, &["77"]).stdout);
    assert!(said.starts_with("Step 77.3 on n[7-8]:\n"), "{said}");
    // And so does what the plugin starts as srun ends.
    let line = |host: &Host, step: &str| {
        let done = output(&mut host.evenkeel(["cluster", "line", "77", step]));
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        text(&done.stdout)
    };
    let expected = "evenkeel: step 77.3 on 2 nodes: none with a record was slower by 2 % or more; no \
                    record of 1 of them\n";
    assert_eq!((line(&host, "3").as_str(), line(&host, "4").as_str()), (expected, ""));
    std::fs::remove_file(folder.join("config.toml")).unwrap();
    assert_eq!(line(&host, "3"), "", "each node keeps its own records");
}

#[test]
fn what_cannot_be_reported_is_said_with_the_remedy() {
    let host = Host::new();
    only_summary(&short_task(&host, &[]));
    let own = own_records(&host);
    let own = own.to_str().unwrap();
    for (words, code, expected) in [
        (&["78", "--from", own][..], 1, "no record of job 78 ("),
        (
            &["77", "--from", "/no/such/directory"][..],
            2,
            "/no/such/directory: the directory of the records",
        ),
        (&["77.3", "--from", own][..], 2, "like 1234"),
        (&["77", "--from", own, "--nodes", "n7"][..], 2, "cannot be used with"),
    ] {
        let done = report(&host, words);
        assert_eq!(done.status.code(), Some(code), "{done:?}");
        assert!(text(&done.stderr).contains(expected), "{done:?}");
    }
    let mut without_slurm = host.evenkeel(["cluster", "report", "77"]);
    let done = output(without_slurm.env("PATH", host.path("home")));
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    assert!(text(&done.stderr).contains("no scontrol is in PATH: run this where"), "{done:?}");
}

#[test]
fn records_of_another_version_are_named_and_the_others_reported() {
    let host = Host::new();
    only_summary(&short_task(&host, &[]));
    let own = own_records(&host);
    let written = std::fs::read_dir(&own).unwrap().next().unwrap().unwrap().path();
    let mut other = json(&written);
    other["format"] = 9.into();
    other["evenkeel"] = "99.0.0".into();
    std::fs::write(own.join("77.3-1-1.json"), other.to_string()).unwrap();
    let report = report_of(&host, &own, 1);
    assert_eq!(report["steps"][0]["records"].as_array().unwrap().len(), 1);
    let why = report["problems"][0].as_str().unwrap();
    assert!(why.contains("77.3-1-1.json: written by evenkeel 99.0.0 in format 9"), "{why}");
    assert!(why.ends_with("install one version on all nodes"), "{why}");
}

/// Each user may write to the directory that the nodes share, also under the number of another's job.
#[test]
fn a_record_that_another_user_made_is_not_reported() {
    if !needs_root("a_record_that_another_user_made_is_not_reported") {
        return;
    }
    let host = Host::new();
    only_summary(&short_task(&host, &[]));
    let written = std::fs::read_dir(own_records(&host)).unwrap().next().unwrap().unwrap().path();
    let shared = host.path("shared");
    std::fs::create_dir(&shared).unwrap();
    let forged = shared.join("77.3-0-1.json");
    std::fs::copy(written, &forged).unwrap();
    let readable = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&forged, readable).unwrap();
    let words = ["cluster", "report", "77", "--from", shared.to_str().unwrap()];
    let refused = output(&mut as_nobody(&host, &words));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(text(&refused.stderr).contains("no record of job 77 ("), "{refused:?}");
    std::os::unix::fs::chown(&forged, Some(NOBODY), Some(NOBODY)).unwrap();
    for mut reader in [as_nobody(&host, &words), host.evenkeel(words)] {
        let said = text(&output(&mut reader).stdout);
        assert!(said.starts_with("Step 77.3 on n[7-8]:\n"), "{said}");
    }
}

/// Commands in place of Slurm's: job 77 runs, or has ended, on n7 and n8, and n8 does not answer.
fn stand_ins(host: &Host, state: &str, answers: &str) -> PathBuf {
    let folder = host.path("slurm");
    std::fs::create_dir_all(&folder).unwrap();
    let scontrol = format!(
        "case \"$*\" in\n\
         *'show job 77') echo \"JobId=77 UserId=me($(id -u)) JobState={state} Partition=all \
         NodeList=n[7-8] BatchHost=n7\";;\n\
         *hostnames*) printf 'n7\\nn8\\n';;\n\
         *) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;;\nesac"
    );
    // It notes its options, and runs the command as a task on n7.
    let srun = format!(
        "[ \"$1\" != --help ] || exec echo '--evenkeel[=...]'\n\
         echo \"$*\" >'{}'\n\
         while case $1 in -*) ;; *) false;; esac; do shift; done\n{answers}",
        host.path("asked").display()
    );
    let sinfo = format!("cat '{}'", host.path("states").display());
    for (name, script) in [("scontrol", scontrol), ("srun", srun), ("sinfo", sinfo)] {
        let path = folder.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

/// The first node answers, each line with the number of its task.
const FIRST_ANSWERS: &str = "SLURMD_NODENAME=n7 \"$@\" | sed 's/^/0: /'\n\
                             echo 'srun: error: n8: task 1: Exited with exit code 1' >&2; exit 1";

fn asking(host: &Host, folder: &Path, words: &[&str]) -> Command {
    let mut command = host.evenkeel([&["cluster", "report"], words].concat());
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command.env("PATH", path).env("SLURM_STEP_ID", "9").env("SLURM_CONF", "/etc/slurm.conf");
    command
}

#[test]
fn the_nodes_of_a_job_are_asked_by_srun() {
    let host = Host::new();
    only_summary(&short_task(&host, &[]));
    let options = || std::fs::read_to_string(host.path("asked")).unwrap();
    for (state, expected) in [
        (
            "COMPLETED",
            "--immediate=30 --overcommit --time=1 --job-name=evenkeel-report --partition=all",
        ),
        ("RUNNING", "--immediate=30 --jobid=77 --overlap --evenkeel=off"),
    ] {
        let folder = stand_ins(&host, state, FIRST_ANSWERS);
        let done = output(&mut asking(&host, &folder, &["77", "--json"]));
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        let report: Value = serde_json::from_slice(&done.stdout).unwrap();
        check("cluster-report", &report);
        assert_eq!(report["steps"][0]["records"][0]["node"], "n7");
        assert_eq!(report["nodes_without_record"], serde_json::json!(["n8"]));
        let why = report["problems"][0].as_str().unwrap();
        assert!(why.starts_with("n8 did not answer: srun: error: n8: task 1"), "{why}");
        let asked = options();
        assert!(asked.contains(expected), "{asked}");
        assert!(asked.starts_with("--nodelist=n[7-8] --nodes=2 --ntasks=2 "), "{asked}");
    }
    let folder = stand_ins(&host, "COMPLETED", "echo 'srun: error: nodes are busy' >&2; exit 1");
    let done = output(&mut asking(&host, &folder, &["77"]));
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    let said = text(&done.stderr);
    assert!(
        said.contains("srun could not ask n[7-8]") && said.contains("nodes are busy"),
        "{said}"
    );
    let done = output(&mut asking(&host, &folder, &["78"]));
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    let said = text(&done.stderr);
    assert!(said.contains("job 78: Slurm does not know it: slurm_load_jobs error"), "{said}");
    assert!(said.contains("(--nodes)") && said.contains("(--from)"), "{said}");
    // An evenkeel without this command.
    let folder = stand_ins(&host, "COMPLETED", "echo '0: usage'");
    let done = output(&mut asking(&host, &folder, &["77"]));
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(
        text(&done.stdout).contains("\"usage\" is no answer of evenkeel cluster node"),
        "{done:?}"
    );
}

/// A job of thousands of nodes waits for them: a terminal must not look dead meanwhile.
#[test]
fn a_terminal_tells_which_nodes_are_asked_and_how_many_have_answered() {
    let host = Host::new();
    only_summary(&short_task(&host, &[]));
    // The second node takes its time. The command that asks is killed by then: what stands for srun ends
    // with it.
    let answers = "SLURMD_NODENAME=n7 \"$@\" | sed 's/^/0: /'\n\
                   while kill -0 $PPID 2>/dev/null; do sleep 0.1; done";
    let folder = stand_ins(&host, "COMPLETED", answers);
    shows_on_a_terminal(asking(&host, &folder, &["77"]), |said| {
        said.contains("0/2 nodes, time left unknown yet, asking n[7-8]")
            && said.contains("1/2 nodes, ")
    });
}

#[test]
fn a_node_that_takes_no_job_is_named_and_the_others_are_asked() {
    let host = Host::new();
    only_summary(&short_task(&host, &[]));
    let folder = stand_ins(&host, "COMPLETED", &FIRST_ANSWERS.replace("exit 1", "exit 0"));
    std::fs::write(host.path("states"), "n7 idle\nn8 drain\n").unwrap();
    let done = output(&mut asking(&host, &folder, &["77", "--json"]));
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["steps"][0]["records"][0]["node"], "n7");
    assert_eq!(report["nodes_without_record"], serde_json::json!(["n8"]));
    assert_eq!(report["problems"], serde_json::json!(["n8 takes no job now (drain)"]));
    let asked = std::fs::read_to_string(host.path("asked")).unwrap();
    assert!(asked.starts_with("--nodelist=n7 --nodes=1 --ntasks=1 "), "{asked}");
    std::fs::write(host.path("states"), "n7 down*\nn8 drain\n").unwrap();
    let done = output(&mut asking(&host, &folder, &["77"]));
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    let said = text(&done.stderr);
    let states = "n7 takes no job now (down*), n8 takes no job now (drain); ask again later";
    assert!(said.contains(states), "{said}");
    // A step of the job is started there all the same.
    let folder = stand_ins(&host, "RUNNING", FIRST_ANSWERS);
    output(&mut asking(&host, &folder, &["77"]));
    let asked = std::fs::read_to_string(host.path("asked")).unwrap();
    assert!(asked.starts_with("--nodelist=n[7-8] --nodes=2 "), "{asked}");
}

#[test]
fn a_job_that_runs_is_reported_as_it_is_now() {
    if two_cpus("a_job_that_runs_is_reported_as_it_is_now").is_none() {
        return;
    }
    let host = Host::new();
    let mut command = host.run(&[&["-q"], &EAGER[..]].concat(), &role("worker"));
    let worker = Worker::start_by(as_task(&mut command, 0), 2);
    worker.wait_moved(&host, 2);
    wait_for("its status", || host.status().iter().any(|run| run["intervals"].as_u64() > Some(2)));
    let folder = stand_ins(&host, "RUNNING", "SLURMD_NODENAME=n7 \"$@\" | sed 's/^/0: /'");
    let done = output(&mut asking(&host, &folder, &["77", "--json"]));
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    check("cluster-report", &report);
    let record = &report["steps"][0]["records"][0];
    assert_eq!(record["is_running"], true, "{report:#}");
    assert_eq!(record["exit_code"], Value::Null);
    assert!(record["capability"]["average"].as_f64() > Some(0.0), "{report:#}");
    assert!(record["outcome"].as_str().unwrap().contains(" so far"), "{report:#}");
    assert!(worker.end().success());
}
