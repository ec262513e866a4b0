//! `set_ias_agg` and `set_ias_alloc` under their own names: the requests that they send to a keel, and
//! their errors for invalid arguments and where no keel runs. (A real keel's answers are in
//! tests/vm/policies.rs.)

use std::path::PathBuf;
use std::process::Output;

use evenkeel_control::{Answer, Request, Server};
use evenkeel_keel::{Aggregation, allocation_request};
use nix::poll::{PollTimeout, poll};
use serde_json::json;

use crate::support::*;

/// The program under this name.
fn named(host: &Host, name: &str) -> PathBuf {
    let path = host.path(name);
    if !path.exists() {
        std::os::unix::fs::symlink(EVENKEEL, &path).unwrap();
    }
    path
}

fn call(host: &Host, name: &str, arguments: &[&str]) -> Output {
    output(host.command(named(host, name)).args(arguments))
}

/// The error of a command that must be refused.
fn refusal(host: &Host, name: &str, arguments: &[&str]) -> String {
    error_with(2, host, name, arguments)
}

fn error_with(code: i32, host: &Host, name: &str, arguments: &[&str]) -> String {
    let called = call(host, name, arguments);
    let said = text(&called.stderr);
    assert_eq!(called.status.code(), Some(code), "{name} {arguments:?}: {said}");
    assert!(called.stdout.is_empty(), "{name} {arguments:?}");
    said
}

/// The requests that a keel gets meanwhile; this one grants all of them.
fn asked(host: &Host, name: &'static str, arguments: &[&str]) -> Vec<Request> {
    std::fs::create_dir_all(host.runtime()).unwrap();
    let mut server = Server::bind(&host.runtime().join("keel.sock")).unwrap();
    let mut child = host.command(named(host, name)).args(arguments).spawn().unwrap();
    let mut asked = Vec::new();
    while child.try_wait().unwrap().is_none() {
        poll(&mut server.poll_fds(), PollTimeout::from(10_u8)).unwrap();
        server.serve(|_, request| {
            asked.push(request.clone());
            Answer::ok(json!({}))
        });
    }
    assert!(child.wait().unwrap().success());
    asked
}

#[test]
fn the_papers_commands_send_the_papers_requests() {
    let host = Host::new();
    let how = Aggregation { pid: 77, agg: 1, bonus_type: 0, bonus_value: u64::MAX, limit: 5 };
    let arguments = ["77", "1", "0", "18446744073709551615", "5"];
    assert_eq!(asked(&host, "set_ias_agg", &arguments), [how.request()]);
    let roles = ["0", "1", "2", "3"];
    assert_eq!(asked(&host, "set_ias_alloc", &roles), [allocation_request(&[0, 1, 2, 3])]);
}

/// The error tells how to start a keel that has the policy.
#[test]
fn without_a_keel_they_say_how_to_start_it() {
    let host = Host::new();
    let remedy = "evenkeel: the keel does not run; start it with: evenkeel sched --order ias\n";
    assert_eq!(error_with(3, &host, "set_ias_agg", &["1", "1", "1", "3", "0"]), remedy);
    assert_eq!(error_with(3, &host, "set_ias_alloc", &["0", "1"]), remedy);
    assert_eq!(error_with(3, &host, "evenkeel", &["ias", "show"]), remedy);
    let zone = "evenkeel: the keel does not run; start it with: evenkeel sched --gate zone\n";
    assert_eq!(error_with(3, &host, "evenkeel", &["zone", "get"]), zone);
}

/// Each error names the argument, its value, and what may stand there.
#[test]
fn invalid_arguments_are_refused_by_name() {
    let host = Host::new();
    let most = "expected a whole number from 0 to 18446744073709551615";
    for (arguments, expected) in [
        (["0", "1", "0", "1", "0"], "pid \"0\": expected a process's number, from 1 to 4194304"),
        (["-1", "1", "0", "1", "0"], "pid \"-1\": expected a process's number"),
        (["x", "1", "0", "1", "0"], "pid \"x\": expected a process's number"),
        (["1", "2", "0", "1", "0"], "agg \"2\": expected 0 (off) or 1 (on)"),
        (["1", "-1", "0", "1", "0"], "agg \"-1\": expected 0 (off) or 1 (on)"),
        (["1", "1", "2", "1", "0"], "bonus_type \"2\": expected 0 (ns of vruntime) or 1"),
        (["1", "1", "0", "-1", "0"], &format!("bonus_value \"-1\": {most}")),
        (
            ["1", "1", "0", "18446744073709551616", "0"],
            &format!("bonus_value \"18446744073709551616\": {most}"),
        ),
        (["1", "1", "0", "1", "-3"], "limit \"-3\": expected a whole number from 0 (no limit)"),
    ] {
        let said = refusal(&host, "set_ias_agg", &arguments);
        assert!(said.starts_with(&format!("evenkeel: {expected}")), "{arguments:?}: {said}");
    }
    for (roles, expected) in [
        (&["0", "-1"][..], "not a whole number, for example 3: give 0 to 2047"),
        (&["0", "2048"], "out of range: give 0 to 2047"),
        (&["0", "65536"], "out of range: give 0 to 2047"),
        (&["master"], "invalid value 'master' for '[ROLE]...'"),
        (&[], "required arguments were not provided"),
    ] {
        let said = refusal(&host, "set_ias_alloc", roles);
        assert!(said.contains(expected), "{roles:?}: {said}");
    }
}

/// `--help` and errors show the usage of the command under the name by which it was called.
#[test]
fn usage_is_told_by_the_name_that_was_called() {
    let host = Host::new();
    let agg = "Usage: set_ias_agg [OPTIONS] <PID> <AGG> <BONUS_TYPE> <BONUS_VALUE> <LIMIT>\n";
    let alloc = "Usage: set_ias_alloc [OPTIONS] [ROLE]...\n";
    for (name, usage) in [
        ("set_ias_agg", agg),
        ("set_ias_alloc", alloc),
        ("chcb", "Usage: chcb [OPTIONS] -- <CMD>..."),
        ("capability-balancer", "Usage: capability-balancer [OPTIONS]"),
        ("evenkeel", "Usage: evenkeel [OPTIONS] <COMMAND>"),
    ] {
        let help = call(&host, name, &["--help"]);
        assert_eq!(help.status.code(), Some(0));
        let said = text(&help.stdout);
        assert!(said.contains(usage), "{name}: {said}");
    }
    let too_few = refusal(&host, "set_ias_agg", &["1", "1", "0"]);
    assert!(too_few.contains("<BONUS_VALUE>") && too_few.contains(agg), "{too_few}");
    let too_many = refusal(&host, "set_ias_agg", &["1", "1", "0", "1", "0", "7"]);
    assert!(too_many.contains("unexpected argument '7'") && too_many.contains(agg), "{too_many}");
}
