//! The writer is killed at each failpoint in turn: after each journal write, affinity call and change of
//! a setting, a line, a table or irqbalance's list. Each time the supervisor or `undo` restores all of
//! them.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use evenkeel_journal::{TaskRef, UndoOptions, affinity, undo};

use crate::stand_in::StandIn;
use crate::tools::*;

/// Kills the writer at each failpoint, until it gets to its end.
fn kill_at_every_point(test: &str, supervised: bool) {
    let Some((x, y)) = two_cpus(test) else { return };
    let dir = directory();
    let mut victim = Victim::new();
    let (b, bound) = (Sleeper::new(), Sleeper::new());
    let (c, d) = (victim.make("thread"), victim.make("child"));
    affinity::set(bound.task.tid, &just(y)).unwrap();
    let tasks = [victim.worker, b.task, c, d, bound.task, victim.root];
    let list = tasks.map(|task| task.tid.to_string()).join(",");
    let settings = ["first", "second"].map(|name| dir.path().join(name));
    settings.iter().for_each(|setting| std::fs::write(setting, "0\n").unwrap());
    let affinity_file = put_line(dir.path(), 7, "eth0", "0-1");
    let table_file = put_table(dir.path(), "eth0", "0 1 0 1");
    let irqbalance = StandIn::start(dir.path(), [9], usize::MAX);
    let is_as_before = || {
        let affinity = std::fs::read_to_string(&affinity_file).unwrap();
        affinity.trim() == "0-1"
            && table(&table_file) == [0, 1, 0, 1]
            && irqbalance.list() == [9]
            && tasks
                .iter()
                .all(|task| mask(task.tid) == if *task == bound.task { just(y) } else { all() })
            && settings
                .iter()
                .all(|setting| std::fs::read_to_string(setting).unwrap().trim() == "0")
    };
    assert!(is_as_before());
    for point in 1.. {
        assert!(point < 500, "it never gets to the end");
        let output = role("writer")
            .env("AT", point.to_string())
            .env("DIR", dir.path())
            .env("SUPERVISED", if supervised { "1" } else { "0" })
            .env("TASKS", &list)
            .env("CPUS", format!("{x},{y}"))
            .output()
            .unwrap();
        let child = Orphan::named_in(&output.stdout);
        let is_as_before =
            || is_as_before() && child.as_ref().is_none_or(|child| mask(child.0.tid) == all());
        let was_killed = output.status.signal() == Some(libc::SIGKILL);
        if supervised {
            // The supervisor leaves nothing. But a writer that was killed before it started its
            // supervisor leaves a journal without changes, or a part of one.
            wait_for("the supervisor", is_as_before);
        }
        let report = undo(dir.path(), UndoOptions::default());
        assert!(report.is_clean() && report.live.is_empty(), "point {point}: {report:?}");
        assert!(is_as_before(), "point {point}: {report:?}");
        if supervised {
            wait_for("the journal's removal", || journals(dir.path()).is_empty());
        } else {
            assert!(journals(dir.path()).is_empty(), "point {point}");
        }
        let again = undo(dir.path(), UndoOptions::default());
        assert!(again.is_clean() && again.restored.is_empty(), "point {point}: {again:?}");
        if !was_killed {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "point {point}: {}: {text}", output.status);
            // Each step of the script is at least one point.
            assert!(point > 30, "only {point} points");
            println!("{test}: {} points", point - 1);
            return;
        }
    }
}

#[test]
fn killed_at_every_point_then_undone() {
    kill_at_every_point("killed_at_every_point_then_undone", false);
}

#[test]
fn killed_at_every_point_under_a_supervisor() {
    kill_at_every_point("killed_at_every_point_under_a_supervisor", true);
}

/// The reaper that adopts the child of a killed writer is in the writer's session, as in a container or
/// under a subreaper.
#[test]
fn killed_at_every_point_in_a_container() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        evenkeel_skip::skip("killed_at_every_point_in_a_container", "no PID namespace of its own");
        return;
    }
    let output = unshare()
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "crash::killed_at_every_point_then_undone"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

