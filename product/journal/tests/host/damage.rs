//! Journals that are damaged, of another boot or namespace, or of another user: valid entries are
//! undone, all other lines are reported, and nothing is done that no valid entry says.

use std::os::unix::fs::PermissionsExt;

use evenkeel_journal::{UndoOptions, affinity, undo};
use proptest::prelude::*;

use crate::tools::*;

/// A sleeper that a dead session pinned.
fn pinned(cpu: u32) -> Sleeper {
    let sleeper = Sleeper::new();
    affinity::set(sleeper.task.tid, &just(cpu)).unwrap();
    sleeper
}

#[test]
fn the_lines_that_can_be_read_still_count() {
    let Some((x, _)) = two_cpus("the_lines_that_can_be_read_still_count") else { return };
    let (dir, a, b, lost) = (directory(), pinned(x), pinned(x), pinned(x));
    let broken = line(&pin(3, &lost.task, x)).replace("\"id\":3", "\"id\":4");
    let text = [
        line(&header()),
        line(&pin(1, &a.task, x)),
        "garbage \u{0}\n".into(),
        broken,
        line(&pin(2, &b.task, x)),
    ]
    .concat();
    let path = put(dir.path(), "1-1.jsonl", text.as_bytes());
    let report = undo(dir.path(), UndoOptions::default());
    assert_eq!(report.restored, [a.task, b.task]);
    assert_eq!(report.damaged.iter().map(|damage| damage.line).collect::<Vec<_>>(), [3, 4]);
    assert!(!report.is_clean() && report.errors.is_empty(), "{report:?}");
    assert_eq!((a.mask(), b.mask(), lost.mask()), (all(), all(), just(x)));
    // Kept as evidence, and not reported again.
    let evidence = path.with_extension("damaged");
    assert_eq!(journals(dir.path()), std::slice::from_ref(&evidence));
    assert!(report.damaged[0].to_string().starts_with(&format!("{}:3: ", evidence.display())));
    assert!(undo(dir.path(), UndoOptions::default()).is_clean());
}

#[test]
fn a_torn_last_line_is_harmless() {
    let Some((x, _)) = two_cpus("a_torn_last_line_is_harmless") else { return };
    let (dir, a, b) = (directory(), pinned(x), Sleeper::new());
    let whole = line(&header()) + &line(&pin(1, &a.task, x));
    let torn = line(&pin(2, &b.task, x));
    for cut in [1, 10, torn.len() - 2] {
        affinity::set(a.task.tid, &just(x)).unwrap();
        put(dir.path(), "1-1.jsonl", format!("{whole}{}", &torn[..cut]).as_bytes());
        let report = undo(dir.path(), UndoOptions::default());
        assert_eq!(report.restored, [a.task], "{report:?}");
        assert_eq!(report.damaged_lines, 1);
        assert_eq!(report.damaged[0].line, 3);
        assert!(journals(dir.path()).is_empty());
    }
}

#[test]
fn without_a_header_nothing_is_undone() {
    let Some((x, _)) = two_cpus("without_a_header_nothing_is_undone") else { return };
    let (dir, a) = (directory(), pinned(x));
    for first in ["", "garbage\n", "\n"] {
        put(dir.path(), "1-1.jsonl", (first.to_owned() + &line(&pin(1, &a.task, x))).as_bytes());
        let report = undo(dir.path(), UndoOptions::default());
        assert_eq!(report.errors.len(), 1, "{report:?}");
        assert!(report.errors[0].to_string().contains("taskset"), "{}", report.errors[0]);
        assert_eq!(a.mask(), just(x));
    }
}

#[test]
fn empty_and_huge_journals_are_handled() {
    let dir = directory();
    put(dir.path(), "1-1.jsonl", b"");
    let report = undo(dir.path(), UndoOptions::default());
    assert!(report.is_clean() && journals(dir.path()).is_empty(), "{report:?}");

    // Larger than any journal: not even read (sparse, so it takes no space).
    let path = put(dir.path(), "1-2.jsonl", line(&header()).as_bytes());
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    let report = undo(dir.path(), UndoOptions::default());
    assert!(report.errors[0].to_string().contains("bytes"), "{report:?}");
    std::fs::remove_file(&path).unwrap();

    // Large, and nothing but garbage: counted, not listed.
    let text = line(&header()) + &"x\n".repeat(200_000) + &"y".repeat(1_000_000) + "\n";
    put(dir.path(), "1-3.jsonl", text.as_bytes());
    let report = undo(dir.path(), UndoOptions::default());
    assert_eq!(report.damaged_lines, 200_001);
    assert_eq!(report.damaged.len(), 100);
}

