//! Interrupt lines, for which ordinary files stand here: moved, restored, and left alone if another
//! process has changed them since, or if their number is another line's. (Kills in between: `crash`.)

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_journal::{
    ChangedLines, DisplacedLine, LetGoLine, MovedLine, Session, SettingError, UndoOptions, undo,
};

use crate::tools::*;

fn value(file: &Path) -> String {
    fs::read_to_string(file).unwrap().trim().to_owned()
}

fn shift(session: &mut Session, root: &Path, number: u32, cpus: &str) -> MovedLine {
    session.move_line(root, number, "eth0", &cpus.parse().unwrap()).unwrap()
}

/// Makes the file that lists the CPUs online below this root, with these CPUs.
fn put_online(root: &Path, cpus: &str) -> PathBuf {
    let online = root.join("sys/devices/system/cpu/online");
    fs::create_dir_all(online.parent().unwrap()).unwrap();
    fs::write(&online, format!("{cpus}\n")).unwrap();
    online
}

#[test]
fn only_a_line_that_still_is_ours_is_restored() {
    let dir = directory();
    let root = dir.path();
    let files = [1, 2, 3, 4, 5].map(|number| put_line(root, number, "eth0", "0-1"));
    let mut session = open(root);
    for number in 1..=4 {
        assert_eq!(shift(&mut session, root, number, "1"), MovedLine::Moved);
    }
    // It had that affinity already: not ours.
    assert_eq!(shift(&mut session, root, 5, "0-1"), MovedLine::Unchanged);
    // Moved twice, and restored to its affinity before both.
    assert_eq!(shift(&mut session, root, 1, "0"), MovedLine::Moved);
    assert_eq!(files.each_ref().map(|file| value(file)), ["0", "1", "1", "1", "0-1"]);
    // Changed by another process; another line's number now; gone.
    fs::write(&files[1], "0\n").unwrap();
    put_line(root, 3, "nvme0", "1");
    fs::remove_dir_all(root.join("proc/irq/4")).unwrap();
    let report = session.close();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.restored_settings, [files[0].clone()]);
    let kept = &report.kept_settings[..];
    assert!(matches!(kept, [kept] if kept.file == files[1] && kept.found == "0"), "{report:?}");
    let left = [0, 1, 2, 4].map(|index: usize| value(&files[index]));
    assert_eq!(left, ["0-1", "0", "1", "0-1"]);
    assert!(journals(root).is_empty());
}

#[test]
fn a_line_that_another_process_moved_is_let_go() {
    let dir = directory();
    let root = dir.path();
    let files = [1, 2, 3].map(|number| put_line(root, number, "eth0", "0-1"));
    let mut session = open(root);
    for number in 1..=3 {
        assert_eq!(shift(&mut session, root, number, "1"), MovedLine::Moved);
    }
    assert_eq!(session.release_changed_lines().unwrap(), ChangedLines::default());
    // Also if it was set to what it had before.
    fs::write(&files[0], "0-1\n").unwrap();
    fs::write(&files[1], "0\n").unwrap();
    let let_go = MovedLine::LetGo { found: "0-1".parse().unwrap() };
    assert_eq!(shift(&mut session, root, 1, "0"), let_go);
    let found = "0".parse().unwrap();
    let let_go = vec![LetGoLine { number: 2, name: "eth0".to_owned(), found }];
    let changed = ChangedLines { let_go, ..ChangedLines::default() };
    assert_eq!(session.release_changed_lines().unwrap(), changed);
    assert_eq!(session.lines().len(), 1);
    // Its number is another line's: neither is touched.
    put_line(root, 3, "nvme0", "1");
    assert_eq!(shift(&mut session, root, 3, "0"), MovedLine::Gone);
    let report = session.close();
    assert!(report.is_clean() && report.restored_settings.is_empty(), "{report:?}");
    assert_eq!(files.map(|file| value(&file)), ["0-1", "0", "1"]);
}