/// The writer's child, which outlives it.
struct Orphan(TaskRef);

impl Orphan {
    fn named_in(output: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(output);
        let (_, rest) = text.split_once("tid=")?;
        Some(Self(TaskRef::of(rest.lines().next()?.trim().parse().unwrap()).unwrap()))
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if self.0.is_alive() {
            // SAFETY: two integers; the process is one that our writer made.
            unsafe { libc::kill(self.0.tid, libc::SIGKILL) };
        }
    }
}

/// Changes that are to outlive their writer: killed before they are said to be, none is left; after that
/// all are, until they are undone.
#[test]
fn killed_at_every_point_before_its_changes_stand() {
    let dir = directory();
    let file = put_line(dir.path(), 7, "eth0", "0-1");
    let value = || std::fs::read_to_string(&file).unwrap().trim().to_owned();
    let mut has_stood = false;
    for point in 1.. {
        let status = role("persister")
            .env("AT", point.to_string())
            .env("DIR", dir.path())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        let report = undo(dir.path(), UndoOptions::default());
        assert!(report.is_clean(), "point {point}: {report:?}");
        let stands = !report.persistent.is_empty();
        assert_eq!(value(), if stands { "1" } else { "0-1" }, "point {point}");
        assert!(stands || !has_stood, "point {point}");
        has_stood = stands;
        let all = UndoOptions { persistent: true, ..UndoOptions::default() };
        assert!(undo(dir.path(), all).is_clean(), "point {point}");
        assert_eq!(value(), "0-1", "point {point}");
        assert!(journals(dir.path()).is_empty(), "point {point}");
        if status.signal() != Some(libc::SIGKILL) {
            assert!(status.success() && has_stood && point > 4, "point {point}: {status}");
            return;
        }
    }
}

#[test]
fn an_undo_that_is_killed_is_completed_by_the_next() {
    let Some((x, _)) = two_cpus("an_undo_that_is_killed") else { return };
    let dir = directory();
    let sleepers: Vec<Sleeper> = (0..3).map(|_| Sleeper::new()).collect();
    for point in 1.. {
        let mut text = line(&header());
        for (id, sleeper) in (1..).zip(&sleepers) {
            affinity::set(sleeper.task.tid, &just(x)).unwrap();
            text += &line(&pin(id, &sleeper.task, x));
        }
        put(dir.path(), "1-1.jsonl", text.as_bytes());
        let status = role("undoer")
            .env("AT", point.to_string())
            .env("DIR", dir.path())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        let report = undo(dir.path(), UndoOptions::default());
        assert!(report.is_clean() && report.kept.is_empty(), "point {point}: {report:?}");
        assert!(sleepers.iter().all(|sleeper| sleeper.mask() == all()), "point {point}");
        assert!(journals(dir.path()).is_empty(), "point {point}");
        if status.signal() != Some(libc::SIGKILL) {
            assert!(status.success() && point > 7, "point {point}: {status}");
            return;
        }
    }
}

#[test]
fn many_undos_at_once_do_the_work_once() {
    let Some((x, _)) = two_cpus("many_undos_at_once_do_the_work_once") else { return };
    let dir = directory();
    let sleepers: Vec<Sleeper> = (0..8).map(|_| Sleeper::new()).collect();
    for (index, sleeper) in sleepers.iter().enumerate() {
        affinity::set(sleeper.task.tid, &just(x)).unwrap();
        let text = line(&header()) + &line(&pin(1, &sleeper.task, x));
        put(dir.path(), &format!("1-{index}.jsonl"), text.as_bytes());
    }
    let reports: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| undo(dir.path(), UndoOptions::default()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Each was restored once, by one of them, and none reported an error.
    assert!(reports.iter().all(|report| report.is_clean()), "{reports:?}");
    assert_eq!(reports.iter().map(|report| report.restored.len()).sum::<usize>(), 8);
    assert!(sleepers.iter().all(|sleeper| sleeper.mask() == all()));
    assert!(journals(dir.path()).is_empty());
}
