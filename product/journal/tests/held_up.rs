//! A thread of a process that makes each reader of its `stat` wait: nothing waits for it, and what was
//! done to it is not forgotten. In a test program of its own: here all reads are in time.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../control/tests/common/fuse.rs"]
mod fuse;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use evenkeel_control::guard_reads;
use evenkeel_journal::{
    Placed, Session, SessionOptions, TaskError, TaskRef, UndoOptions, affinity, undo,
};

use self::fuse::{Holder, Unanswered, in_time, wait_for};

const TEST: &str = "what_is_read_late_is_neither_waited_for_nor_forgotten";
const ROLE: &str = "EVENKEEL_TEST_UNDOES";

/// Undoes all journals of a folder, in a process that has read no other one.
#[test]
#[ignore = "a role"]
fn role_of_the_undo() {
    let Some(dir) = std::env::var_os(ROLE).map(PathBuf::from) else { return };
    undo(&dir, UndoOptions { force: true, ..UndoOptions::default() });
}

#[test]
fn what_is_read_late_is_neither_waited_for_nor_forgotten() {
    let server = match Unanswered::mount(54_323) {
        Ok(server) => server,
        Err(why) => return evenkeel_skip::skip(TEST, format!("no FUSE: {why}")),
    };
    let all = affinity::get(std::process::id() as i32).unwrap();
    let Some(cpu) = all.iter().next().filter(|_| all.len() > 1) else {
        return evenkeel_skip::skip(TEST, "it needs two CPUs");
    };
    let mut holder = Holder::by_exec(server);
    let dir = tempfile::tempdir().unwrap();
    let mut session = Session::open(dir.path(), SessionOptions::default()).unwrap();
    let pid = holder.pid();
    let task = TaskRef::of(pid).unwrap();
    assert_eq!(session.place(&task, cpu).unwrap(), Placed::Pinned);
    let pinned = affinity::get(pid).unwrap();

    holder.hold_up();
    if !holder.makes_wait(move || drop(fs::read(format!("/proc/{pid}/stat")))) {
        return evenkeel_skip::skip(TEST, "this kernel reads stat without waiting");
    }
    guard_reads();
    let report = in_time(move || {
        assert!(task.is_alive() && !task.is_surely_alive());
        assert!(matches!(TaskRef::of(pid), Err(TaskError::Late { .. })));
        assert!(session.place(&task, cpu).unwrap_err().is_late());
        assert!(session.release(&task).unwrap_err().is_late());
        session.add_program(&task).unwrap();
        session.close()
    });
    assert_eq!((report.gone, report.errors[0].task), (vec![], Some(task)));
    assert_eq!(affinity::get(pid).unwrap(), pinned);

    holder.let_go();
    wait_for("its exec", || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "sleep\n");
    let undo = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "role_of_the_undo"])
        .env(ROLE, dir.path())
        .stdout(Stdio::null())
        .status();
    assert!(undo.unwrap().success());
    assert_eq!(affinity::get(pid).unwrap(), all);
}
