//! Settings of the kernel, for which ordinary files stand here: changed, restored, and left alone if
//! another process has changed them since. (Kills in between: `crash`.)

use std::fs;
use std::path::Path;

use evenkeel_journal::{RestoredSetting, Session, SessionOptions, SettingError, UndoOptions, undo};

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
    let setting = serde_json::json!({"setting": {
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