/// Linux gives a line of which all CPUs are offline those that are online.
#[test]
fn a_line_whose_cpu_went_offline_is_set_back_and_not_let_go() {
    let dir = directory();
    let root = dir.path();
    let online = put_online(root, "0-3");
    let files = [1, 2, 3, 4].map(|number| put_line(root, number, "eth0", "0-3"));
    let mut session = open(root);
    for number in 1..=4 {
        assert_eq!(shift(&mut session, root, number, "3"), MovedLine::Moved);
    }
    fs::write(&online, "0-2\n").unwrap();
    fs::write(&files[0], "0-2\n").unwrap();
    fs::write(&files[1], "0\n").unwrap();
    fs::write(&files[2], "0-2\n").unwrap();
    assert_eq!(shift(&mut session, root, 1, "2"), MovedLine::Moved);
    let (name, offline) = ("eth0".to_owned(), just(3));
    let changed = ChangedLines {
        let_go: vec![LetGoLine { number: 2, name: name.clone(), found: just(0) }],
        displaced: vec![DisplacedLine { number: 3, name, offline }],
    };
    assert_eq!(session.release_changed_lines().unwrap(), changed);
    assert_eq!(files.each_ref().map(|file| value(file)), ["2", "0", "0-3", "3"]);
    // It may be moved again. The last one is displaced later.
    assert_eq!(shift(&mut session, root, 3, "1"), MovedLine::Moved);
    fs::write(&files[3], "0-2\n").unwrap();
    let report = session.close();
    assert!(report.is_clean() && report.kept_settings.is_empty(), "{report:?}");
    assert_eq!(files.map(|file| value(&file)), ["0-3", "0", "0-3", "0-3"]);
}

/// The CPU goes offline, and comes again if `is_back`. The kernel makes another directory of its caches.
fn cycle(root: &Path, cpu: u32, is_back: bool) {
    let cpu = root.join(format!("sys/devices/system/cpu/cpu{cpu}"));
    // Made before the other one goes, so that it has another inode number, as in sysfs.
    let [cache, next] = ["cache", "next"].map(|name| cpu.join(name));
    fs::create_dir_all(&next).unwrap();
    if cache.exists() {
        fs::remove_dir(&cache).unwrap();
    }
    if is_back {
        fs::rename(&next, &cache).unwrap();
    }
}

#[test]
fn a_line_whose_cpu_went_and_came_again_is_set_back_and_not_let_go() {
    let dir = directory();
    let root = dir.path();
    let online = put_online(root, "0-3");
    (1..4).for_each(|cpu| cycle(root, cpu, true));
    let files = [1, 2, 3, 4, 5].map(|number| put_line(root, number, "eth0", "0-3"));
    let mut session = open(root);
    for (number, cpu) in [(1, "3"), (2, "3"), (3, "2"), (4, "1"), (5, "3")] {
        assert_eq!(shift(&mut session, root, number, cpu), MovedLine::Moved);
    }
    for _ in 0..2 {
        assert_eq!(session.release_changed_lines().unwrap(), ChangedLines::default());
    }
    // CPU 3 goes and comes. Meanwhile another process moves the other lines.
    cycle(root, 3, true);
    fs::write(&files[0], "0-2\n").unwrap();
    fs::write(&files[1], "0\n").unwrap();
    fs::write(&files[2], "0-1,3\n").unwrap();
    fs::write(&files[4], "0-3\n").unwrap();
    let name = || "eth0".to_owned();
    let let_go = [(2, "0"), (3, "0-1,3"), (5, "0-3")].map(|(number, found)| {
        let found = found.parse().unwrap();
        LetGoLine { number, name: name(), found }
    });
    let displaced = vec![DisplacedLine { number: 1, name: name(), offline: just(3) }];
    let changed = ChangedLines { let_go: let_go.into(), displaced };
    assert_eq!(session.release_changed_lines().unwrap(), changed);
    assert_eq!(value(&files[0]), "0-3");
    // Moved to CPU 3 again, which stays: the cycle of before explains nothing any more.
    assert_eq!(shift(&mut session, root, 1, "3"), MovedLine::Moved);
    assert_eq!(session.release_changed_lines().unwrap(), ChangedLines::default());
    fs::write(&files[0], "0-2\n").unwrap();
    let found = "0-2".parse().unwrap();
    let let_go = vec![LetGoLine { number: 1, name: name(), found }];
    let changed = ChangedLines { let_go, ..ChangedLines::default() };
    assert_eq!(session.release_changed_lines().unwrap(), changed);
    // CPU 1 goes, and then CPU 4 comes, which the line does not get.
    cycle(root, 1, false);
    fs::write(&files[3], "0,2-3\n").unwrap();
    fs::write(&online, "0,2-4\n").unwrap();
    let displaced = vec![DisplacedLine { number: 4, name: name(), offline: just(1) }];
    let changed = ChangedLines { displaced, ..ChangedLines::default() };
    assert_eq!(session.release_changed_lines().unwrap(), changed);
    assert_eq!(value(&files[3]), "0-3");
    assert!(session.close().is_clean());
}

