//! RSS indirection tables, for which ordinary files stand here: changed, restored, and left alone if
//! another process has changed them since. (Kills in between: `crash`.)

use std::fs;
use std::path::Path;

use evenkeel_journal::{
    ChangedTable, Session, Standing, TableError, UndoOptions, ethtool::EthtoolError, undo,
};
use serde_json::json;

use crate::tools::*;

fn change(session: &mut Session, root: &Path, device: &str, set: &[u32]) -> ChangedTable {
    session.change_table(root, device, set).unwrap()
}

#[test]
fn only_a_table_that_still_is_ours_is_restored() {
    let dir = directory();
    let root = dir.path();
    let files = ["ours", "theirs", "same", "gone"].map(|device| put_table(root, device, "0 1 0 1"));
    let mut session = open(root);
    for device in ["ours", "theirs", "gone"] {
        assert_eq!(change(&mut session, root, device, &[0, 1, 1, 1]), ChangedTable::Changed);
    }
    // It had that table already: not ours.
    assert_eq!(change(&mut session, root, "same", &[0, 1, 0, 1]), ChangedTable::Unchanged);
    assert_eq!(change(&mut session, root, "nosuch", &[0, 1]), ChangedTable::Gone);
    // As after the driver has made another number of buckets.
    assert_eq!(change(&mut session, root, "same", &[0, 1]), ChangedTable::Gone);
    // Changed twice, and restored to its table before both.
    assert_eq!(change(&mut session, root, "ours", &[1, 1, 1, 1]), ChangedTable::Changed);
    fs::write(&files[1], "0 0 0 0\n").unwrap();
    fs::remove_file(&files[3]).unwrap();
    let report = session.close();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.restored_tables, ["ours"]);
    let kept = &report.kept_tables[..];
    assert!(
        matches!(kept, [kept] if kept.device == "theirs" && kept.found == "0: 4"),
        "{report:?}"
    );
    let left = [0, 1, 2].map(|file: usize| table(&files[file]));
    assert_eq!(left, [[0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]]);
    assert!(!files[3].exists() && journals(root).is_empty());
}

/// An administrator, or udev, names a device anew while it is up.
#[test]
fn a_table_is_restored_whatever_the_name_of_its_device_has_become() {
    let dir = directory();
    let root = dir.path();
    let rename = |from: &str, to: &str| {
        let to = root.join("ethtool").join(to);
        fs::rename(root.join("ethtool").join(from), &to).unwrap();
        to
    };
    for device in ["eth0", "eth1", "eth2"] {
        put_table(root, device, "0 1");
    }
    let mut session = open(root);
    for device in ["eth0", "eth1", "eth2"] {
        assert_eq!(change(&mut session, root, device, &[1, 1]), ChangedTable::Changed);
    }
    // Only named anew; changed again by the new name; and the name is another device's.
    let renamed = rename("eth0", "lan0");
    let again = rename("eth1", "lan1");
    assert_eq!(change(&mut session, root, "lan1", &[0, 0]), ChangedTable::Changed);
    let first = rename("eth2", "lan2");
    let second = put_table(root, "eth2", "1 0");
    assert_eq!(change(&mut session, root, "eth2", &[0, 0]), ChangedTable::Changed);
    assert_eq!((table(&first), table(&second)), (vec![0, 1], vec![0, 0]));
    let report = session.close();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!([&renamed, &again, &first].map(|file| table(file)), [[0, 1], [0, 1], [0, 1]]);
    assert_eq!(table(&second), [1, 0]);
    assert!(journals(root).is_empty());
}

#[test]
fn a_table_that_another_process_changed_is_let_go() {
    let dir = directory();
    let root = dir.path();
    let file = put_table(root, "eth0", "0 1");
    let mut session = open(root);
    assert_eq!(change(&mut session, root, "eth0", &[1, 1]), ChangedTable::Changed);
    // Also if it is what the table was before.
    fs::write(&file, "0 1").unwrap();
    assert_eq!(change(&mut session, root, "eth0", &[0, 0]), ChangedTable::LetGo);
    assert!(session.tables().is_empty());
    let report = session.close();
    assert!(report.is_clean() && report.restored_tables.is_empty(), "{report:?}");
    assert_eq!(table(&file), [0, 1]);
}

