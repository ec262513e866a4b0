//! CPUs that go offline and come back under a running balancer. Only in a guest can they really go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_journal::{
    Placed, Released, Session, SessionOptions, TaskRef, affinity, effective_cpuset,
};

use crate::Test;
use crate::roles::role;
use crate::running_daemon::Daemon;
use crate::support::*;
use crate::worker::Worker;

pub const TESTS: &[Test] = &[
    Test { name: "hotplug::run_carries_on", run: run_carries_on },
    Test { name: "hotplug::the_daemon_carries_on", run: the_daemon_carries_on },
    Test {
        name: "hotplug::a_cpu_that_flaps_unseen_leaves_masks_in_order",
        run: a_cpu_that_flaps_unseen_leaves_masks_in_order,
    },
    Test {
        name: "hotplug::a_sleeper_whose_cpu_goes_keeps_its_mask",
        run: a_sleeper_whose_cpu_goes_keeps_its_mask,
    },
];

/// The default policy: besides exchanging tasks it fills CPUs that have become idle.
const LAG: [&str; 2] = ["--interval", "50ms"];

/// As many busy threads as CPUs, so that the CPU that goes was in use.
const THREADS: usize = 3;

pub fn switch(cpu: u32, on: bool) {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    std::fs::write(&path, if on { "1" } else { "0" }).unwrap_or_else(|why| panic!("{path}: {why}"));
}

/// Keeps CPU 0 half busy, so that there always is something to balance.
struct Hog {
    end: Arc<AtomicBool>,
}