/// When the machine is suspended, each CPU that goes finds those gone that went before it.
#[test]
fn lines_whose_cpus_went_together_are_set_back_and_not_let_go() {
    let dir = directory();
    let root = dir.path();
    put_online(root, "0-3");
    (1..4).for_each(|cpu| cycle(root, cpu, true));
    let files = [1, 2, 3].map(|number| put_line(root, number, "eth0", "0-3"));
    let mut session = open(root);
    for (number, cpu) in [(1, "2"), (2, "3"), (3, "3")] {
        assert_eq!(shift(&mut session, root, number, cpu), MovedLine::Moved);
    }
    assert_eq!(session.release_changed_lines().unwrap(), ChangedLines::default());
    // CPU 2 goes, then CPU 3; both come again. Another process moves the last line, away from CPU 1,
    // which stayed.
    [2, 3].into_iter().for_each(|cpu| cycle(root, cpu, true));
    fs::write(&files[0], "0-1,3\n").unwrap();
    fs::write(&files[1], "0-1\n").unwrap();
    fs::write(&files[2], "0\n").unwrap();
    let displaced = [(1, 2), (2, 3)].map(|(number, cpu)| {
        let name = "eth0".to_owned();
        DisplacedLine { number, name, offline: just(cpu) }
    });
    let let_go = vec![LetGoLine { number: 3, name: "eth0".to_owned(), found: just(0) }];
    let changed = ChangedLines { let_go, displaced: displaced.into() };
    assert_eq!(session.release_changed_lines().unwrap(), changed);
    assert_eq!(files.map(|file| value(&file)), ["0-3", "0-3", "0"]);
}

#[test]
fn a_line_of_a_device_that_is_down_is_still_held() {
    let dir = directory();
    let root = dir.path();
    let file = put_line(root, 7, "eth0", "0-1");
    let mut session = open(root);
    assert_eq!(shift(&mut session, root, 7, "1"), MovedLine::Moved);
    // Down, up, and down again: the kernel keeps the affinity.
    for actions in ["", "eth0\n", ""] {
        fs::write(root.join("sys/kernel/irq/7/actions"), actions).unwrap();
        assert_eq!(session.release_changed_lines().unwrap(), ChangedLines::default());
        assert_eq!(session.lines().len(), 1, "{actions:?}");
    }
    let report = session.close();
    assert_eq!(report.restored_settings, std::slice::from_ref(&file), "{report:?}");
    assert_eq!(value(&file), "0-1");
}

#[test]
fn a_line_that_cannot_be_set_back_now_is_set_back_later() {
    let dir = directory();
    let root = dir.path();
    let online = put_online(root, "0,8000-8001");
    let file = put_line(root, 7, "eth0", "8000");
    let mut session = open(root);
    assert_eq!(shift(&mut session, root, 7, "8001"), MovedLine::Moved);
    fs::write(&online, "0\n").unwrap();
    // Not even root may write this one. It reads as a list with CPU 0, as the kernel gives it.
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/sys/devices/system/cpu/possible", &file).unwrap();
    assert_eq!(session.release_changed_lines().unwrap(), ChangedLines::default());
    assert_eq!(session.lines().len(), 1);
    fs::remove_file(&file).unwrap();
    fs::write(&file, "0\n").unwrap();
    let (name, offline) = ("eth0".to_owned(), just(8001));
    let displaced = vec![DisplacedLine { number: 7, name, offline }];
    let changed = ChangedLines { displaced, ..ChangedLines::default() };
    assert_eq!(session.release_changed_lines().unwrap(), changed);
    assert_eq!(value(&file), "8000");
    assert!(session.lines().is_empty());
}

/// That the CPU went is seen at the first look only, where the line cannot be set back yet.
#[test]
fn a_line_that_waits_is_set_back_though_its_cpu_came_again() {
    for is_back_at_once in [true, false] {
        let dir = directory();
        let root = dir.path();
        let online = put_online(root, "0,8001");
        cycle(root, 8001, true);
        let file = put_line(root, 7, "eth0", "8000");
        let mut session = open(root);
        assert_eq!(shift(&mut session, root, 7, "8001"), MovedLine::Moved);
        cycle(root, 8001, is_back_at_once);
        if !is_back_at_once {
            fs::write(&online, "0\n").unwrap();
        }
        // Not even root may write this one. It reads as a list with CPU 0, as the kernel gives it.
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/sys/devices/system/cpu/possible", &file).unwrap();
        for _ in 0..2 {
            assert_eq!(session.release_changed_lines().unwrap(), ChangedLines::default());
            assert_eq!(session.lines().len(), 1, "{is_back_at_once}");
        }
        if !is_back_at_once {
            cycle(root, 8001, true);
            fs::write(&online, "0,8001\n").unwrap();
        }
        fs::remove_file(&file).unwrap();
        fs::write(&file, "0\n").unwrap();
        let (name, offline) = ("eth0".to_owned(), just(8001));
        let displaced = vec![DisplacedLine { number: 7, name, offline }];
        let changed = ChangedLines { displaced, ..ChangedLines::default() };
        assert_eq!(session.release_changed_lines().unwrap(), changed, "{is_back_at_once}");
        assert_eq!(value(&file), "8000");
    }
}

