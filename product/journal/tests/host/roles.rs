//! Roles: processes that tests start. Each is this program again, with one of these "tests" chosen by
//! name. Without its variable (`cargo test -- --ignored`) a role does nothing.

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use evenkeel_journal::{
    ChangedTable, JournalError, MovedLine, PlaceError, Placed, Released, RestoredSetting, Session,
    SessionOptions, Supervisor, TaskRef, UndoOptions, failpoint, find_irqbalance, supervise, undo,
};

use crate::{slow_clone, tools};

fn is_meant(name: &str) -> bool {
    std::env::var("EVENKEEL_TEST_ROLE").is_ok_and(|role| role == name)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

pub fn tid() -> i32 {
    // SAFETY: gettid takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

fn say(tid: i32) {
    println!("tid={tid}");
    std::io::stdout().flush().unwrap();
}

fn sleep() -> ! {
    loop {
        std::thread::park();
    }
}

#[test]
#[ignore = "a role"]
fn victim() {
    if !is_meant("victim") {
        return;
    }
    say(tid());
    for line in std::io::stdin().lock().lines() {
        let mut sleeper = Command::new("sleep");
        sleeper.arg("600").stdin(Stdio::null()).stdout(Stdio::null());
        match line.unwrap().as_str() {
            "thread" => {
                std::thread::spawn(|| {
                    say(tid());
                    sleep()
                });
            }
            "child" => say(sleeper.spawn().unwrap().id() as i32),
            "orphan" => {
                let script = "sleep 600 </dev/null >/dev/null 2>&1 & echo $!";
                let output = Command::new("sh").args(["-c", script]).output().unwrap();
                say(String::from_utf8(output.stdout).unwrap().trim().parse().unwrap());
            }
            "slow child" => {
                let next_line = || {
                    say(0);
                    // No other thread reads now, and nothing was read ahead.
                    let mut byte = [0u8];
                    // SAFETY: one byte, into a buffer that lives across the call.
                    while unsafe { libc::read(0, byte.as_mut_ptr().cast(), 1) } == 1
                        && byte != [b'\n']
                    {}
                };
                say(slow_clone::child(next_line).unwrap_or(-1));
            }
            "exec" => panic!("{}", sleeper.exec()),
            other => panic!("{other}"),
        }
    }
}

/// The supervisor of the session below.
#[test]
#[ignore = "a role"]
fn supervisor() {
    let journal = std::env::var_os("EVENKEEL_TEST_JOURNAL");
    if let Some(journal) = journal {
        supervise(&PathBuf::from(journal));
        // Otherwise the test harness would write to standard output.
        std::process::exit(0);
    }
}

pub fn start_supervisor(journal: PathBuf) -> Supervisor {
    // No other thread of this process uses the environment: the role has one test thread, and the
    // harness's main thread waits for it.
    // SAFETY: as said, no other thread reads or writes the environment now.
    unsafe { std::env::set_var("EVENKEEL_TEST_JOURNAL", journal) };
    let exe = std::env::current_exe().unwrap();
    let args = ["--ignored", "--exact", "roles::supervisor", "--nocapture", "--test-threads=1"];
    Supervisor::start(&exe, args).unwrap()
}

fn place_and_release(session: &mut Session, task: &TaskRef, cpu: u32) {
    assert_eq!(session.place(task, cpu).unwrap(), Placed::Pinned);
    assert_eq!(session.release(task).unwrap(), Released::Restored);
}

/// A session from beginning to end that is killed at failpoint AT.
#[test]
#[ignore = "a role"]
fn writer() {
    if !is_meant("writer") {
        return;
    }
    failpoint::arm(variable("AT").parse().unwrap());
    let options = SessionOptions {
        override_user: true,
        // Compacts at almost every entry.
        compact_bytes: Some(300),
        ..SessionOptions::default()
    };
    let mut session = Session::open(&PathBuf::from(variable("DIR")), options).unwrap();
    let supervisor =
        (variable("SUPERVISED") == "1").then(|| start_supervisor(session.journal_path()));
    let tasks: Vec<TaskRef> = variable("TASKS")
        .split(',')
        .map(|tid| TaskRef::of(tid.parse().unwrap()).unwrap())
        .collect();
    let cpus: Vec<u32> = variable("CPUS").split(',').map(|cpu| cpu.parse().unwrap()).collect();
    let [a, b, c, d, bound, root] = tasks[..] else { panic!("{tasks:?}") };
    let [x, y] = cpus[..] else { panic!("{cpus:?}") };

    session.add_program(&root).unwrap();
    // Ordinary files stand for settings of the kernel.
    let settings = ["first", "second"].map(|name| PathBuf::from(variable("DIR")).join(name));
    assert!(session.change_setting(&settings[0], "7").unwrap());
    // A child that inherits a pin, and outlives this process.
    let own = TaskRef::of(tid()).unwrap();
    session.add_program(&own.process().unwrap()).unwrap();
    session.place(&own, x).unwrap();
    let mut sleeper = Command::new("sleep");
    sleeper.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = sleeper.spawn().unwrap().id() as i32;
    say(child);
    // Failpoints at which no entry names the child yet.
    place_and_release(&mut session, &d, x);
    assert!(session.free_inherited(&TaskRef::of(child).unwrap()).unwrap());
    place_and_release(&mut session, &own, y);

    assert!(session.change_setting(&settings[1], "8").unwrap());
    assert_eq!(session.restore_setting(&settings[0]).unwrap(), RestoredSetting::Restored);
    assert!(session.change_setting(&settings[0], "9").unwrap());
    assert!(session.change_setting(&settings[0], "10").unwrap());
    // Ordinary files stand for an interrupt line, too.
    let root = PathBuf::from(variable("DIR"));
    for cpus in ["1", "0"] {
        let moved = session.move_line(&root, 7, "eth0", &cpus.parse().unwrap()).unwrap();
        assert_eq!(moved, MovedLine::Moved);
    }
    for queues in [[1, 1, 0, 1], [1, 1, 1, 1]] {
        let changed = session.change_table(&root, "eth0", &queues).unwrap();
        assert_eq!(changed, ChangedTable::Changed);
    }
    // The test's own process stands for irqbalance.
    let irqbalance = &find_irqbalance(&root)[0];
    for line in [7, 8] {
        session.ban_line(irqbalance, line).unwrap();
    }
    assert_eq!(session.place(&a, x).unwrap(), Placed::Pinned);
    place_and_release(&mut session, &b, y);
    assert_eq!(session.place(&c, x).unwrap(), Placed::Pinned);
    assert_eq!(session.place(&a, y).unwrap(), Placed::Pinned);
    assert_eq!(session.place(&bound, x).unwrap(), Placed::Pinned);
    assert_eq!(session.place(&b, x).unwrap(), Placed::Pinned);
    place_and_release(&mut session, &d, y);
    session.release(&c).unwrap();
    assert_eq!(session.place(&a, y).unwrap(), Placed::Unchanged);
    assert_eq!(session.release(&bound).unwrap(), Released::Restored);
    assert!(session.close().is_clean());
    if let Some(supervisor) = supervisor {
        supervisor.dismiss();
    }
    std::process::exit(0);
}

/// A session that lets its change stand, and is killed at failpoint AT.
#[test]
#[ignore = "a role"]
fn persister() {
    if !is_meant("persister") {
        return;
    }
    failpoint::arm(variable("AT").parse().unwrap());
    let root = PathBuf::from(variable("DIR"));
    let mut session = Session::open(&root, SessionOptions::default()).unwrap();
    for cpus in ["0", "1"] {
        let moved = session.move_line(&root, 7, "eth0", &cpus.parse().unwrap()).unwrap();
        assert_eq!(moved, MovedLine::Moved);
    }
    session.persist().unwrap();
    std::process::exit(0);
}

/// An undo that is killed at failpoint AT.
#[test]
#[ignore = "a role"]
fn undoer() {
    if !is_meant("undoer") {
        return;
    }
    failpoint::arm(variable("AT").parse().unwrap());
    let report = undo(&PathBuf::from(variable("DIR")), UndoOptions::default());
    assert!(report.is_clean(), "{report:?}");
    std::process::exit(0);
}

/// A session that pins one task and waits to be killed.
#[test]
#[ignore = "a role"]
fn waiter() {
    if !is_meant("waiter") {
        return;
    }
    let mut session =
        Session::open(&PathBuf::from(variable("DIR")), SessionOptions::default()).unwrap();
    let supervisor =
        (variable("SUPERVISED") == "1").then(|| start_supervisor(session.journal_path()));
    let task = TaskRef::of(variable("TASKS").parse().unwrap()).unwrap();
    session.place(&task, variable("CPUS").parse().unwrap()).unwrap();
    say(supervisor.as_ref().map_or(0, |supervisor| supervisor.pid() as i32));
    sleep()
}

/// A session whose journal may not grow (RLIMIT_FSIZE).
#[test]
#[ignore = "a role"]
fn limited() {
    if !is_meant("limited") {
        return;
    }
    let sleeper = tools::Sleeper::new();
    let mut session =
        Session::open(&PathBuf::from(variable("DIR")), SessionOptions::default()).unwrap();
    let length = std::fs::metadata(session.journal_path()).unwrap().len();
    let limit = libc::rlimit { rlim_cur: length + 10, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel reads the one rlimit that the pointer names.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let before = sleeper.mask();
    let cpu = before.iter().next().unwrap();
    let result = session.place(&sleeper.task, cpu);
    assert!(
        matches!(result, Err(PlaceError::Journal(JournalError::Full { .. }))) || before.len() == 1,
        "{result:?}"
    );
    assert_eq!(sleeper.mask(), before);
    assert_eq!(std::fs::metadata(session.journal_path()).unwrap().len(), length);
    drop(sleeper);
    println!("passed");
    // Without destructors: a session that changed nothing must leave nothing to undo.
    std::io::stdout().flush().unwrap();
    std::process::exit(0);
}

/// A session on a file system of one page: no space left, and then read-only.
#[test]
#[ignore = "a role"]
fn full() {
    if !is_meant("full") {
        return;
    }
    let dir = variable("DIR");
    let mount = |flags, options: &str| {
        let to_c = |text: &str| std::ffi::CString::new(text).unwrap();
        let (source, target, kind, options) =
            (to_c("none"), to_c(&dir), to_c("tmpfs"), to_c(options));
        // SAFETY: four C strings that live across the call.
        unsafe {
            libc::mount(
                source.as_ptr(),
                target.as_ptr(),
                kind.as_ptr(),
                flags,
                options.as_ptr().cast(),
            )
        }
    };
    // SAFETY: flags only; the new mount namespace ends with this process.
    let apart = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
    // SAFETY: two C strings that live across the call, and null where none is needed.
    let private = apart
        && unsafe {
            libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            )
        } == 0;
    if !private || mount(0, "size=8k,mode=700") != 0 {
        evenkeel_skip::skip(
            "full_disk",
            format!("cannot mount: {}", std::io::Error::last_os_error()),
        );
        std::process::exit(0);
    }
    let sleeper = tools::Sleeper::new();
    let before = sleeper.mask();
    let mut cpus = before.iter();
    let (x, y) = (cpus.next().unwrap(), cpus.next().unwrap());
    let path = PathBuf::from(&dir);
    let mut session = Session::open(&path, SessionOptions::default()).unwrap();
    let mut placed = 0;
    let error = loop {
        match session.place(&sleeper.task, if placed % 2 == 0 { x } else { y }) {
            Ok(_) => placed += 1,
            Err(error) => break error,
        }
        assert!(placed < 1000, "the file system is never full");
    };
    assert!(matches!(&error, PlaceError::Journal(JournalError::Write { .. })), "{error}");
    assert!(error.to_string().contains("No space left"), "{error}");
    assert!(placed > 3);
    // The task is where the last entry that could be written says.
    assert_eq!(sleeper.mask(), tools::just(if placed % 2 == 1 { x } else { y }));
    // No torn line was left.
    let text = std::fs::read(session.journal_path()).unwrap();
    assert_eq!(text.last(), Some(&b'\n'));
    // Restoring needs no space.
    let report = session.close();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.restored, [sleeper.task]);
    assert_eq!(sleeper.mask(), before);

    assert_eq!(mount(libc::MS_REMOUNT | libc::MS_RDONLY, ""), 0);
    let error = Session::open(&path, SessionOptions::default()).unwrap_err();
    assert!(error.to_string().contains("Read-only"), "{error}");
    println!("passed");
    std::io::stdout().flush().unwrap();
    drop(sleeper);
    std::process::exit(0);
}
