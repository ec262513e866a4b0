//! The supervisor: outlives its writer, keeps none of the writer's descriptors, and is replaced if it is
//! killed.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use evenkeel_journal::{
    SupervisedSession, Supervisor, SupervisorError, TaskRef, UndoOptions, undo,
};

use crate::tools::*;

/// A session in another process that pins one task; and the pid of its supervisor.
fn waiter(dir: &Path, task: &TaskRef, cpu: u32, supervised: bool) -> (Child, i32) {
    let mut command = role("waiter");
    command
        .env("DIR", dir)
        .env("SUPERVISED", if supervised { "1" } else { "0" })
        .env("TASKS", task.tid.to_string())
        .env("CPUS", cpu.to_string())
        .stdout(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let pid = loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "the session ended");
        if let Some((_, number)) = line.split_once("tid=") {
            break number.trim().parse().unwrap();
        }
    };
    child.stdout = Some(output.into_inner());
    (child, pid)
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: two integers; the process is one that the test started.
    unsafe { libc::kill(pid, signal) };
}

#[test]
fn the_supervisor_undoes_when_the_writer_is_killed() {
    let Some((x, _)) = two_cpus("the_supervisor_undoes_when_the_writer_is_killed") else { return };
    let (dir, sleeper) = (directory(), Sleeper::new());
    let (mut child, pid) = waiter(dir.path(), &sleeper.task, x, true);
    let supervisor = TaskRef::of(pid).unwrap();
    assert_eq!(sleeper.mask(), just(x));
    // The writer is alive: `undo` leaves it alone.
    assert_eq!(undo(dir.path(), UndoOptions::default()).live.len(), 1);

    // It is named for what it is.
    let command_line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(command_line.starts_with("evenkeel\0"), "{command_line:?}");
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let names: Vec<String> = threads.map(|thread| name(thread.unwrap()).unwrap()).collect();
    assert!(names.iter().any(|name| name == "evenkeel-super\n"), "{names:?}");
    // It has a session of its own, is in `/`, and has nothing open but its socket.
    // SAFETY: an integer.
    assert_eq!(unsafe { libc::getsid(pid) }, pid);
    let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!(link("cwd"), Path::new("/"));
    assert_eq!(link("fd/1"), Path::new("/dev/null"));
    assert_eq!(link("fd/2"), Path::new("/dev/null"));
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        // A descriptor that was open while the directory was read may be closed.
        let Ok(target) = std::fs::read_link(entry.unwrap().path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        assert!(target == "/dev/null" || target.starts_with("socket:"), "{target}");
    }

    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGTSTP] {
        kill(pid, signal);
    }
    kill(-(child.id() as i32), libc::SIGHUP);
    child.kill().unwrap();
    // The reader of the output gets end of file.
    let mut rest = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    child.wait().unwrap();
    wait_for("the supervisor's undo", || sleeper.mask() == all());
    wait_for("the journal's removal", || journals(dir.path()).is_empty());
    wait_for("the supervisor's exit", || !supervisor.is_alive());
}

#[test]
fn undo_restores_when_writer_and_supervisor_are_killed() {
    let Some((x, _)) = two_cpus("undo_restores_when_writer_and_supervisor_are_killed") else {
        return;
    };
    for supervised in [true, false] {
        let (dir, sleeper) = (directory(), Sleeper::new());
        let (mut child, pid) = waiter(dir.path(), &sleeper.task, x, supervised);
        if supervised {
            kill(pid, libc::SIGKILL);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(sleeper.mask(), just(x));
        let report = undo(dir.path(), UndoOptions::default());
        assert_eq!(report.restored, [sleeper.task], "{report:?}");
        assert_eq!(sleeper.mask(), all());
        assert!(journals(dir.path()).is_empty());
    }
}

#[test]
fn a_program_that_is_no_supervisor_is_an_error() {
    let error = Supervisor::start(Path::new("/no/such/file"), ["x"]).unwrap_err();
    assert!(matches!(error, SupervisorError::Start { .. }), "{error}");
    assert!(error.to_string().contains("evenkeel undo"), "{error}");
    let error = Supervisor::start(Path::new("/bin/true"), ["x"]).unwrap_err();
    assert!(matches!(error, SupervisorError::Silent { .. }), "{error}");
}

const JOURNAL: &str = "EVENKEEL_TEST_JOURNAL=";

/// The role `supervisor` with its variable.
fn command_of_supervisor(journal: &Path) -> Option<(PathBuf, Vec<OsString>)> {
    let mut variable = OsString::from(JOURNAL);
    variable.push(journal);
    let mut words = vec![variable, std::env::current_exe().unwrap().into_os_string()];
    let harness = ["--ignored", "--exact", "roles::supervisor", "--nocapture", "--test-threads=1"];
    words.extend(harness.map(OsString::from));
    Some(("/usr/bin/env".into(), words))
}

/// The processes that supervise this journal.
fn supervisors_of(journal: &Path) -> Vec<i32> {
    let variable = [JOURNAL.as_bytes(), journal.as_os_str().as_bytes()].concat();
    let supervises = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|text| text.split(|byte| *byte == 0).any(|word| word == variable))
    };
    let processes = std::fs::read_dir("/proc").unwrap();
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(supervises).collect()
}

#[test]
fn a_supervisor_that_was_killed_is_replaced_before_the_next_change() {
    let dir = directory();
    let session = open(dir.path());
    let journal = session.journal_path();
    let mut guarded = SupervisedSession::new(session, command_of_supervisor);
    assert!(supervisors_of(&journal).is_empty());
    for _ in 0..2 {
        guarded.supervised().unwrap();
    }
    let [first] = supervisors_of(&journal)[..] else { panic!("one supervisor") };
    kill(first, libc::SIGKILL);
    // It may take a moment to end.
    wait_for("another supervisor", || {
        guarded.supervised().unwrap();
        supervisors_of(&journal).iter().any(|pid| *pid != first)
    });
    let [second] = supervisors_of(&journal)[..] else { panic!("one supervisor") };
    assert!(guarded.close().is_clean());
    assert!(!supervisors_of(&journal).contains(&second), "it was dismissed");
    assert!(journals(dir.path()).is_empty());
}
