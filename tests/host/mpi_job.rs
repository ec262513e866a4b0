//! Ranks of an MPI job, each under `evenkeel run`: one balancer serves all of them.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::roles::role;
use crate::support::*;
use crate::worker::Worker;

/// A rank with one busy thread. All ranks have one parent, the launcher: here the test program.
fn rank(host: &Host, flags: &[&str], number: u32) -> Worker {
    let mut command = host.run(flags, &role("worker"));
    Worker::start_by(command.env("PMI_RANK", number.to_string()), 1)
}

#[test]
fn ranks_of_a_job_are_balanced_together_by_one() {
    if two_cpus("ranks_of_a_job_are_balanced_together_by_one").is_none() {
        return;
    }
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let flags = [&["--placement", placement][..], &EAGER].concat();
        let ranks = [0, 1].map(|number| rank(&host, &flags, number));
        // A single rank has no other to exchange places with.
        for rank in &ranks {
            rank.wait_moved(&host, 2);
        }
        let runs = host.status();
        assert_eq!(runs.len(), 1, "{runs:?}");
        assert!(ranks.iter().any(|rank| runs[0]["root"] == rank.pid), "{runs:?}");
        let [first, second] = ranks;
        assert!(first.end().success());
        // The remaining rank is balanced on, whichever of the two had started the balancer.
        assert_eq!(host.status().len(), 1);
        assert!(second.end().success());
        wait_for("the end of the job's balancer", || host.journals().is_empty());
        assert!(host.status().is_empty());
    }
}

/// Launchers give each rank a descriptor and wait until all copies of it are closed.
#[test]
fn the_balancer_keeps_no_launcher_waiting() {
    let host = Host::new();
    let (launcher, ranks) = nix::unistd::pipe().unwrap();
    let mut command = host.run(&["-q"], &["true"]);
    command.env("PMI_RANK", "0");
    let ranks_fd = ranks.as_raw_fd();
    // SAFETY: one system call, between fork and exec; the descriptor is open in the child.
    unsafe {
        command.pre_exec(move || {
            let kept = std::os::fd::BorrowedFd::borrow_raw(ranks_fd);
            nix::unistd::dup2_raw(kept, 99).map(std::mem::forget).map_err(Into::into)
        });
    }
    assert!(output(&mut command).status.success());
    drop(ranks);
    // The balancer still waits for further ranks, but the command has ended.
    let mut fds = [PollFd::new(launcher.as_fd(), PollFlags::POLLHUP)];
    assert_eq!(
        poll(&mut fds, PollTimeout::from(3000u16)),
        Ok(1),
        "a process holds the launcher's pipe"
    );
    assert!(!host.journals().is_empty(), "the job's balancer has ended already");
}

#[test]
fn a_rank_that_wants_a_report_has_its_own_balancer() {
    let host = Host::new();
    let json = host.path("json");
    let mut command = host.run(&["-q", "--json", json.to_str().unwrap()], &["true"]);
    assert!(output(command.env("PMI_RANK", "0")).status.success());
    assert!(json.exists());
}