impl Hog {
    fn start() -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&end);
        std::thread::spawn(move || {
            affinity::set(nix::unistd::gettid().as_raw(), &just(0)).unwrap();
            while !seen.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self { end }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// Waits for this many more moves of any thread; returns them.
fn more_moves(host: &Host, count: usize) -> Vec<(i32, u32)> {
    let since = host.pins().len();
    wait_for("moves", || host.pins().len() >= since + count);
    host.pins().split_off(since)
}

/// Takes away a CPU that a thread was pinned to, checks that the others are used on, gives it back, and
/// checks that it is used again.
fn take_away_and_give_back(host: &Host, worker: &Worker) {
    let before = all();
    // CPU 0 cannot be switched off.
    let last = || host.pins().iter().rev().map(|(_, cpu)| *cpu).find(|cpu| *cpu != 0);
    wait_for("a pin that can lose its CPU", || last().is_some());
    let gone = last().unwrap();
    switch(gone, false);
    assert_eq!(all(), before.difference(&just(gone)));
    // A plan may have been made before the CPU went: what counts is where the threads are in the end.
    more_moves(host, 4);
    let moves = more_moves(host, 8);
    assert!(moves.iter().all(|(_, cpu)| *cpu != gone), "CPU {gone} is off: {moves:?}");
    assert!(worker.threads.iter().all(|tid| !mask(*tid).is_empty()), "a thread can run nowhere");

    switch(gone, true);
    // The kernel adds the CPU to masks later, and before 6.2 leaves it out of masks that are restored.
    wait_for("its place in the cpuset", || effective_cpuset(worker.threads[0]).contains(gone));
    // evenkeel places threads there, or the kernel does.
    wait_for("its use", || worker.threads.iter().any(|tid| runs_on(*tid) == gone));
    // No thread is kept from it: each is pinned by us for now, or may use all CPUs.
    let is_free = |tid: &i32| mask(*tid).len() == 1 || mask(*tid) == before;
    wait_for("masks that have it again", || worker.threads.iter().all(is_free));
}

/// The CPU that a thread runs on, or ran on last.
pub fn runs_on(tid: i32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // Field 39 of all, of which two stand before.
    fields.split(' ').nth(36).unwrap().parse().unwrap()
}

fn run_carries_on() {
    for placement in ["hard", "soft"] {
        let _hog = Hog::start();
        let host = Host::new();
        let flags = [&["-q", "--placement", placement], &LAG[..]].concat();
        let mut worker = Worker::start_by(&mut host.run(&flags, &role("worker")), THREADS);
        take_away_and_give_back(&host, &worker);
        // evenkeel is killed, so that the program outlives it and its masks can be read.
        worker.kill_evenkeel();
        wait_for("the masks", || worker.is_as(&all()));
        wait_for("the journal's end", || host.journals().is_empty());
        assert!(host.status().is_empty());
        worker.let_end();
    }
}

fn the_daemon_carries_on() {
    let _hog = Hog::start();
    let host = Host::new();
    let daemon = Daemon::start(&host, &[&["--placement", "hard"], &LAG[..]].concat());
    let words = role("worker");
    let worker = Worker::start_by(host.command(words[0]).args(&words[1..]), THREADS);
    let joined = output(&mut host.evenkeel(["join", &worker.pid.to_string()]));
    assert!(joined.status.success(), "{joined:?}");
    take_away_and_give_back(&host, &worker);
    daemon.end();
    let masks: Vec<_> = worker.threads.iter().map(|tid| mask(*tid)).collect();
    assert!(worker.is_as(&all()), "{masks:?}");
    assert!(worker.end().success());
}

/// The CPU goes off and on again before the balancer can see it. The kernel has widened the pinned mask,
/// which cannot be told from a user's change, so that thread is let go. The others are moved on, and all
/// masks are in order in the end.
fn a_cpu_that_flaps_unseen_leaves_masks_in_order() {
    let _hog = Hog::start();
    let host = Host::new();
    let flags = [&["-q", "--placement", "hard"], &LAG[..]].concat();
    let mut worker = Worker::start_by(&mut host.run(&flags, &role("worker")), THREADS);
    let is_there = || worker.threads.iter().any(|tid| mask(*tid) == just(1));
    wait_for("a thread on CPU 1, and evenkeel's stop", || {
        stop_while_it_waits(worker.pid_of_evenkeel());
        if !is_there() {
            kill(worker.pid_of_evenkeel(), libc::SIGCONT);
        }
        is_there()
    });
    for _ in 0..20 {
        switch(1, false);
        switch(1, true);
    }
    assert!(!is_there(), "the kernel left a pin to a CPU that was off");
    kill(worker.pid_of_evenkeel(), libc::SIGCONT);
    more_moves(&host, 4);
    worker.kill_evenkeel();
    wait_for("the masks", || worker.is_as(&all()));
    assert!(host.status().is_empty());
    worker.let_end();
}

/// When a sleeping task's CPU goes, the kernel widens the task's mask only at its wake-up: until then it
/// has no CPU at all. The pin counts as ours all the same.
fn a_sleeper_whose_cpu_goes_keeps_its_mask() {
    let host = Host::new();
    let sleeper = Sleeper::start();
    let mut session = Session::open(&host.runtime(), SessionOptions::default()).unwrap();
    assert_eq!(session.place(&sleeper.task, 1).unwrap(), Placed::Pinned);
    switch(1, false);
    assert!(mask(sleeper.task.tid).is_empty(), "{}", mask(sleeper.task.tid));
    assert_eq!(session.release(&sleeper.task).unwrap(), Released::Restored);
    assert_eq!(mask(sleeper.task.tid), all());
    switch(1, true);
    wait_for("its place in the cpuset", || effective_cpuset(sleeper.task.tid).contains(1));
    session.follow_cpus(&sleeper.task).unwrap();
    assert_eq!(mask(sleeper.task.tid), all());
    assert!(session.close().is_clean());
}

/// A thread of this process that waits until this is dropped.
struct Sleeper {
    task: TaskRef,
    _end: std::sync::mpsc::Sender<()>,
}

impl Sleeper {
    fn start() -> Self {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw()).unwrap();
            let _ = ended.recv();
        });
        let process = nix::unistd::getpid().as_raw();
        let task = TaskRef::in_process(process, told.recv().unwrap()).unwrap();
        wait_for("its sleep", || state(task.tid) == 'S');
        Self { task, _end: end }
    }
}
