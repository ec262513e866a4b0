//! A journal that cannot be written: nothing is changed, and the error says why.

use std::os::unix::fs::PermissionsExt;

use evenkeel_journal::{JournalError, PlaceError, Session, SessionOptions, UndoOptions, undo};

use crate::tools::*;

#[test]
fn a_journal_that_was_removed_stops_the_session() {
    let Some((x, y)) = two_cpus("a_journal_that_was_removed_stops_the_session") else { return };
    let (dir, a, b) = (directory(), Sleeper::new(), Sleeper::new());
    let mut session = open(dir.path());
    session.place(&a.task, x).unwrap();
    std::fs::remove_file(session.journal_path()).unwrap();
    for task in [&a.task, &b.task] {
        let error = session.place(task, y).unwrap_err();
        assert!(matches!(error, PlaceError::Journal(JournalError::Removed { .. })), "{error}");
    }
    assert_eq!((a.mask(), b.mask()), (just(x), all()));
    // What was done is still undone.
    let report = session.close();
    assert_eq!(report.restored, [a.task]);
    assert_eq!(a.mask(), all());
}

#[test]
fn a_journal_that_was_replaced_stops_the_session() {
    let Some((x, _)) = two_cpus("a_journal_that_was_replaced_stops_the_session") else { return };
    let (dir, a) = (directory(), Sleeper::new());
    let mut session = open(dir.path());
    let path = session.journal_path();
    std::fs::rename(&path, path.with_extension("away")).unwrap();
    std::fs::write(&path, "mine\n").unwrap();
    assert!(session.place(&a.task, x).is_err());
    assert_eq!(a.mask(), all());
    session.close();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine\n");
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error() {
    let dir = directory();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o500)).unwrap();
    match Session::open(dir.path(), SessionOptions::default()) {
        Err(error) => assert!(matches!(error, JournalError::Directory { .. }), "{error}"),
        Ok(_) => println!(
            "a_directory_that_cannot_be_written_is_an_error: root may; see the test `full`"
        ),
    }
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
}

fn run_role(role_name: &str) {
    let dir = directory();
    let output = role(role_name).env("DIR", dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}{output:?}", output.status);
    if let Some(at) = text.find("skipped") {
        println!("{role_name}: {}", &text[at..]);
    } else {
        assert!(text.contains("passed"), "{text}");
    }
    let report = undo(dir.path(), UndoOptions::default());
    assert!(report.is_clean() && report.restored.is_empty(), "{report:?}");
    assert!(journals(dir.path()).is_empty());
}

#[test]
fn a_file_size_limit_stops_the_session() {
    run_role("limited");
}

#[test]
fn a_full_or_read_only_file_system_stops_the_session() {
    if two_cpus("a_full_or_read_only_file_system_stops_the_session").is_some() {
        run_role("full");
    }
}
