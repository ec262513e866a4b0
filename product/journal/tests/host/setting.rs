//! Knobs of the kernel, for which ordinary files stand here: turned, turned back, and left to whoever
//! turned them since. (Being killed in between: `crash`.)

use std::fs;
use std::path::Path;

use evenkeel_journal::{SettingError, TurnedBack, UndoOptions, undo};

use crate::tools::*;

fn says(file: &Path) -> String {
    fs::read_to_string(file).unwrap().trim().to_owned()
}

#[test]
fn what_we_turned_is_turned_back_and_nothing_else() {
    let dir = directory();
    let [ours, same, theirs, gone] =
        ["ours", "same", "theirs", "gone"].map(|name| dir.path().join(name));
    [&ours, &theirs, &gone].into_iter().for_each(|file| fs::write(file, "0\n").unwrap());
    fs::write(&same, "4096\n").unwrap();
    let mut session = open(dir.path());
    for file in [&ours, &theirs, &gone] {
        assert!(session.turn(file, "4096").unwrap());
        assert_eq!(says(file), "4096");
    }
    // It said so already: not ours, and not turned back.
    assert!(!session.turn(&same, "4096").unwrap());
    assert_eq!(session.turn_back(&same).unwrap(), TurnedBack::NotHeld);
    // Turned twice, and back to what it said before both.
    assert!(session.turn(&ours, "8192").unwrap());
    fs::write(&theirs, "16\n").unwrap();
    fs::remove_file(&gone).unwrap();
    let report = session.close();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.turned_back, std::slice::from_ref(&ours));
    assert_eq!(
        (report.kept_settings[0].file.clone(), report.kept_settings.len()),
        (theirs.clone(), 1)
    );
    assert_eq!(report.kept_settings[0].found, "16");
    assert_eq!([&ours, &same, &theirs].map(|file| says(file)), ["0", "4096", "16"]);
    assert!(!gone.exists() && journals(dir.path()).is_empty());
}

#[test]
fn one_at_a_time() {
    let dir = directory();
    let file = dir.path().join("knob");
    fs::write(&file, "off\n").unwrap();
    let mut session = open(dir.path());
    for _ in 0..3 {
        assert!(session.turn(&file, "on").unwrap());
        assert_eq!(session.turn_back(&file).unwrap(), TurnedBack::Restored);
        assert_eq!(says(&file), "off");
        assert_eq!(session.turn_back(&file).unwrap(), TurnedBack::NotHeld);
    }
    assert!(session.turn(&file, "on").unwrap());
    fs::write(&file, "else").unwrap();
    let kept = TurnedBack::Kept { found: "else".into() };
    assert_eq!(session.turn_back(&file).unwrap(), kept);
    let report = session.close();
    assert!(report.turned_back.is_empty() && report.kept_settings.is_empty(), "{report:?}");
    assert_eq!(says(&file), "else");
}

#[test]
fn what_cannot_be_turned_is_said_and_leaves_no_trace() {
    let dir = directory();
    let mut session = open(dir.path());
    let missing = session.turn(Path::new("/proc/sys/net/no_such_knob"), "1").unwrap_err();
    assert!(matches!(missing, SettingError::Unreadable { .. }), "{missing}");
    assert!(missing.to_string().contains("cannot be read: No such file"), "{missing}");
    // Nobody may write this one.
    let refused = session.turn(Path::new("/proc/sys/kernel/ostype"), "1").unwrap_err();
    assert!(matches!(refused, SettingError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("\"1\" was refused"), "{refused}");
    let report = session.close();
    assert!(report.is_clean() && report.turned_back.is_empty(), "{report:?}");
}

#[test]
fn a_knob_of_another_network_namespace_is_left_to_who_is_there() {
    let dir = directory();
    let file = dir.path().join("knob");
    fs::write(&file, "7\n").unwrap();
    let setting = serde_json::json!({"setting": {
        "file": file, "net_ns": 1, "before": "0", "set": "7", "time_ns": 5
    }});
    let text = line(&header()) + &line(&setting);
    let path = put(dir.path(), "1-1.jsonl", text.as_bytes());
    let report = undo(dir.path(), UndoOptions::default());
    assert_eq!(report.errors.len(), 1, "{report:?}");
    assert!(report.errors[0].to_string().contains("another network namespace"), "{report:?}");
    assert_eq!(says(&file), "7");
    assert!(path.exists(), "it is undone there");
}
