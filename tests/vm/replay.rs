//! Tapes of a real kernel, replayed to the simulator's native build of the keel: the same decision at
//! every step.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Test;
use crate::scheduler::Keel;
use crate::storms::*;
use crate::support::{EVENKEEL_LAB, output, text};

/// Run in a guest with one CPU, where callbacks do not overlap.
pub const EXACT: &[Test] =
    &[Test { name: "replay::hogs_of_weights", run: || replayed(&[], hogs_of_weights) }];

/// The same with loads that make more callbacks, which take long where instructions are counted.
pub const ON_DEMAND: &[Test] = &[
    Test { name: "replay::sleepers", run: || replayed(&[], || crowd(12)) },
    Test { name: "replay::siblings", run: || replayed(&["--order=ias"], || crowd(12)) },
    Test { name: "replay::groups", run: || replayed(&["--balance=capability"], groups) },
    Test { name: "replay::real_time", run: || replayed(&["--gate=zone"], real_time) },
];

/// How long a load lasts.
const LOAD: Duration = Duration::from_millis(500);

fn lab(arguments: &[&str]) -> (Option<i32>, String) {
    let done = output(Command::new(EVENKEEL_LAB).args(arguments).stdin(Stdio::null()));
    (done.status.code(), text(&done.stdout) + &text(&done.stderr))
}

/// Records the keel under a load, and replays the tape.
fn replayed(flags: &[&str], load: impl FnOnce()) {
    let dir = tempfile::tempdir().unwrap();
    let tape = dir.path().join("tape");
    let tape = tape.to_str().unwrap();
    let keel = Keel::spawn(Command::new(EVENKEEL_LAB).args(["record", tape]).args(flags));
    load();
    let (code, said) = keel.end();
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = lab(&["replay", tape]);
    println!("{said}");
    assert_eq!(code, Some(0), "{said}");
    let callbacks = said.split(": ").nth(1).and_then(|rest| rest.split(' ').next());
    let callbacks: u64 = callbacks.and_then(|number| number.parse().ok()).unwrap();
    assert!(callbacks > 500, "hardly anything was recorded: {said}");
}

fn hogs_of_weights() {
    let mut hogs = Threads::default();
    for nice in [0, 5, -5] {
        hogs.start(|| spin(Duration::from_millis(1)));
        set_nice(*hogs.tids.last().unwrap(), nice);
    }
    std::thread::sleep(LOAD);
    hogs.end();
}

fn crowd(count: u64) {
    let crowd = restless(count);
    std::thread::sleep(LOAD);
    crowd.end();
}

fn groups() {
    let groups = [Group::new(300), Group::new(50)];
    let mut hogs = [&groups[0], &groups[1], &groups[1]].map(|group| {
        let hog = start("hog");
        group.take(&hog);
        hog
    });
    std::thread::sleep(LOAD);
    groups[1].take(&hogs[0]);
    std::thread::sleep(LOAD / 2);
    hogs.iter_mut().for_each(end);
    groups.into_iter().for_each(Group::end);
}

fn real_time() {
    let crowd = restless(10);
    let mut thief = Threads::default();
    thief.start(|| {
        spin(Duration::from_millis(3));
        std::thread::sleep(Duration::from_millis(7));
    });
    set_real_time(thief.tids[0], 10);
    std::thread::sleep(LOAD);
    thief.end();
    crowd.end();
}
