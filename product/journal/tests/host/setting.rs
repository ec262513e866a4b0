//! Settings of the kernel, for which ordinary files stand here: changed, restored, and left alone if
//! another process has changed them since. (Kills in between: `crash`.)

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use evenkeel_journal::{RestoredSetting, Session, SessionOptions, SettingError, UndoOptions, undo};
use serde_json::json;

use crate::tools::*;

fn value(file: &Path) -> String {
    fs::read_to_string(file).unwrap().trim().to_owned()
}

#[test]
fn only_a_setting_that_still_is_ours_is_restored() {
    let dir = directory();
    let [ours, same, theirs, gone] =
        ["ours", "same", "theirs", "gone"].map(|name| dir.path().join(name));
    [&ours, &theirs, &gone].into_iter().for_each(|file| fs::write(file, "0\n").unwrap());
    fs::write(&same, "4096\n").unwrap();
    let mut session = open(dir.path());
    for file in [&ours, &theirs, &gone] {
        assert!(session.change_setting(file, "4096").unwrap());
        assert_eq!(value(file), "4096");
    }
    // It had that value already: not ours, and not restored.
    assert!(!session.change_setting(&same, "4096").unwrap());
    assert_eq!(session.restore_setting(&same).unwrap(), RestoredSetting::NotHeld);
    // Changed twice, and restored to its value before both.
    assert!(session.change_setting(&ours, "8192").unwrap());
    fs::write(&theirs, "16\n").unwrap();
    fs::remove_file(&gone).unwrap();
    let report = session.close();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.restored_settings, std::slice::from_ref(&ours));
    assert_eq!(
        (report.kept_settings[0].file.clone(), report.kept_settings.len()),
        (theirs.clone(), 1)
    );
    assert_eq!(report.kept_settings[0].found, "16");
    assert_eq!([&ours, &same, &theirs].map(|file| value(file)), ["0", "4096", "16"]);
    assert!(!gone.exists() && journals(dir.path()).is_empty());
}

#[test]
fn a_setting_is_changed_and_restored_again_and_again() {
    let dir = directory();
    let file = dir.path().join("setting");
    fs::write(&file, "off\n").unwrap();
    let mut session = open(dir.path());
    for _ in 0..3 {
        assert!(session.change_setting(&file, "on").unwrap());
        assert_eq!(session.restore_setting(&file).unwrap(), RestoredSetting::Restored);
        assert_eq!(value(&file), "off");
        assert_eq!(session.restore_setting(&file).unwrap(), RestoredSetting::NotHeld);
    }
    assert!(session.change_setting(&file, "on").unwrap());
    fs::write(&file, "else").unwrap();
    let kept = RestoredSetting::Kept { found: "else".into() };
    assert_eq!(session.restore_setting(&file).unwrap(), kept);
    let report = session.close();
    assert!(report.restored_settings.is_empty() && report.kept_settings.is_empty(), "{report:?}");
    assert_eq!(value(&file), "else");
}

/// An administrator, or udev, names a device anew while it is up.
#[test]
fn a_setting_is_restored_whatever_the_name_of_its_device_has_become() {
    let dir = directory();
    let root = dir.path();
    let devices = [("eth0", 2), ("eth1", 3), ("eth2", 4)];
    let files = devices.map(|(device, index)| put_send_queue(root, device, index, "1"));
    let mut session = open(root);
    for file in &files {
        assert!(session.change_setting(file, "2").unwrap());
    }
    // Only renamed; changed again by the new name; and the name is another device's.
    let renamed = rename_device(root, "eth0", "lan0");
    let again = rename_device(root, "eth1", "lan1");
    assert!(session.change_setting(&again, "4").unwrap());
    let first = rename_device(root, "eth2", "lan2");
    let second = put_send_queue(root, "eth2", 5, "8");
    assert!(session.change_setting(&second, "2").unwrap());
    assert_eq!((value(&first), value(&second)), ("1".to_owned(), "2".to_owned()));
    let report = session.close();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!([&renamed, &again, &first].map(|file| value(file)), ["1", "1", "1"]);
    assert_eq!(value(&second), "8");
    assert_eq!(report.restored_settings, [second, again, renamed]);
    assert!(journals(root).is_empty());
}

