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
    Test {
        name: "users::the_configurations_programs_count_for_the_quota_that_status_shows",
        run: the_configurations_programs_count_for_the_quota_that_status_shows,
    },
];

/// Address spaces of one user.
const SHARE: usize = 64;

/// A user has a twentieth of the service's time, which is little where guests are slow.
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

/// Any user may call a program as the configuration does: its processes count for the user as those do
/// that the user asked for. `status` shows the quota to the user and to root.
fn the_configurations_programs_count_for_the_quota_that_status_shows() {
    let config = "/tmp/quota.toml";
    std::fs::write(config, "[ias.programs.init]\nbonus = \"2x\"\n").unwrap();
    let keel = Keel::start(&["--order", "ias", "--config", config]);
    assert!(!said_to(0, &["status"]).contains("address spaces"));
    let processes: Vec<Child> = (0..SHARE + 6).map(|_| started(NOBODY, "changeling")).collect();
    let mut line = format!("User {NOBODY} at the keel: {SHARE} of {SHARE} address spaces");
    let is_shown = |uid: u32, line: &str| said_to(uid, &["status"]).lines().any(|one| one == line);
    said_to(NOBODY, &["ias", "agg", &processes[0].id().to_string()]);
    wait_for("the quota", || is_shown(0, &line));
    // It looks for such processes each second.
    std::thread::sleep(Duration::from_secs(3));
    let state = json_for(0, &["ias", "show", "--json"]);
    let spaces = state["spaces"].as_array().unwrap();
    let has_one = |process: &&Child| {
        spaces.iter().any(|space| space["pid"].as_u64() == Some(u64::from(process.id())))
    };
    assert_eq!(processes.iter().filter(has_one).count(), SHARE);
    assert!(is_shown(NOBODY, &line));
    // That the configuration tries again each second is no refusal; this is one.
    let beyond = processes.iter().find(|process| !has_one(process)).unwrap().id().to_string();
    let refused = done_by(NOBODY, &["ias", "agg", &beyond]);
    let why = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && why.contains("the most for one user"), "{why}");
    line += ", 1 refused beyond that";
    assert!(is_shown(0, &line) && is_shown(NOBODY, &line));
    // Another user is told nothing of that.
    assert!(!said_to(NOBODY - 1, &["status"]).contains("address spaces"));
    end(processes);
    assert_eq!(keel.end().0, Some(0));
}
