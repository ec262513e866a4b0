//! Placing and releasing threads; a mask that the user sets wins.

use evenkeel_journal::{
    JournalError, PlaceError, Placed, Released, Session, SessionOptions, TaskRef, UndoOptions,
    affinity, undo,
};

use crate::tools::*;

#[test]
fn placed_moved_released_and_placed_again() {
    let Some((x, y)) = two_cpus("placed_moved_released_and_placed_again") else { return };
    let dir = directory();
    let mut session = open(dir.path());
    let victim = Victim::new();
    let task = victim.worker;
    assert_eq!(session.place(&task, x).unwrap(), Placed::Pinned);
    assert_eq!(mask(task.tid), just(x));
    assert_eq!(session.pinned_cpu(&task), Some(x));
    assert_eq!(session.allowed_cpus(&task).unwrap(), all());
    // Another thread of the process is untouched.
    assert_eq!(mask(victim.root.tid), all());
    assert_eq!(session.place(&task, x).unwrap(), Placed::Unchanged);
    assert_eq!(session.place(&task, y).unwrap(), Placed::Pinned);
    assert_eq!(mask(task.tid), just(y));
    assert_eq!(session.release(&task).unwrap(), Released::Restored);
    assert_eq!(session.release(&task).unwrap(), Released::NotHeld);
    assert_eq!(mask(task.tid), all());
    assert_eq!(session.place(&task, x).unwrap(), Placed::Pinned);
    assert_eq!(mask(task.tid), just(x));
    let report = session.close();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.restored, [task]);
    assert_eq!(mask(task.tid), all());
    assert!(journals(dir.path()).is_empty());
}

#[test]
fn dropping_the_session_restores_everything() {
    let Some((x, _)) = two_cpus("dropping_the_session_restores_everything") else { return };
    let (dir, sleeper) = (directory(), Sleeper::new());
    let mut session = open(dir.path());
    session.place(&sleeper.task, x).unwrap();
    drop(session);
    assert_eq!(sleeper.mask(), all());
    assert!(journals(dir.path()).is_empty());
}

#[test]
fn a_mask_of_the_user_wins_even_if_it_equals_an_earlier_pin() {
    let Some((x, y)) = two_cpus("a_mask_of_the_user_wins_even_if_it_equals_an_earlier_pin") else {
        return;
    };
    let (dir, sleeper, bystander) = (directory(), Sleeper::new(), Sleeper::new());
    let mut session = open(dir.path());
    session.place(&sleeper.task, x).unwrap();
    session.place(&sleeper.task, y).unwrap();
    affinity::set(sleeper.task.tid, &just(x)).unwrap();
    assert_eq!(
        session.place(&sleeper.task, y).unwrap(),
        Placed::Yielded { found: just(x), newly: true }
    );
    // An undo of the journal knows it, too, once a later entry proves that this move was made.
    let other = Sleeper::new();
    session.place(&other.task, x).unwrap();
    session.place(&other.task, y).unwrap();
    session.place(&bystander.task, x).unwrap();
    affinity::set(other.task.tid, &just(x)).unwrap();
    let forced = UndoOptions { force: true, ..UndoOptions::default() };
    let report = evenkeel_journal::undo_file(&session.journal_path(), forced);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((sleeper.mask(), other.mask(), bystander.mask()), (just(x), just(x), all()));
    assert_eq!(report.kept.len(), 1, "{report:?}");
}

#[test]
fn a_user_that_pins_again_wins() {
    let Some((x, y)) = two_cpus("a_user_that_pins_again_wins") else { return };
    let dir = directory();
    let mut session = open(dir.path());
    for is_released in [false, true] {
        let sleeper = Sleeper::new();
        session.place(&sleeper.task, x).unwrap();
        if is_released {
            assert_eq!(session.release(&sleeper.task).unwrap(), Released::Restored);
        }
        affinity::set(sleeper.task.tid, &just(y)).unwrap();
        for newly in [true, false] {
            assert_eq!(
                session.place(&sleeper.task, x).unwrap(),
                Placed::Yielded { found: just(y), newly }
            );
        }
        assert!(session.has_yielded(&sleeper.task));
        // It stays the user's even if it equals what we once wrote.
        affinity::set(sleeper.task.tid, &just(x)).unwrap();
        session.restore_all();
        assert_eq!(sleeper.mask(), just(x));
    }
    // Found only when the session closes.
    let sleeper = Sleeper::new();
    session.place(&sleeper.task, x).unwrap();
    affinity::set(sleeper.task.tid, &just(y)).unwrap();
    let report = session.close();
    assert_eq!(report.kept.len(), 1);
    assert_eq!(report.kept[0].found, just(y));
    assert_eq!(sleeper.mask(), just(y));
}

#[test]
fn a_user_that_allows_all_cpus_wins_too() {
    let Some((x, y)) = two_cpus("a_user_that_allows_all_cpus_wins_too") else { return };
    let (dir, sleeper) = (directory(), Sleeper::new());
    let mut session = open(dir.path());
    session.place(&sleeper.task, x).unwrap();
    affinity::set(sleeper.task.tid, &all()).unwrap();
    assert_eq!(
        session.place(&sleeper.task, y).unwrap(),
        Placed::Yielded { found: all(), newly: true }
    );
}

