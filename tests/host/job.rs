//! Ranks of a job, each under `evenkeel run`: one balancer serves all of them, and is gone with the last
//! one. And a task of a batch system, which runs whatever evenkeel finds.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

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

/// The sockets of jobs.
fn sockets(host: &Host) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(host.runtime()).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "sock"));
    paths
}

/// The variables of a task of a step of Slurm that has two on this node.
pub fn as_task(command: &mut Command, local: u32) -> &mut Command {
    command
        .env("SLURM_JOB_ID", "77")
        .env("SLURM_STEP_ID", "3")
        .env("SLURM_NODEID", "0")
        .env("SLURM_LOCALID", local.to_string())
        .env("SLURM_PROCID", local.to_string())
        .env("SLURM_STEP_TASKS_PER_NODE", "2")
        .env("SLURMD_NODENAME", "n7")
}

/// No variable of MPI, and between the launcher and each rank a script.
#[test]
fn tasks_of_a_step_are_balanced_together_and_the_last_one_reports() {
    let test = "tasks_of_a_step_are_balanced_together_and_the_last_one_reports";
    if two_cpus(test).is_none() {
        return;
    }
    let host = Host::new();
    let errors = host.path("errors");
    let ranks = [0, 1].map(|local| {
        let words = [&[EVENKEEL, "run"], &EAGER[..], &["--"], &role("worker")].concat();
        let mut command = host.command("sh");
        command.args(["-c", "\"$0\" \"$@\"; exit $?"]).args(words);
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&errors).unwrap();
        Worker::start_by(as_task(&mut command, local).stderr(file), 1)
    });
    for rank in &ranks {
        rank.wait_moved(&host, 2);
    }
    assert_eq!(host.status().len(), 1);
    assert_eq!(sockets(&host), [host.runtime().join("job-slurm-77.3-0.sock")]);
    let [first, second] = ranks;
    assert!(first.end().success());
    assert_eq!(std::fs::read_to_string(&errors).unwrap(), "", "the first one reports nothing");
    assert!(second.end().success());
    // Not some time later: a batch system kills what is left.
    assert!(host.journals().is_empty() && sockets(&host).is_empty());
    let said = std::fs::read_to_string(&errors).unwrap();
    assert!(said.starts_with("evenkeel: 2 ranks of step 77.3 on n7: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn ranks_that_end_soon_have_no_balancer_and_the_first_reports() {
    let host = Host::new();
    for local in [0, 1] {
        let ended = output(as_task(&mut host.run(&[], &["true"]), local));
        let said = text(&ended.stderr);
        let reports = said.starts_with("evenkeel: step 77.3 on n7: ") && said.lines().count() == 1;
        assert!(if local == 0 { reports } else { said.is_empty() }, "{said}");
        assert!(sockets(&host).is_empty() && host.journals().is_empty());
    }
    // A task that is alone on its node is no rank.
    let mut alone = host.run(&[], &["true"]);
    let ended = output(as_task(&mut alone, 0).env("SLURM_STEP_TASKS_PER_NODE", "1"));
    only_summary(&ended);
    assert!(!text(&ended.stderr).contains("step"), "{ended:?}");
}

/// The variables of a rank of two, as MPICH's hydra sets them for `mpiexec -n 2`.
fn as_rank(command: &mut Command, number: u32) -> &mut Command {
    let number = number.to_string();
    command.env("PMI_RANK", &number).env("PMI_SIZE", "2").env("MPI_LOCALRANKID", &number)
}

/// `mpiexec -n 2 evenkeel run -- ./app`: whether it ends soon or is balanced.
#[test]
fn ranks_of_mpi_print_one_summary_for_all() {
    let host = Host::new();
    // Other launchers do not number the ranks of a machine.
    for is_local_known in [true, false] {
        let summaries = [0, 1].map(|number| {
            let mut command = host.run(&[], &["true"]);
            as_rank(&mut command, number);
            if !is_local_known {
                command.env_remove("MPI_LOCALRANKID");
            }
            text(&output(&mut command).stderr)
        });
        let said = summaries.concat();
        assert!(said.starts_with("evenkeel: an MPI job: "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    if two_cpus("ranks_of_mpi_print_one_summary_for_all").is_none() {
        return;
    }
    let errors = host.path("errors");
    let ranks = [0, 1].map(|number| {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&errors).unwrap();
        let mut command = host.run(&EAGER, &role("worker"));
        Worker::start_by(as_rank(&mut command, number).stderr(file), 1)
    });
    for rank in &ranks {
        rank.wait_moved(&host, 2);
    }
    for rank in ranks {
        assert!(rank.end().success());
    }
    let said = std::fs::read_to_string(&errors).unwrap();
    assert!(said.starts_with("evenkeel: 2 ranks of an MPI job: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// What sent the signal may kill everything next, the supervisor included.
#[test]
fn a_command_that_is_told_to_end_gets_its_cpus_at_once() {
    let test = "a_command_that_is_told_to_end_gets_its_cpus_at_once";
    if two_cpus(test).is_none() {
        return;
    }
    let host = Host::new();
    let script = "trap '' TERM; while :; do :; done & echo $!; while :; do :; done & echo $!; wait";
    for job in [false, true] {
        let flags = [&["--placement", "hard"][..], &EAGER].concat();
        let mut command = host.run(&flags, &["sh", "-c", script]);
        if job {
            as_task(&mut command, 0);
        }
        let mut evenkeel = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = crate::worker::lines_of(evenkeel.stdout.take().unwrap());
        let busy = [0, 1].map(|_| lines.recv().unwrap().parse::<i32>().unwrap());
        wait_for("pins", || busy.iter().all(|pid| host.pins_of(*pid) > 0));
        kill(evenkeel.id() as i32, libc::SIGTERM);
        wait_for("the end of all files", || {
            host.journals().is_empty()
                && sockets(&host).is_empty()
                && host.files_of_runs().is_empty()
        });
        for pid in busy {
            assert!(mask(pid) == all(), "the program runs on, job {job}");
            kill(pid, libc::SIGKILL);
        }
        assert_eq!(ended(&mut evenkeel).code(), Some(0));
        let mut said = String::new();
        std::io::Read::read_to_string(&mut evenkeel.stderr.take().unwrap(), &mut said).unwrap();
        assert!(said.starts_with("evenkeel: ") && said.lines().count() == 1, "{said}");
    }
}

/// A task as the plugin of a batch system starts it.
fn task(host: &Host, options: &str, program: &str, arguments: &[&str]) -> Command {
    let mut command = host.command("sh");
    command.args(["-c", TASK, EVENKEEL]).args(arguments);
    command.env("EVENKEEL_TASK_PROGRAM", program).env("EVENKEEL_TASK_OPTIONS", options);
    command
}

/// The process that is the task is named to it.
const TASK: &str = "EVENKEEL_TASK_PID=$$ exec \"$0\" \"$@\"";

/// A prolog inherits the variables, and may start evenkeel.
#[test]
fn what_inherits_the_variables_of_a_task_is_none() {
    let host = Host::new();
    let mut command =
        host.evenkeel(["run", "-q", "--", "sh", "-c", "env | grep EVENKEEL_TASK; echo own"]);
    let variables = [("EVENKEEL_TASK_PROGRAM", "/bin/false"), ("EVENKEEL_TASK_PID", "1")];
    let run = output(command.envs(variables));
    assert_eq!((run.status.code(), text(&run.stdout)), (Some(0), "own\n".into()), "{run:?}");
}

#[test]
fn a_task_runs_whatever_evenkeel_finds() {
    let host = Host::new();
    let script = "echo \"$0\" \"$@\"; env | grep EVENKEEL_TASK; exit 3";
    let arguments = ["-c", script, "run", "--dry-run", "--"];
    let under = output(&mut task(&host, "", "/bin/sh", &arguments));
    assert_eq!((under.status.code(), text(&under.stdout)), (Some(3), "run --dry-run --\n".into()));
    only_summary(&under);

    let without = |command: &mut Command, why: &str| {
        let ended = output(command);
        assert_eq!(text(&ended.stdout), "run --dry-run --\n", "{ended:?}");
        assert_eq!(ended.status.code(), Some(3));
        only_summary(&ended);
        let said = text(&ended.stderr);
        assert!(
            said.contains(why) && said.ends_with("; the task runs without evenkeel\n"),
            "{said}"
        );
    };
    without(&mut task(&host, "--warp 9", "/bin/sh", &arguments), "--warp");
    without(&mut task(&host, "--cpus 7-3", "/bin/sh", &arguments), "7-3");
    let rank = &mut task(&host, "--threads 2", "/bin/sh", &arguments);
    without(rank.env("PMI_RANK", "0"), "--threads is for OpenMP");
    let config = host.path("home/.config/evenkeel");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.toml"), "[run]\nspeed = 7\n").unwrap();
    without(&mut task(&host, "", "/bin/sh", &arguments), "config.toml");
}

/// A command that was started is neither left nor started again, whatever the kernel refuses evenkeel.
#[test]
fn a_command_is_waited_for_where_the_kernel_refuses_to_wait() {
    let host = Host::new();
    let script = "echo started; prlimit --nofile=0 --pid $PPID; sleep 0.3; exit 3";
    let run = &mut host.evenkeel(["run", "-q", "--", "sh", "-c", script]);
    for command in [run, &mut task(&host, "-q", "/bin/sh", &["-c", script])] {
        let ended = output(command);
        assert_eq!((ended.status.code(), text(&ended.stdout)), (Some(3), "started\n".into()));
        let said = text(&ended.stderr);
        assert!(!said.contains("start") && !said.contains("without evenkeel"), "{said}");
    }
}

/// As much as without evenkeel: the process that it could not fork is not needed.
#[test]
fn a_task_that_cannot_be_forked_runs() {
    if !needs_root("a_task_that_cannot_be_forked_runs") {
        return;
    }
    let host = Host::new();
    let show = ["-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    let words = [&["prlimit", "--nproc=1", "sh", "-c", TASK, EVENKEEL], &show[..]].concat();
    let mut command = by_nobody(&host, &words);
    let under = output(command.env("EVENKEEL_TASK_PROGRAM", "/bin/grep"));
    let plain = output(host.command("/bin/grep").args(show));
    assert!(text(&under.stderr).contains("; the task runs without evenkeel\n"), "{under:?}");
    assert_eq!(text(&under.stdout), text(&plain.stdout), "signals are as without");
}

/// Launchers give each rank a descriptor and wait until all copies of it are closed.
#[test]
fn the_balancer_keeps_no_launcher_waiting() {
    if two_cpus("the_balancer_keeps_no_launcher_waiting").is_none() {
        return;
    }
    let host = Host::new();
    let (launcher, ranks) = nix::unistd::pipe().unwrap();
    let mut command = host.run(&[&["-q"], &EAGER[..]].concat(), &["sh", "-c", "read line"]);
    command.env("PMI_RANK", "0").stdin(Stdio::piped());
    let ranks_fd = ranks.as_raw_fd();
    // SAFETY: one system call, between fork and exec; the descriptor is open in the child.
    unsafe {
        command.pre_exec(move || {
            let kept = std::os::fd::BorrowedFd::borrow_raw(ranks_fd);
            nix::unistd::dup2_raw(kept, 99).map(std::mem::forget).map_err(Into::into)
        });
    }
    let mut first = command.spawn().unwrap();
    drop(ranks);
    wait_for("the balancer, which this rank starts", || host.status().len() == 1);
    let other = rank(&host, &EAGER, 1);
    other.wait_moved(&host, 1);
    drop(first.stdin.take());
    assert!(!ended(&mut first).success(), "read found the end of the file");
    // The balancer serves the other rank, but the command has ended.
    let mut fds = [PollFd::new(launcher.as_fd(), PollFlags::POLLHUP)];
    assert_eq!(
        poll(&mut fds, PollTimeout::from(3000u16)),
        Ok(1),
        "a process holds the launcher's pipe"
    );
    assert_eq!(host.status().len(), 1, "the job's balancer has ended already");
    assert!(other.end().success());
}

/// They would write over each other.
#[test]
fn ranks_that_want_a_report_each_have_their_file() {
    let host = Host::new();
    let path = |name: &str| host.path(name).display().to_string();
    let rank = |flags: &[&str], number: &str| {
        let mut command = host.run(&[&["-q"], flags].concat(), &["true"]);
        output(command.env("PMI_RANK", number).env("PMI_SIZE", "2"))
    };
    for option in ["--json", "--perfetto"] {
        let refused = rank(&[option, &path("one")], "1");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let why = format!("{option} {}: each of the 2 ranks would write over", path("one"));
        assert!(text(&refused.stderr).contains(&why), "{refused:?}");
        assert!(!host.path("one").exists());
        for number in ["0", "1"] {
            let own = rank(&[option, &path(&format!("{option}-%r"))], number);
            assert!(own.status.success(), "{own:?}");
            assert!(host.path(&format!("{option}-{number}")).exists());
        }
    }
}

#[test]
fn a_rank_that_wants_a_report_has_its_own_balancer() {
    let host = Host::new();
    let json = host.path("json");
    let mut command = host.run(&["-q", "--json", json.to_str().unwrap()], &["true"]);
    assert!(output(command.env("PMI_RANK", "0")).status.success());
    assert!(json.exists());
}