#[test]
fn a_line_that_cannot_be_read_now_does_not_make_the_others_let_go() {
    let dir = directory();
    let root = dir.path();
    put_online(root, "0-3");
    cycle(root, 3, true);
    let files = [1, 2].map(|number| put_line(root, number, "eth0", "0-3"));
    let mut session = open(root);
    for number in [1, 2] {
        assert_eq!(shift(&mut session, root, number, "3"), MovedLine::Moved);
    }
    cycle(root, 3, true);
    fs::write(&files[0], "damaged\n").unwrap();
    fs::write(&files[1], "0-2\n").unwrap();
    let why = session.release_changed_lines().unwrap_err();
    assert!(matches!(why, SettingError::Unreadable { .. }), "{why}");
    fs::write(&files[0], "0-2\n").unwrap();
    let displaced = [1, 2].map(|number| {
        let name = "eth0".to_owned();
        DisplacedLine { number, name, offline: just(3) }
    });
    let changed = ChangedLines { displaced: displaced.into(), ..ChangedLines::default() };
    assert_eq!(session.release_changed_lines().unwrap(), changed);
    assert_eq!(files.map(|file| value(&file)), ["0-3", "0-3"]);
}

#[test]
fn a_line_that_cannot_be_moved_keeps_the_move_before() {
    let dir = directory();
    let root = dir.path();
    let file = put_line(root, 7, "eth0", "0-1");
    let mut session = open(root);
    assert_eq!(shift(&mut session, root, 7, "1"), MovedLine::Moved);
    let text = fs::read_to_string(session.journal_path()).unwrap();
    let entry = r#""number":7,"name":"eth0","before":"0-1","replaces":null,"set":"1""#;
    assert!(text.contains(entry), "{text}");
    let fixed = root.join("proc/irq/8");
    put_line(root, 8, "eth0", "");
    fs::remove_file(fixed.join("smp_affinity_list")).unwrap();
    // Not even root may write this one. It reads as a list of CPUs.
    let target = "/sys/devices/system/cpu/possible";
    std::os::unix::fs::symlink(target, fixed.join("smp_affinity_list")).unwrap();
    let refused = session.move_line(root, 8, "eth0", &just(8000)).unwrap_err();
    assert!(matches!(refused, SettingError::Refused { .. }), "{refused}");
    assert_eq!(session.lines().len(), 1);
    assert_eq!(session.close().restored_settings, std::slice::from_ref(&file));
    assert_eq!(value(&file), "0-1");
}

#[test]
fn a_killed_move_is_undone_from_either_side() {
    let dir = directory();
    let root = dir.path();
    let file = put_line(root, 7, "eth0", "3");
    let entry = |name: &str, replaces: Option<&str>, set: &str| {
        line(&serde_json::json!({"line": {
            "root": root, "number": 7, "name": name, "before": "0-1", "replaces": replaces,
            "set": set, "time_ns": 5
        }}))
    };
    let undone = |entries: &[String], now: &str| {
        fs::write(&file, format!("{now}\n")).unwrap();
        let text = line(&header()) + &entries.concat();
        put(root, "1-1.jsonl", text.as_bytes());
        let report = undo(root, UndoOptions::default());
        assert!(report.is_clean() && journals(root).is_empty(), "{report:?}");
        value(&file)
    };
    let first = entry("eth0", None, "2");
    let second = entry("eth0", Some("2"), "3");
    let both = [first.clone(), second];
    // Before and after the second move.
    assert_eq!(undone(&both, "2"), "0-1");
    assert_eq!(undone(&both, "3"), "0-1");
    // Neither of ours.
    assert_eq!(undone(&both, "1"), "1");
    // After compaction, the move is known to be made: "2" is another process's choice then.
    let third = entry("eth0", None, "3");
    assert_eq!(undone(&[first.clone(), third], "2"), "2");
    // Another line has the number.
    assert_eq!(undone(&[entry("eth1", None, "2")], "2"), "2");
    let closed = serde_json::json!({"line_closed": {"root": root, "number": 7, "time_ns": 6}});
    assert_eq!(undone(&[first, line(&closed)], "2"), "2");
}