#[test]
fn the_users_mask_and_the_cpuset_are_respected() {
    let Some((x, y)) = two_cpus("the_users_mask_and_the_cpuset_are_respected") else { return };
    let (dir, sleeper) = (directory(), Sleeper::new());
    affinity::set(sleeper.task.tid, &just(y)).unwrap();
    let mut session = open(dir.path());
    let error = session.place(&sleeper.task, x).unwrap_err();
    assert!(matches!(error, PlaceError::OutsideUserMask { .. }), "{error}");
    assert!(error.to_string().contains("--override"), "{error}");
    assert_eq!(session.place(&sleeper.task, y).unwrap(), Placed::Unchanged);
    assert_eq!(session.allowed_cpus(&sleeper.task).unwrap(), just(y));
    let error = session.place(&sleeper.task, 8191).unwrap_err();
    assert!(matches!(error, PlaceError::OutsideCpuset { cpu: 8191, .. }), "{error}");
    assert_eq!(sleeper.mask(), just(y));
    // Nothing was written for what was not done.
    assert_eq!(std::fs::read_to_string(session.journal_path()).unwrap().lines().count(), 1);
    drop(session);

    let options = SessionOptions { override_user: true, ..SessionOptions::default() };
    let mut session = Session::open(dir.path(), options).unwrap();
    assert_eq!(session.place(&sleeper.task, x).unwrap(), Placed::Pinned);
    assert_eq!(sleeper.mask(), just(x));
    // What the user set last is restored.
    affinity::set(sleeper.task.tid, &all()).unwrap();
    assert_eq!(session.place(&sleeper.task, x).unwrap(), Placed::Pinned);
    assert!(session.close().is_clean());
    assert_eq!(sleeper.mask(), all());
}

#[test]
fn a_reused_number_is_another_thread() {
    let Some((x, _)) = two_cpus("a_reused_number_is_another_thread") else { return };
    let (dir, sleeper) = (directory(), Sleeper::new());
    let other = TaskRef { start_time_ticks: sleeper.task.start_time_ticks - 1, ..sleeper.task };
    let mut session = open(dir.path());
    let error = session.place(&other, x).unwrap_err();
    assert!(matches!(error, PlaceError::Gone { .. }), "{error}");
    assert!(!session.free_inherited(&other).unwrap());
    assert_eq!(sleeper.mask(), all());
    drop(session);

    // The new thread even has the mask that the ended thread was given.
    affinity::set(sleeper.task.tid, &just(x)).unwrap();
    put(dir.path(), "1-1.jsonl", (line(&header()) + &line(&pin(1, &other, x))).as_bytes());
    let report = undo(dir.path(), UndoOptions::default());
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.gone, [other]);
    assert_eq!(sleeper.mask(), just(x));
    assert!(journals(dir.path()).is_empty());
}

#[test]
fn a_thread_that_ends_is_no_error() {
    let Some((x, y)) = two_cpus("a_thread_that_ends_is_no_error") else { return };
    let dir = directory();
    let mut session = open(dir.path());
    let sleeper = Sleeper::new();
    let task = sleeper.task;
    session.place(&task, x).unwrap();
    drop(sleeper);
    assert!(matches!(session.place(&task, y), Err(PlaceError::Gone { .. })));
    assert_eq!(session.release(&task).unwrap(), Released::Gone);
    let report = session.close();
    assert!(report.is_clean() && report.restored.is_empty(), "{report:?}");
}

#[test]
fn two_sessions_leave_each_others_threads_alone() {
    let Some((x, y)) = two_cpus("two_sessions_leave_each_others_threads_alone") else { return };
    let (one, two) = (directory(), directory());
    let (a, b) = (Sleeper::new(), Sleeper::new());
    let (mut first, mut second) = (open(one.path()), open(two.path()));
    first.place(&a.task, x).unwrap();
    second.place(&b.task, y).unwrap();
    // Each session takes the other's pin for the user's choice.
    assert!(matches!(second.place(&a.task, y), Err(PlaceError::OutsideUserMask { .. })));
    first.close();
    assert_eq!((a.mask(), b.mask()), (all(), just(y)));
    // A living session is left alone, unless forced; then it lets go.
    let report = undo(two.path(), UndoOptions::default());
    assert_eq!(report.live.len(), 1);
    assert_eq!(b.mask(), just(y));
    let report = undo(two.path(), UndoOptions { force: true, ..UndoOptions::default() });
    assert_eq!(report.restored, [b.task]);
    assert_eq!(b.mask(), all());
    assert!(matches!(second.place(&b.task, x).unwrap(), Placed::Yielded { newly: true, .. }));
    assert!(second.close().is_clean());
    assert!(journals(two.path()).is_empty());

    let again = open(one.path());
    let error = Session::open(one.path(), SessionOptions::default()).unwrap_err();
    assert!(matches!(error, JournalError::AlreadyOpen { .. }), "{error}");
    drop(again);
}

#[test]
fn a_long_session_stays_small() {
    let Some((x, y)) = two_cpus("a_long_session_stays_small") else { return };
    let (dir, sleeper) = (directory(), Sleeper::new());
    let options = SessionOptions { compact_bytes: Some(4096), ..SessionOptions::default() };
    let mut session = Session::open(dir.path(), options).unwrap();
    for round in 0..500 {
        session.place(&sleeper.task, if round % 2 == 0 { x } else { y }).unwrap();
        if round % 3 == 0 {
            assert_eq!(session.release(&sleeper.task).unwrap(), Released::Restored);
        }
        let length = std::fs::metadata(session.journal_path()).unwrap().len();
        assert!(length < 8192, "{length}");
    }
    assert_eq!(journals(dir.path()).len(), 1);
    session.close();
    assert_eq!(sleeper.mask(), all());
}