#[test]
fn a_setting_of_a_renamed_device_that_another_process_changed_is_left_alone() {
    let dir = directory();
    let root = dir.path();
    let file = put_send_queue(root, "eth0", 2, "1");
    let mut session = open(root);
    assert!(session.change_setting(&file, "2").unwrap());
    let renamed = rename_device(root, "eth0", "lan0");
    fs::write(&renamed, "8\n").unwrap();
    assert!(!session.change_setting(&renamed, "4").unwrap());
    assert_eq!(value(&renamed), "8");
    // By the path of its change.
    assert!(session.change_setting(&renamed, "4").unwrap());
    rename_device(root, "lan0", "eth0");
    assert_eq!(session.restore_setting(&renamed).unwrap(), RestoredSetting::Restored);
    assert_eq!(value(&file), "8");
    assert!(session.close().is_clean());
}

/// As after kill -9; the first entry is of a version that did not write numbers of devices.
#[test]
fn an_undo_finds_devices_by_their_numbers() {
    let dir = directory();
    let root = dir.path();
    let by_path = put_send_queue(root, "eth0", 2, "2");
    let renamed = put_send_queue(root, "lan1", 3, "2");
    // It has the name of a device that is gone, and by chance the value that was set.
    let other = put_send_queue(root, "eth2", 9, "2");
    let net_ns = fs::metadata("/proc/self/ns/net").unwrap().ino();
    let entry = |device: &str, index: Option<u32>| {
        let file = send_queue(root, device);
        let mut setting =
            json!({"file": file, "net_ns": net_ns, "before": "1", "set": "2", "time_ns": 5});
        if let Some(index) = index {
            setting["index"] = json!(index);
        }
        line(&json!({"setting": setting}))
    };
    let entries = [("eth0", None), ("eth1", Some(3)), ("eth2", Some(4))];
    let entries: String = entries.into_iter().map(|(device, index)| entry(device, index)).collect();
    put(root, "1-1.jsonl", (line(&header()) + &entries).as_bytes());
    let report = undo(root, UndoOptions::default());
    assert!(report.is_clean(), "{report:?}");
    assert_eq!([&by_path, &renamed, &other].map(|file| value(file)), ["1", "1", "2"]);
    assert_eq!(report.restored_settings, [renamed, by_path]);
    assert!(journals(root).is_empty());
}

#[test]
fn a_journal_of_settings_stays_small() {
    let dir = directory();
    let file = dir.path().join("setting");
    fs::write(&file, "0\n").unwrap();
    let options = SessionOptions { compact_bytes: Some(4096), ..SessionOptions::default() };
    let mut session = Session::open(dir.path(), options).unwrap();
    for round in 1..=1000 {
        assert!(session.change_setting(&file, &round.to_string()).unwrap());
        let length = fs::metadata(session.journal_path()).unwrap().len();
        assert!(length < 8192, "{length}");
    }
    assert!(session.close().is_clean());
    assert_eq!(value(&file), "0");
}

#[test]
fn a_setting_that_cannot_be_changed_is_reported_and_leaves_no_entry() {
    let dir = directory();
    let mut session = open(dir.path());
    let missing =
        session.change_setting(Path::new("/proc/sys/net/no_such_setting"), "1").unwrap_err();
    assert!(matches!(missing, SettingError::Unreadable { .. }), "{missing}");
    assert!(missing.to_string().contains("cannot be read: No such file"), "{missing}");
    // Not even root may write this one.
    let refused = session.change_setting(Path::new("/proc/sys/kernel/ostype"), "1").unwrap_err();
    assert!(matches!(refused, SettingError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("\"1\" was refused"), "{refused}");
    let report = session.close();
    assert!(report.is_clean() && report.restored_settings.is_empty(), "{report:?}");
}

#[test]
fn a_setting_of_another_network_namespace_is_left_alone() {
    let dir = directory();
    let file = dir.path().join("setting");
    fs::write(&file, "7\n").unwrap();
    let setting = json!({"setting": {
        "file": file, "net_ns": 1, "before": "0", "set": "7", "time_ns": 5
    }});
    let text = line(&header()) + &line(&setting);
    let path = put(dir.path(), "1-1.jsonl", text.as_bytes());
    let report = undo(dir.path(), UndoOptions::default());
    assert_eq!(report.errors.len(), 1, "{report:?}");
    assert!(report.errors[0].to_string().contains("another network namespace"), "{report:?}");
    assert_eq!(value(&file), "7");
    assert!(path.exists(), "it can be undone in its namespace");
}
