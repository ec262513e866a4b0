//! The keel as a guest of a real kernel: it comes, goes, is killed, thrown out, and finds CPUs gone.

use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_invariants::Limits;
use evenkeel_journal::affinity;

use crate::Test;
use crate::hotplug::switch;
use crate::scheduler::{Keel, loads, state};
use crate::storms::*;
use crate::support::{EVENKEEL, just, output, text, wait_for};
use crate::watched::{ROUGH, watched};

/// On every kernel.
pub const SHORT: &[Test] = &[
    Test { name: "keel::is_accepted_by_the_kernel", run: is_accepted_by_the_kernel },
    Test { name: "keel::comes_and_goes", run: comes_and_goes },
];

/// On the kernel of all tests.
pub const LONG: &[Test] = &[
    Test { name: "keel::is_the_only_one", run: is_the_only_one },
    Test { name: "keel::killed_twenty_times", run: killed_twenty_times },
    Test { name: "keel::cpus_that_go_and_come", run: cpus_that_go_and_come },
    Test { name: "keel::a_stall_ends_it_with_a_report", run: a_stall_ends_it_with_a_report },
];

fn is_accepted_by_the_kernel() {
    let output = output(Command::new(EVENKEEL).args(["sched", "--load-only"]).stdin(Stdio::null()));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(state(), "disabled");
}

fn comes_and_goes() {
    for _ in 0..2 {
        let keel = Keel::start(&[]);
        let name = std::fs::read_to_string("/sys/kernel/sched_ext/root/ops").unwrap();
        assert!(name.contains("keel"), "{name}");
        watched(ROUGH, |_| {
            let crowd = restless(50);
            std::thread::sleep(Duration::from_secs(2));
            crowd.end();
        });
        let (code, said) = keel.end();
        assert_eq!(code, Some(0), "{said}");
    }
}

/// Another one is refused, says who is there, and harms nobody.
fn is_the_only_one() {
    let keel = Keel::start(&[]);
    let before = loads();
    let second = output(Command::new(EVENKEEL).arg("sched").stdin(Stdio::null()));
    let said = text(&second.stderr);
    assert_eq!(second.status.code(), Some(3), "{said}");
    assert!(said.contains("keel"), "{said}");
    assert_eq!((state().as_str(), loads()), ("enabled", before));
    assert_eq!(keel.end().0, Some(0));
}

/// Each time the kernel's own scheduler takes over, and nobody is lost between the two.
fn killed_twenty_times() {
    watched(ROUGH, |witness| {
        let crowd = restless(100);
        for _ in 0..20 {
            let mut keel = Keel::start(&[]);
            std::thread::sleep(Duration::from_millis(20));
            keel.process.kill().unwrap();
            keel.process.wait().unwrap();
            wait_for("the kernel's own scheduler", || state() == "disabled");
            witness.look().unwrap();
        }
        crowd.end();
    });
}

/// It is loaded anew each time.
fn cpus_that_go_and_come() {
    let keel = Keel::start(&[]);
    // A CPU that is off idles, whoever waits.
    watched(Limits { idle_grace_ns: 0, ..ROUGH }, |witness| {
        let crowd = restless(50);
        for round in 0..6 {
            let before = loads();
            switch(1 + round / 2 % 3, round % 2 == 1);
            wait_for("the keel to be loaded anew", || loads() > before && state() == "enabled");
            witness.look().unwrap();
        }
        crowd.end();
    });
    let (code, said) = keel.end();
    assert_eq!(code, Some(0), "{said}");
}

/// Nobody can schedule on a CPU that a real-time task never leaves: the kernel notices after half a
/// minute, and ends the keel, not the task.
fn a_stall_ends_it_with_a_report() {
    std::fs::write("/proc/sys/kernel/sched_rt_runtime_us", "-1").unwrap();
    let mut keel = Keel::start(&[]);
    let mut victim = Threads::default();
    victim.start(|| spin(Duration::from_millis(1)));
    affinity::set(victim.tids[0], &just(1)).unwrap();
    let mut hog = Threads::default();
    hog.start(|| spin(Duration::from_millis(10)));
    affinity::set(hog.tids[0], &just(1)).unwrap();
    set_real_time(hog.tids[0], 10);
    let (code, said) = keel.wait();
    hog.end();
    victim.end();
    std::fs::write("/proc/sys/kernel/sched_rt_runtime_us", "950000").unwrap();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("stall"), "{said}");
}
