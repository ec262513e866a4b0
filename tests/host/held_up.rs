//! The daemon of all users while a process of one of them makes each reader of its `stat` wait: the
//! daemon refuses that one and serves the others.

use std::fs;

use crate::daemon::says;
use crate::fuse::{Holder, Unanswered};
use crate::running_daemon::{Daemon, lone_worker};
use crate::support::*;

const TEST: &str = "a_process_in_a_call_of_exec_does_not_hold_up_the_daemon";

#[test]
fn a_process_in_a_call_of_exec_does_not_hold_up_the_daemon() {
    // It reads the environment of all processes as it ends: the holder is to end before.
    let host = Host::new();
    let server = match Unanswered::mount(54_324) {
        Ok(server) => server,
        Err(why) => return evenkeel_skip::skip(TEST, format!("no FUSE: {why}")),
    };
    let mut holder = Holder::by_exec(server);
    let daemon = Daemon::start(&host, &["--accounting", "procfs"]);
    let (pid, name) = (holder.pid(), "evenkeel-napper");
    // It has joined, so the daemon reads it in each round, too.
    assert!(output(&mut host.evenkeel(["join", &pid.to_string()])).status.success());
    holder.hold_up();
    if !holder.makes_wait(move || drop(fs::read(format!("/proc/{pid}/stat")))) {
        return evenkeel_skip::skip(TEST, "this kernel reads stat without waiting");
    }
    says(&mut host.evenkeel(["join", &pid.to_string()]), 2, "cannot be read in time");
    let other = lone_worker(&host);
    assert!(output(&mut host.evenkeel(["join", &other.pid.to_string()])).status.success());
    says(&mut host.evenkeel(["join", "--name", name]), 2, "no program named");
    host.wait_intervals(2);
    // It has not ended as far as is known.
    let status = host.status();
    assert!(status.iter().any(|run| run["root"] == pid), "{status:?}");
    daemon.end();
    assert!(other.end().success());
}