#[test]
fn a_table_that_was_set_to_that_of_before_is_ours_no_more() {
    let dir = directory();
    let root = dir.path();
    let file = put_table(root, "eth0", "0 1");
    let mut session = open(root);
    assert_eq!(change(&mut session, root, "eth0", &[1, 1]), ChangedTable::Changed);
    assert_eq!(change(&mut session, root, "eth0", &[0, 1]), ChangedTable::Changed);
    assert!(session.tables().is_empty());
    let report = session.close();
    assert!(report.is_clean() && report.restored_tables.is_empty(), "{report:?}");
    assert_eq!(table(&file), [0, 1]);
}

#[test]
fn a_card_without_a_table_is_refused_by_name_and_leaves_no_entry() {
    let dir = directory();
    let mut session = open(dir.path());
    // The kernel's own answers.
    let root = Path::new("/");
    assert_eq!(session.change_table(root, "lo", &[0, 0]).unwrap(), ChangedTable::Gone);
    assert_eq!(session.change_table(root, "nosuch0", &[0, 0]).unwrap(), ChangedTable::Gone);
    assert!(session.tables().is_empty());
    put_table(dir.path(), "eth0", "no numbers");
    let why = session.change_table(dir.path(), "eth0", &[0, 0]).unwrap_err();
    assert!(matches!(why, TableError::Device(EthtoolError::Refused { .. })), "{why}");
    assert!(session.close().is_clean());
}

#[test]
fn a_table_of_another_network_namespace_is_left_alone() {
    let dir = directory();
    let root = dir.path();
    let file = put_table(root, "eth0", "1 1");
    let entry = json!({"table": {
        "root": root, "device": "eth0", "index": 1, "net_ns": 1, "before": [0, 1],
        "replaces": null, "set": [1, 1], "time_ns": 5
    }});
    let path = put(root, "1-1.jsonl", (line(&header()) + &line(&entry)).as_bytes());
    let report = undo(root, UndoOptions::default());
    assert_eq!(report.errors.len(), 1, "{report:?}");
    assert!(report.errors[0].to_string().contains("another network namespace"), "{report:?}");
    assert_eq!(table(&file), [1, 1]);
    assert!(path.exists(), "it can be undone in its namespace");
}

#[test]
fn what_stands_names_the_tables_and_the_settings() {
    let dir = directory();
    let root = dir.path();
    let file = put_table(root, "eth0", "0 1");
    let setting = root.join("xps_cpus");
    fs::write(&setting, "0\n").unwrap();
    let mut session = open(root);
    assert_eq!(change(&mut session, root, "eth0", &[1, 1]), ChangedTable::Changed);
    assert!(session.change_setting(&setting, "2").unwrap());
    let journal = session.persist().unwrap();
    let entries = fs::read_to_string(&journal).unwrap();
    fs::remove_file(&journal).unwrap();
    // The header names this process, which lives.
    let (_, entries) = entries.split_once('\n').unwrap();
    put(root, "2000000000-5.jsonl", (line(&header()) + entries).as_bytes());
    let standing = Standing::read(root);
    assert_eq!((standing.tables.len(), standing.settings.len()), (1, 1), "{standing:?}");
    assert_eq!(
        (&standing.tables[0].before[..], &standing.tables[0].set[..]),
        (&[0, 1][..], &[1, 1][..])
    );
    // A living session has changed it since: that ends first.
    let mut above = open(root);
    assert_eq!(change(&mut above, root, "eth0", &[0, 0]), ChangedTable::Changed);
    let all_kinds = UndoOptions { force: false, persistent: true };
    let report = undo(root, all_kinds);
    assert!(report.errors[0].to_string().contains("by a living process, too"), "{report:?}");
    assert!(above.close().is_clean());
    assert!(undo(root, all_kinds).is_clean());
    assert_eq!((table(&file), fs::read_to_string(&setting).unwrap()), (vec![0, 1], "0".to_owned()));
    assert_eq!(Standing::read(root), Standing::default());
}
