//! Threads and children that inherit a pin of ours are freed; those that pin themselves are not.

use evenkeel_journal::{Placed, Released, UndoOptions, affinity, undo_file};

use crate::tools::*;

/// A thread that is created after this call does not count as a child of the time before it: start
/// times have a resolution of 1/100 s, and a fork may have begun two seconds before a start time.
fn wait_out_slack() {
    std::thread::sleep(std::time::Duration::from_millis(2_100));
}

#[test]
fn children_that_inherited_are_freed_when_named() {
    let Some((x, y)) = two_cpus("children_that_inherited_are_freed_when_named") else { return };
    let (dir, mut victim) = (directory(), Victim::new());
    let mut session = open(dir.path());
    session.add_program(&victim.root).unwrap();
    let before = victim.make("thread");
    wait_out_slack();
    session.place(&victim.worker, x).unwrap();
    let children = [victim.make("thread"), victim.make("child"), victim.make("orphan")];
    for child in &children {
        assert_eq!(mask(child.tid), just(x), "it did not inherit");
        assert_eq!(session.allowed_cpus(child).unwrap(), all());
        assert!(session.free_inherited(child).unwrap());
        assert!(!session.free_inherited(child).unwrap());
        assert_eq!(mask(child.tid), all());
    }
    assert!(!session.free_inherited(&before).unwrap());

    // Pinned by tchild user to the same CPU afterwards: not inherited.
    affinity::set(children[0].tid, &just(x)).unwrap();
    affinity::set(before.tid, &just(x)).unwrap();
    // A thread that is created while no thread of the process had this mask, and pins itself.
    session.place(&victim.worker, y).unwrap();
    wait_out_slack();
    let own = victim.make("thread");
    affinity::set(own.tid, &just(x)).unwrap();
    assert!(!session.free_inherited(&own).unwrap());
    session.close();
    for pinned in [children[0], before, own] {
        assert_eq!(mask(pinned.tid), just(x), "{pinned}");
    }
    assert_eq!(mask(victim.worker.tid), all());
}

#[test]
fn a_child_whose_fork_takes_long_is_freed() {
    let test = "a_child_whose_fork_takes_long_is_freed";
    let Some((x, y)) = two_cpus(test) else { return };
    for next in [Some(y), None] {
        let (dir, mut victim) = (directory(), Victim::new());
        let mut session = open(dir.path());
        session.add_program(&victim.root).unwrap();
        session.place(&victim.worker, x).unwrap();
        let worker = victim.worker;
        let child = victim.make_slowly(|| {
            match next {
                Some(y) => assert_eq!(session.place(&worker, y).unwrap(), Placed::Pinned),
                None => assert_eq!(session.release(&worker).unwrap(), Released::Restored),
            }
            // Longer than any call takes, as on a busy machine.
            std::thread::sleep(std::time::Duration::from_millis(200));
        });
        let Some(child) = child else {
            evenkeel_skip::skip(test, "it needs privilege (userfaultfd)");
            return;
        };
        assert_eq!(mask(child.tid), just(x), "it did not inherit");
        assert!(session.has_placed());
        assert!(session.free_inherited(&child).unwrap(), "{next:?}");
        assert_eq!(mask(child.tid), all());
    }
}

#[test]
fn a_child_that_inherited_and_is_placed_gets_its_parents_mask_back() {
    let Some((x, y)) = two_cpus("a_child_that_inherited_and_is_placed") else { return };
    let (dir, mut victim) = (directory(), Victim::new());
    let mut session = open(dir.path());
    session.place(&victim.worker, x).unwrap();
    let child = victim.make("thread");
    assert_eq!(session.place(&child, y).unwrap(), Placed::Pinned);
    session.close();
    assert_eq!(mask(child.tid), all());
}

#[test]
fn children_whose_fork_was_missed_are_found() {
    let Some((x, _)) = two_cpus("children_whose_fork_was_missed_are_found") else { return };
    for by_file in [false, true] {
        let (dir, mut victim) = (directory(), Victim::new());
        let bystander = Sleeper::new();
        affinity::set(bystander.task.tid, &just(x)).unwrap();
        let mut session = open(dir.path());
        session.add_program(&victim.root).unwrap();
        session.place(&victim.worker, x).unwrap();
        let children = [victim.make("thread"), victim.make("child"), victim.make("orphan")];
        let report = if by_file {
            let path = session.journal_path();
            let report = undo_file(&path, UndoOptions { force: true, ..UndoOptions::default() });
            drop(session);
            report
        } else {
            session.close()
        };
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.restored, [victim.worker]);
        let mut freed = report.freed.clone();
        freed.sort();
        let mut expected = children.to_vec();
        expected.sort();
        assert_eq!(freed, expected, "by file: {by_file}");
        for child in &children {
            assert_eq!(mask(child.tid), all());
        }
        assert_eq!(bystander.mask(), just(x));
    }
}

#[test]
fn exec_by_a_thread_is_freed_at_once_when_named() {
    let Some((x, y)) = two_cpus("exec_by_a_thread_is_freed_at_once") else { return };
    // Both with and without a leader that was placed before; only an inherited pin is ended.
    for leader_is_known in [false, true] {
        let (dir, mut victim) = (directory(), Victim::new());
        let mut session = open(dir.path());
        if leader_is_known {
            session.place(&victim.root, y).unwrap();
            assert_eq!(session.release(&victim.root).unwrap(), Released::Restored);
        }
        session.place(&victim.worker, x).unwrap();
        assert!(!session.free_after_exec(&victim.root).unwrap());
        victim.exec();
        assert_eq!(mask(victim.root.tid), just(x), "it did not inherit");
        assert!(session.free_after_exec(&victim.root).unwrap());
        assert_eq!(mask(victim.root.tid), all());
        // Pinned by its user before exec, as by `taskset -c 1 COMMAND`.
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
    session.place(&victim.root, y).unwrap();
    session.place(&victim.worker, x).unwrap();
    victim.exec();
    // Now it has the leader's number and the worker's mask.
    wait_for("the mask of the worker", || mask(victim.root.tid) == just(x));
    assert!(victim.root.is_alive());
    let report = session.close();
    assert!(report.is_clean() && report.kept.is_empty(), "{report:?}");
    assert_eq!(mask(victim.root.tid), all());
}

#[test]
fn exec_by_a_thread_before_its_release_does_not_keep_its_pin() {
    let Some((x, y)) = two_cpus("exec_by_a_thread_before_its_release") else { return };
    for (leader_is_pinned, is_named) in [(false, true), (true, true), (false, false)] {
        let (dir, mut victim) = (directory(), Victim::new());
        let mut session = open(dir.path());
        session.place(&victim.worker, x).unwrap();
        if leader_is_pinned {
            session.place(&victim.root, y).unwrap();
        }
        victim.exec();
        wait_for("the mask of the worker", || mask(victim.root.tid) == just(x));
        // As at the end of a plan: its caller does not know of the exec yet.
        assert_eq!(session.release(&victim.worker).unwrap(), Released::Gone);
        if is_named {
            assert!(session.free_after_exec(&victim.root).unwrap(), "{leader_is_pinned}");
            assert_eq!(mask(victim.root.tid), all());
        }
        let report = session.close();
        assert!(report.is_clean() && report.kept.is_empty(), "{report:?}");
        assert_eq!(mask(victim.root.tid), all());
    }
}
