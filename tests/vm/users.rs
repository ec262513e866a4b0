//! What the keel tells its users: root all, another user what is about its own tasks; and what each user
//! has of the table of address spaces.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::Test;
use crate::roles::role;
use crate::scheduler::Keel;
use crate::schema::check;
use crate::storms::{Threads, spin};
use crate::support::{EVENKEEL, NOBODY, output_within, text, wait_for};

pub const TESTS: &[Test] = &[
    Test { name: "users::each_is_told_about_its_own_tasks", run: each_is_told_about_its_own_tasks },
    Test { name: "users::status_shows_the_quota_of_spaces", run: status_shows_the_quota_of_spaces },
    Test {
        name: "users::a_name_of_the_configuration_is_no_way_around_the_quota",
        run: a_name_of_the_configuration_is_no_way_around_the_quota,
    },
];

/// Address spaces of one user.
const SHARE: usize = 64;

/// A user has a twentieth of the service's time: where guests are slow, 64 requests take minutes.
const TURNS: Duration = Duration::from_secs(600);

/// What a command of a user does.
fn done_by(uid: u32, arguments: &[&str]) -> Output {
    let mut command = Command::new(EVENKEEL);
    output_within(command.args(arguments).stdin(Stdio::null()).uid(uid), &[], TURNS)
}

/// What it prints; it must succeed.
fn said_to(uid: u32, arguments: &[&str]) -> String {
    let output = done_by(uid, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn json_for(uid: u32, arguments: &[&str]) -> Value {
    serde_json::from_str(&said_to(uid, arguments)).unwrap()
}

/// A process of a user, until it is killed.
fn started(uid: u32, name: &'static str) -> Child {
    let words = role(name);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).uid(uid);
    command.spawn().unwrap()
}

fn end(processes: Vec<Child>) {
    for mut process in processes {
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

/// The threads of a process.
fn threads_of(process: &Child) -> Vec<u64> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.id())).unwrap();
    tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// A process of eight threads that sleep most of the time, until its input ends: the gate keeps them
/// where they are.
pub fn play_sleepers() {
    let mut threads = Threads::default();
    (0..8).for_each(|_| {
        threads.start(|| {
            spin(Duration::from_millis(1));
            std::thread::sleep(Duration::from_millis(10));
        });
    });
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
    threads.end();
}

fn each_is_told_about_its_own_tasks() {
    let keel = Keel::start(&["--order", "ias", "--gate", "zone", "--zone", "hot", "--strict"]);
    let users = [0, NOBODY];
    let processes = users.map(|uid| started(uid, "sleepers"));
    for (uid, process) in users.iter().zip(&processes) {
        said_to(*uid, &["ias", "agg", &process.id().to_string()]);
    }
    let spaces = |uid| {
        let state = json_for(uid, &["ias", "show", "--json"]);
        let spaces = state["spaces"].as_array().unwrap();
        spaces.iter().map(|space| space["pid"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let pids = processes.each_ref().map(|process| u64::from(process.id()));
    assert_eq!((spaces(0), spaces(NOBODY)), (pids.to_vec(), vec![pids[1]]));
    let decided = |uid| {
        let all = json_for(uid, &["explain", "--keel", "--json", "--last", "100000"]);
        check("explain-keel", &all);
        let all = all["decisions"].as_array().unwrap();
        all.iter().map(|decision| decision["pid"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    wait_for("all threads", || processes.iter().all(|process| threads_of(process).len() == 9));
    let threads = processes.each_ref().map(threads_of);
    let is_of = |process: usize| {
        let threads = threads[process].clone();
        move |tid: &u64| threads.contains(tid)
    };
    wait_for("decisions about the other user's tasks", || {
        decided(0).iter().any(is_of(0)) && decided(NOBODY).iter().any(is_of(1))
    });
    for _ in 0..5 {
        assert!(!decided(NOBODY).iter().any(is_of(0)), "a user was told about root's tasks");
    }
    end(Vec::from(processes));
    assert_eq!(keel.end().0, Some(0));
}

fn status_shows_the_quota_of_spaces() {
    let keel = Keel::start(&["--order", "ias"]);
    assert!(!said_to(0, &["status"]).contains("address spaces"));
    let mut processes: Vec<Child> = (0..SHARE).map(|_| started(NOBODY, "changeling")).collect();
    said_to(NOBODY, &["ias", "agg", "--program", role("changeling")[0]]);
    let line = format!("User {NOBODY} at the keel: {SHARE} of {SHARE} address spaces");
    for uid in [0, NOBODY] {
        let status = said_to(uid, &["status"]);
        assert!(status.lines().any(|shown| shown == line), "{status}");
    }
    processes.push(started(NOBODY, "changeling"));
    let beyond = processes[SHARE].id().to_string();
    let refused = done_by(NOBODY, &["ias", "agg", &beyond]);
    let why = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && why.contains("the most for one user"), "{why}");
    let line = format!("{line}, 1 refused beyond that");
    for uid in [0, NOBODY] {
        let status = said_to(uid, &["status"]);
        assert!(status.lines().any(|shown| shown == line), "{status}");
    }
    // Another user is told nothing of that.
    assert!(!said_to(NOBODY - 1, &["status"]).contains("address spaces"));
    end(processes);
    assert_eq!(keel.end().0, Some(0));
}

/// Any user may call a program as the configuration does. Its processes count for the user.
fn a_name_of_the_configuration_is_no_way_around_the_quota() {
    let config = "/tmp/quota.toml";
    std::fs::write(config, "[ias.programs.init]\nbonus = \"2x\"\n").unwrap();
    let keel = Keel::start(&["--order", "ias", "--config", config]);
    let processes: Vec<Child> = (0..SHARE + 6).map(|_| started(NOBODY, "changeling")).collect();
    let line = format!("User {NOBODY} at the keel: {SHARE} of {SHARE} address spaces");
    wait_for("the quota", || said_to(0, &["status"]).lines().any(|shown| shown == line));
    // It looks for such processes each second.
    std::thread::sleep(Duration::from_secs(3));
    let state = json_for(0, &["ias", "show", "--json"]);
    let is_theirs = |space: &&Value| {
        processes.iter().any(|process| space["pid"].as_u64() == Some(u64::from(process.id())))
    };
    assert_eq!(state["spaces"].as_array().unwrap().iter().filter(is_theirs).count(), SHARE);
    end(processes);
    assert_eq!(keel.end().0, Some(0));
}
