//! Kills the keel's process at random moments from its start on, without and with load: the kernel's own
//! scheduler takes over, each task keeps its affinity, and the next keel starts. (Its namesake for the
//! host does the same with what runs without sched_ext.)

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_journal::affinity;

use crate::Test;
use crate::boots::soaks;
use crate::scheduler::{Keel, state};
use crate::storms::{Random, Threads, restless};
use crate::support::{EVENKEEL, all, ended, just, mask, wait_for};

pub const TESTS: &[Test] = &[
    Test { name: "kill_moments::without_load", run: || kill_keels(false) },
    Test { name: "kill_moments::under_load", run: || kill_keels(true) },
];

/// Of each test; together 50 in a soak.
const KILLS: u64 = 4;
const KILLS_OF_SOAK: u64 = 25;
/// A keel takes some seconds to be loaded in a guest: it is killed before that, meanwhile and after it.
const LONGEST: Duration = Duration::from_secs(8);

const FLAGS: [&[&str]; 3] =
    [&[], &["--order", "ias", "--gate", "zone", "--balance", "capability"], &["--shield", "1"]];

fn pinned() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/sys/fs/bpf").into_iter().flatten().flatten();
    entries.map(|entry| entry.path().display().to_string()).collect()
}

fn kill_keels(is_loaded: bool) {
    let mut random = Random::new(if is_loaded { 2 } else { 1 });
    let mut threads = if is_loaded { restless(20) } else { Threads::default() };
    // One that its user pinned, and one that may use all CPUs.
    let tids: Vec<i32> = (0..2)
        .map(|_| {
            threads.start(|| std::thread::sleep(Duration::from_millis(5)));
            *threads.tids.last().unwrap()
        })
        .collect();
    affinity::set(tids[0], &just(0)).unwrap();
    let masks = [just(0), all()];
    let before = pinned();
    let kills = if soaks() { KILLS_OF_SOAK } else { KILLS };
    let mut scheduled = 0;
    for at in 0..kills {
        let flags = FLAGS[random.below(FLAGS.len() as u64) as usize];
        let mut command = Command::new(EVENKEEL);
        command.arg("sched").args(flags).stdin(Stdio::null()).stderr(Stdio::null());
        let mut keel = command.spawn().unwrap();
        // Once at least it schedules when it is killed.
        if at == 0 {
            wait_for("the keel", || state() == "enabled");
        } else {
            std::thread::sleep(Duration::from_millis(random.below(LONGEST.as_millis() as u64)));
        }
        scheduled += u64::from(state() == "enabled");
        keel.kill().unwrap();
        ended(&mut keel);
        wait_for("the kernel's own scheduler", || state() == "disabled");
        assert_eq!(tids.iter().map(|tid| mask(*tid)).collect::<Vec<_>>(), masks);
        assert_eq!(pinned(), before);
    }
    println!("{kills} kills, {scheduled} of a keel that scheduled");
    // The socket of a killed keel hinders no other one.
    assert_eq!(Keel::start(&[]).end().0, Some(0));
    assert!(!Path::new(evenkeel_control::KEEL_SOCKET).exists());
    threads.end();
}