#[test]
fn a_journal_of_another_boot_or_namespace_is_not_undone() {
    let Some((x, _)) = two_cpus("a_journal_of_another_boot_or_namespace") else { return };
    let (dir, a) = (directory(), pinned(x));
    let cases = [
        ("boot_id", serde_json::json!("00000000-0000-0000-0000-000000000000"), true),
        ("pid_ns", serde_json::json!(1), false),
        ("time_ns", serde_json::json!(1), false),
        ("version", serde_json::json!(2), false),
    ];
    for (field, value, is_removed) in cases {
        let mut header = header();
        header["header"][field] = value;
        let text = line(&header) + &line(&pin(1, &a.task, x));
        let path = put(dir.path(), "1-1.jsonl", text.as_bytes());
        for force in [false, true] {
            let report = undo(dir.path(), UndoOptions { force, ..UndoOptions::default() });
            assert!(report.is_clean(), "{field}: {report:?}");
            assert_eq!(a.mask(), just(x), "{field}");
            assert_eq!(path.exists(), !is_removed, "{field}");
            if path.exists() {
                assert_eq!(report.foreign.len(), 1);
                assert!(!report.foreign[0].removed);
            }
        }
        let _ = std::fs::remove_file(path);
    }
}

#[test]
fn what_other_users_put_there_is_left_alone() {
    let Some((x, _)) = two_cpus("what_other_users_put_there_is_left_alone") else { return };
    let (dir, a) = (directory(), pinned(x));
    let text = line(&header()) + &line(&pin(1, &a.task, x));
    let elsewhere = dir.path().join("elsewhere");
    std::fs::write(&elsewhere, &text).unwrap();
    let path = put(dir.path(), "1-1.jsonl", b"");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let report = undo(dir.path(), UndoOptions::default());
    assert_eq!(report.errors.len(), 1, "{report:?}");
    assert!(elsewhere.exists() && a.mask() == just(x));
    std::fs::remove_file(&path).unwrap();

    // A directory to which other users can write.
    put(dir.path(), "1-1.jsonl", text.as_bytes());
    let journals = dir.path().join("journal");
    std::fs::set_permissions(&journals, PermissionsExt::from_mode(0o777)).unwrap();
    let report = undo(dir.path(), UndoOptions::default());
    assert!(report.errors[0].to_string().contains("chmod"), "{report:?}");
    assert_eq!(a.mask(), just(x));
    std::fs::set_permissions(&journals, PermissionsExt::from_mode(0o700)).unwrap();

    // A file of another user: only root can create it here.
    match std::os::unix::fs::chown(&path, Some(65533), None) {
        Ok(()) => {
            let report = undo(dir.path(), UndoOptions::default());
            assert!(report.errors[0].to_string().contains("not a file of ours"), "{report:?}");
            assert_eq!(a.mask(), just(x));
        }
        Err(error) => evenkeel_skip::skip("a_file_of_another_user", error),
    }
    assert!(undo(&dir.path().join("no/such"), UndoOptions::default()).is_clean());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 0, ..ProptestConfig::default() })]

    /// Journal fuzzing: no panic, a task that the journal does not name is not touched, and a task that
    /// it names has either our mask or its own.
    #[test]
    fn a_fuzzed_journal_changes_no_task_that_it_does_not_name(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..6)
    ) {
        let cpus: Vec<u32> = all().iter().collect();
        let [x, _, ..] = cpus[..] else { return Ok(()) };
        let (dir, named, other) = (directory(), pinned(x), pinned(x));
        let mut bytes = [line(&header()), line(&pin(1, &named.task, x)), line(&pin(2, &named.task, x))]
            .concat()
            .into_bytes();
        for (at, byte, kind) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.truncate(at),
                2 => bytes.insert(at, byte),
                _ => bytes.rotate_left(at),
            }
        }
        put(dir.path(), "1-1.jsonl", &bytes);
        let report = undo(dir.path(), UndoOptions::default());
        prop_assert_eq!(other.mask(), just(x));
        prop_assert!(report.restored.len() <= 1);
        let expected = if report.restored.is_empty() { just(x) } else { all() };
        prop_assert_eq!(named.mask(), expected);
        // A second time finds nothing to do.
        prop_assert!(undo(dir.path(), UndoOptions::default()).restored.is_empty());
    }
}
