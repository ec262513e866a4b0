//! Without privilege, without BPF, and in namespaces of its own, evenkeel works, or says why it
//! does not.

use std::process::Output;

use crate::roles::role;
use crate::support::*;
use crate::worker::Worker;

/// Checks that the command ran as it should, and returns what evenkeel said.
fn said(run: &Output, code: i32, stdout: &str) -> String {
    assert_eq!(run.status.code(), Some(code), "{run:?}");
    assert_eq!(text(&run.stdout), stdout, "{run:?}");
    text(&run.stderr)
}

#[test]
fn as_nobody_it_falls_back_to_proc() {
    if !needs_root("as_nobody_it_falls_back_to_proc") {
        return;
    }
    let host = Host::new();
    let run = output(&mut as_nobody(&host, &["run", "--", "sh", "-c", "id -u; exit 3"]));
    let said = said(&run, 3, "65534\n");
    only_summary(&run);
    assert!(said.contains("figures from /proc"), "{said}");
    // The message names what is missing.
    assert!(said.contains("CAP_BPF") || said.contains("root"), "{said}");
}

#[test]
fn as_nobody_tasks_are_moved_too() {
    if !needs_root("as_nobody_tasks_are_moved_too")
        || two_cpus("as_nobody_tasks_are_moved_too").is_none()
    {
        return;
    }
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let flags = [&["run", "-q", "--placement", placement], &EAGER[..], &["--"]].concat();
        let flags = [&flags[..], &role("worker")[..]].concat();
        let mut worker = Worker::start_by(&mut as_nobody(&host, &flags), 2);
        worker.wait_moved(&host, 2);
        worker.kill_evenkeel();
        wait_for("the supervisor's work", || host.journals().is_empty());
        assert!(worker.is_as(&all()));
        let status = output(&mut as_nobody(&host, &["status"]));
        assert!(status.status.success());
    }
}

#[test]
fn exact_accounting_that_cannot_be_had_is_refused() {
    if !needs_root("exact_accounting_that_cannot_be_had_is_refused") {
        return;
    }
    let host = Host::new();
    let flags = ["run", "--accounting", "cbinfo", "--", "sh", "-c", "sleep 0.3; echo ran; exit 5"];
    let run = output(&mut as_nobody(&host, &flags));
    let said = said(&run, 5, "ran\n");
    assert!(said.contains("not balanced"), "{said}");
    assert!(said.contains("CAP_BPF") || said.contains("root"), "{said}");
}

#[test]
fn as_nobody_with_the_home_of_root() {
    if !needs_root("as_nobody_with_the_home_of_root") {
        return;
    }
    // `setpriv`, and `su` without `-`, leave HOME as it was. A file in a directory that may not be
    // searched counts as missing.
    let host = Host::new();
    let closed = host.path("closed");
    std::fs::create_dir(&closed).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&closed, mode).unwrap();
    let mut command = as_nobody(&host, &["run", "-q", "--", "echo", "ran"]);
    let run = output(command.env("HOME", &closed));
    let said = said(&run, 0, "ran\n");
    assert!(said.contains("closed/.config/evenkeel/config.toml"), "{said}");
}

#[test]
fn a_run_works_in_name_spaces_of_its_own() {
    if !needs_root("a_run_works_in_name_spaces_of_its_own") {
        return;
    }
    for flags in [
        &["-p", "-f", "--mount-proc"][..],
        &["-n"],
        &["-u", "-i"],
        &["-C"],
        &["-T", "-f"],
        &["-p", "-f", "-n", "-u", "-i", "-C", "--mount-proc"],
    ] {
        let host = Host::new();
        let mut command = host.command("unshare");
        command.args(flags).args([
            EVENKEEL,
            "run",
            "--",
            "sh",
            "-c",
            "sleep 0.2; echo ran; exit 3",
        ]);
        let run = output(&mut command);
        let said = said(&run, 3, "ran\n");
        only_summary(&run);
        println!("unshare {}: {}", flags.join(" "), said.trim());
    }
}

#[test]
fn tasks_in_a_pid_name_space_are_moved_or_it_is_said_why_not() {
    let test = "tasks_in_a_pid_name_space";
    if !needs_root(test) || two_cpus(test).is_none() {
        return;
    }
    let host = Host::new();
    let json = host.path("json");
    // evenkeel is process 1 there, for which the kernel ignores signals without a handler.
    let flags = ["-p", "-f", "--mount-proc", EVENKEEL, "run", "--json", json.to_str().unwrap()];
    let mut command = host.command("unshare");
    command.args(flags).args(EAGER).arg("--").args(role("storm"));
    let run = output(command.env("EVENKEEL_TEST_ROLE", "storm"));
    assert_eq!(run.status.code(), Some(3), "{run:?}");
    only_summary(&run);
    let summary: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let why = text(&run.stderr);
    println!("{test}: {}", why.trim());
    assert!(summary["moves"].as_u64().unwrap() > 0 || why.contains("name space"), "{why}");
}

#[test]
fn a_run_without_proc_says_what_is_missing() {
    if !needs_root("a_run_without_proc_says_what_is_missing") {
        return;
    }
    let host = Host::new();
    let script = format!("umount -l /proc; exec '{EVENKEEL}' run -- sh -c 'echo ran; exit 6'");
    let mut command = host.command("unshare");
    let run = output(command.args(["-m", "sh", "-c", &script]));
    let said = said(&run, 6, "ran\n");
    assert!(said.contains("/proc"), "{said}");
}
