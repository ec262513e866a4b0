//! Threads and children that are born with a pin of ours are freed; those that pin themselves are
//! not.

use evenkeel_journal::{Placed, Released, Style, UndoOptions, affinity, undo_file};

use crate::tools::*;

/// Start times are told apart by ticks of the clock (1/100 s), and who is made within two seconds
/// of the end of a pin may have been begun before it: what is made after this is made later.
fn next_tick() {
    std::thread::sleep(std::time::Duration::from_millis(2_100));
}

#[test]
fn heirs_are_freed_at_once_when_named() {
    let Some((x, y)) = two_cpus("heirs_are_freed_at_once_when_named") else { return };
    let (dir, mut victim) = (directory(), Victim::new());
    let mut session = open(dir.path());
    session.add_program(&victim.root).unwrap();
    let before = victim.make("thread");
    next_tick();
    session.place(&victim.worker, x, Style::Hard).unwrap();
    let heirs = [victim.make("thread"), victim.make("child"), victim.make("orphan")];
    for heir in &heirs {
        assert_eq!(mask(heir.tid), just(x), "it did not inherit");
        assert_eq!(session.allowed_cpus(heir).unwrap(), all());
        assert!(session.free_inherited(heir).unwrap());
        assert!(!session.free_inherited(heir).unwrap());
        assert_eq!(mask(heir.tid), all());
    }
    assert!(!session.free_inherited(&before).unwrap());

    // Pinned by its user to the same CPU afterwards: not an heir.
    affinity::set(heirs[0].tid, &just(x)).unwrap();
    affinity::set(before.tid, &just(x)).unwrap();
    // A thread that is made while nobody there held this mask, and pins itself.
    session.place(&victim.worker, y, Style::Hard).unwrap();
    next_tick();
    let own = victim.make("thread");
    affinity::set(own.tid, &just(x)).unwrap();
    assert!(!session.free_inherited(&own).unwrap());
    session.close();
    for pinned in [heirs[0], before, own] {
        assert_eq!(mask(pinned.tid), just(x), "{pinned}");
    }
    assert_eq!(mask(victim.worker.tid), all());
}

#[test]
fn an_heir_that_was_long_in_the_making_is_freed() {
    let test = "an_heir_that_was_long_in_the_making_is_freed";
    let Some((x, y)) = two_cpus(test) else { return };
    for next in [Some(y), None] {
        let (dir, mut victim) = (directory(), Victim::new());
        let mut session = open(dir.path());
        session.add_program(&victim.root).unwrap();
        session.place(&victim.worker, x, Style::Hard).unwrap();
        let worker = victim.worker;
        let heir = victim.make_slowly(|| {
            match next {
                Some(y) => {
                    assert_eq!(session.place(&worker, y, Style::Hard).unwrap(), Placed::Pinned)
                }
                None => assert_eq!(session.release(&worker).unwrap(), Released::Restored),
            }
            // Longer than any call takes, and as a busy machine lets one wait.
            std::thread::sleep(std::time::Duration::from_millis(200));
        });
        let Some(heir) = heir else {
            println!("{test}: skipped: it needs privilege (userfaultfd)");
            return;
        };
        assert_eq!(mask(heir.tid), just(x), "it did not inherit");
        assert!(session.has_placed());
        assert!(session.free_inherited(&heir).unwrap(), "{next:?}");
        assert_eq!(mask(heir.tid), all());
    }
}

#[test]
fn an_heir_that_is_placed_gets_its_parents_mask_back() {
    let Some((x, y)) = two_cpus("an_heir_that_is_placed") else { return };
    let (dir, mut victim) = (directory(), Victim::new());
    let mut session = open(dir.path());
    session.place(&victim.worker, x, Style::Hard).unwrap();
    let heir = victim.make("thread");
    assert_eq!(session.place(&heir, y, Style::Hard).unwrap(), Placed::Pinned);
    session.close();
    assert_eq!(mask(heir.tid), all());
}

#[test]
fn heirs_that_nobody_saw_are_found() {
    let Some((x, _)) = two_cpus("heirs_that_nobody_saw_are_found") else { return };
    for by_file in [false, true] {
        let (dir, mut victim) = (directory(), Victim::new());
        let bystander = Sleeper::new();
        affinity::set(bystander.task.tid, &just(x)).unwrap();
        let mut session = open(dir.path());
        session.add_program(&victim.root).unwrap();
        session.place(&victim.worker, x, Style::Hard).unwrap();
        let heirs = [victim.make("thread"), victim.make("child"), victim.make("orphan")];
        let report = if by_file {
            let path = session.journal_path();
            let report = undo_file(&path, UndoOptions { force: true });
            drop(session);
            report
        } else {
            session.close()
        };
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.restored, [victim.worker]);
        let mut freed = report.freed.clone();
        freed.sort();
        let mut expected = heirs.to_vec();
        expected.sort();
        assert_eq!(freed, expected, "by file: {by_file}");
        for heir in &heirs {
            assert_eq!(mask(heir.tid), all());
        }
        assert_eq!(bystander.mask(), just(x));
    }
}

#[test]
fn exec_by_a_thread_is_freed_at_once_when_named() {
    let Some((x, y)) = two_cpus("exec_by_a_thread_is_freed_at_once") else { return };
    // Whether or not the leader was placed before, and only what inherited a pin.
    for leader_is_known in [false, true] {
        let (dir, mut victim) = (directory(), Victim::new());
        let mut session = open(dir.path());
        if leader_is_known {
            session.place(&victim.root, y, Style::Soft).unwrap();
        }
        session.place(&victim.worker, x, Style::Hard).unwrap();
        assert!(!session.free_after_exec(&victim.root).unwrap());
        victim.exec();
        assert_eq!(mask(victim.root.tid), just(x), "it did not inherit");
        assert!(session.free_after_exec(&victim.root).unwrap());
        assert_eq!(mask(victim.root.tid), all());
        // Pinned by its user, and then another program: `taskset -c 1 COMMAND`.
        affinity::set(victim.root.tid, &just(y)).unwrap();
        assert!(!session.free_after_exec(&victim.root).unwrap());
        session.close();
        assert_eq!(mask(victim.root.tid), just(y));
    }
}

#[test]
fn exec_by_a_thread_does_not_keep_its_pin() {
    let Some((x, y)) = two_cpus("exec_by_a_thread_does_not_keep_its_pin") else { return };
    let (dir, mut victim) = (directory(), Victim::new());
    let mut session = open(dir.path());
    session.place(&victim.root, y, Style::Hard).unwrap();
    session.place(&victim.worker, x, Style::Hard).unwrap();
    victim.exec();
    // The leader's number, the worker's mask.
    wait_for("the mask of the worker", || mask(victim.root.tid) == just(x));
    assert!(victim.root.is_alive());
    let report = session.close();
    assert!(report.is_clean() && report.kept.is_empty(), "{report:?}");
    assert_eq!(mask(victim.root.tid), all());
}
