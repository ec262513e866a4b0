//! CPUs that go and come back under a running balancer: for real, as no other place here allows.

use crate::Test;
use crate::balancer::Daemon;
use crate::roles::role;
use crate::support::*;
use crate::worker::Worker;

pub const TESTS: &[Test] = &[
    Test { name: "hotplug::run_carries_on", run: run_carries_on },
    Test { name: "hotplug::the_daemon_carries_on", run: the_daemon_carries_on },
    Test { name: "hotplug::a_cpu_that_flaps", run: a_cpu_that_flaps },
];

/// As many busy threads as CPUs, so that the CPU that goes was in use.
const THREADS: usize = 3;

fn switch(cpu: u32, on: bool) {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    std::fs::write(&path, if on { "1" } else { "0" }).unwrap_or_else(|why| panic!("{path}: {why}"));
}

/// Takes away a CPU that a thread was pinned to, sees that the others are used on, gives it back,
/// and sees that it is used again.
fn take_away_and_give_back(host: &Host, worker: &Worker) {
    let before = all();
    worker.wait_moved(host, 1);
    // CPU 0 cannot be switched off.
    let last = || host.pins().iter().rev().map(|(_, cpu)| *cpu).find(|cpu| *cpu != 0);
    wait_for("a pin that can lose its CPU", || last().is_some());
    let gone = last().unwrap();
    switch(gone, false);
    assert_eq!(all(), before.difference(&just(gone)));

    // Which plan was made before it went nobody can say: what counts is where it leads.
    for tid in &worker.threads {
        let moves = host.pins_of(*tid);
        wait_for("moves without it", || host.pins_of(*tid) >= moves + 4);
    }
    let since = host.pins().len();
    for tid in &worker.threads {
        let moves = host.pins_of(*tid);
        wait_for("more moves without it", || host.pins_of(*tid) >= moves + 2);
    }
    let lost: Vec<_> = host.pins().split_off(since);
    assert!(
        lost.iter().all(|(_, cpu)| *cpu != gone),
        "pinned to CPU {gone}, which is off: {lost:?}"
    );
    assert!(worker.threads.iter().all(|tid| !mask(*tid).is_empty()), "a thread can run nowhere");

    switch(gone, true);
    let since = host.pins().len();
    wait_for("its use", || host.pins()[since..].iter().any(|(_, cpu)| *cpu == gone));
}

fn run_carries_on() {
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let flags = [&["-q", "--placement", placement], &EAGER[..]].concat();
        let mut worker = Worker::start_by(&mut host.run(&flags, &role("worker")), THREADS);
        take_away_and_give_back(&host, &worker);
        // Killed, so that the program outlives it and can be looked at.
        worker.kill_evenkeel();
        wait_for("the masks", || worker.is_as(&all()));
        wait_for("the journal's end", || host.journals().is_empty());
        worker.let_end();
    }
}

fn the_daemon_carries_on() {
    let host = Host::new();
    let daemon = Daemon::start(&host, &[&["--placement", "hard"], &EAGER[..]].concat());
    let words = role("worker");
    let worker = Worker::start_by(host.command(words[0]).args(&words[1..]), THREADS);
    let joined = output(&mut host.evenkeel(["join", &worker.pid.to_string()]));
    assert!(joined.status.success(), "{joined:?}");
    take_away_and_give_back(&host, &worker);
    daemon.end();
    assert!(worker.is_as(&all()));
    assert!(worker.end().success());
}

/// Off and on in a loop, faster than anybody could follow.
fn a_cpu_that_flaps() {
    let host = Host::new();
    let flags = [&["-q", "--placement", "hard"], &EAGER[..]].concat();
    let mut worker = Worker::start_by(&mut host.run(&flags, &role("worker")), THREADS);
    worker.wait_moved(&host, 1);
    for _ in 0..20 {
        switch(1, false);
        switch(1, true);
    }
    for tid in &worker.threads {
        let moves = host.pins_of(*tid);
        wait_for("moves after it", || host.pins_of(*tid) > moves);
    }
    worker.kill_evenkeel();
    wait_for("the masks", || worker.is_as(&all()));
    worker.let_end();
}
