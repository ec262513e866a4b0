//! Journals below /tmp, from which systemd-tmpfiles removes what has not changed for days.

use std::fs::{self, File};
use std::process::Command;

use crate::tools::*;

#[test]
fn a_directory_is_locked_as_long_as_a_session_lives() {
    let dir = directory();
    let setting = dir.path().join("setting");
    fs::write(&setting, "0\n").unwrap();
    let other = File::open(dir.path()).unwrap();
    // While systemd-tmpfiles is at work there, no process waits.
    other.try_lock().unwrap();
    let mut session = open(dir.path());
    other.unlock().unwrap();
    assert!(session.change_setting(&setting, "1").unwrap());
    assert!(other.try_lock().is_err());
    // The lock excludes no other process of ours.
    other.try_lock_shared().unwrap();
    other.unlock().unwrap();
    assert!(session.close().is_clean());
    // A child that another test has forked has the descriptor until it calls exec.
    wait_for("the end of the lock", || other.try_lock().is_ok());
    other.unlock().unwrap();
    let session = open(dir.path());
    assert!(other.try_lock().is_err());
    drop(session);
}

#[test]
fn systemd_tmpfiles_leaves_the_journal_of_a_session() {
    let test = "systemd_tmpfiles_leaves_the_journal_of_a_session";
    let tmp = directory();
    let rules = directory();
    let rules = rules.path().join("age.conf");
    // Whatever was there before this moment is too old.
    fs::write(&rules, format!("e {} - - - 0\n", tmp.path().display())).unwrap();
    let clean = || Command::new("systemd-tmpfiles").arg("--clean").arg(&rules).status();
    let dir = tmp.path().join("evenkeel-1");
    let session = open(&dir);
    match clean() {
        Ok(status) => assert!(status.success()),
        Err(why) => return evenkeel_skip::skip(test, format!("no systemd-tmpfiles: {why}")),
    }
    assert_eq!(journals(&dir).len(), 1);
    assert!(session.close().is_clean());
    wait_for("the end of the directory", || clean().unwrap().success() && !dir.exists());
}
