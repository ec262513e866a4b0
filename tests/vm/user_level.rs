//! The parts that need no sched_ext, on every kernel: accounting, `evenkeel run`, the daemon and undo.

use evenkeel_cbinfo::Cbinfo;
use serde_json::Value;

use crate::Test;
use crate::running_daemon::{Daemon, lone_worker};
use crate::support::*;
use crate::worker::Worker;

pub const TESTS: &[Test] = &[
    Test {
        name: "user_level::run_time_is_what_the_kernel_says",
        run: run_time_is_what_the_kernel_says,
    },
    Test {
        name: "user_level::waiting_is_told_from_work_and_barriers_are_counted",
        run: waiting_is_told_from_work_and_barriers_are_counted,
    },
    Test { name: "user_level::doctor_finds_exact_accounting", run: doctor_finds_exact_accounting },
    Test {
        name: "user_level::run_moves_and_gives_masks_back",
        run: run_moves_and_gives_masks_back,
    },
    Test { name: "user_level::a_killed_run_is_undone", run: a_killed_run_is_undone },
    Test {
        name: "user_level::undo_takes_back_what_a_killed_run_and_supervisor_left",
        run: undo_takes_back_what_a_killed_run_and_supervisor_left,
    },
    Test {
        name: "user_level::the_daemon_balances_a_program_that_joins",
        run: the_daemon_balances_a_program_that_joins,
    },
];

/// Without it, evenkeel would go on with figures from /proc where a kernel does not take cbinfo.
const EXACT: [&str; 2] = ["--accounting", "cbinfo"];
const HARD: [&str; 6] = ["--placement", "hard", "--policy", "paper", "--interval", "20ms"];

fn thread_time_ns() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// The accounting's object fits this kernel's types, and what it counts agrees with the kernel.
fn run_time_is_what_the_kernel_says() {
    let mut cbinfo = Cbinfo::open(&[]).unwrap();
    cbinfo.follow(std::process::id(), 1).unwrap();
    let own = nix::unistd::gettid().as_raw() as u32;
    // The kernel's clock before and after: an emulated CPU reads for long.
    let mut got = || {
        let before = thread_time_ns();
        let tasks = cbinfo.tasks().unwrap();
        let task = tasks.into_iter().find(|task| task.tid == own).unwrap();
        (before, task.run_ns + task.stolen_ns, thread_time_ns())
    };
    let first = got();
    while thread_time_ns() - first.2 < 500_000_000 {
        std::hint::spin_loop();
    }
    let last = got();
    let counted = last.1 - first.1;
    let (least, most) = (last.0 - first.2, last.2 - first.0);
    let (low, high) = (least as f64 * 0.97, most as f64 * 1.03);
    let is_right = (low..high).contains(&(counted as f64));
    assert!(is_right, "counted {counted} ns, the kernel says {least} to {most} ns");
}

/// The kernel takes the programs that see waiting. This process says itself where it waits.
fn waiting_is_told_from_work_and_barriers_are_counted() {
    const WAKES: usize = 20;
    let (own, everywhere) = (std::process::id(), 0..1 << 63);
    let mut cbinfo = Cbinfo::open(&[]).unwrap();
    cbinfo.follow(own, 1).unwrap();
    let cpus: Vec<u32> = (0..cbinfo.cpus().len() as u32).collect();
    cbinfo.waiting().unwrap().start_sampling(&cpus, 499).unwrap();
    let tid = nix::unistd::gettid().as_raw() as u32;
    let mut sampled = |ranges: &[std::ops::Range<u64>]| {
        cbinfo.waiting().unwrap().set_ranges(own, ranges).unwrap();
        // What comes while the ranges are changed counts for neither.
        let mut read = || {
            let task = cbinfo.tasks().unwrap().into_iter().find(|task| task.tid == tid).unwrap();
            (task.samples, task.spun)
        };
        let before = read();
        let start = thread_time_ns();
        while thread_time_ns() - start < 500_000_000 {
            std::hint::spin_loop();
        }
        let after = read();
        (after.0 - before.0, after.1 - before.1)
    };
    let (waited, spun) = sampled(&[everywhere]);
    assert!(waited > 20 && spun == waited, "{spun} of {waited}");
    let (worked, spun) = sampled(&[]);
    assert!(worked > 20 && spun == 0, "{spun} of {worked}");
    let waiting = cbinfo.waiting().unwrap();
    waiting.stop_sampling();
    waiting.barriers().watch(own, 1).unwrap();
    waiting.barriers().open_window().unwrap();
    let word = std::sync::atomic::AtomicU32::new(0);
    // One waiter is no barrier; all of them are.
    for number in (0..WAKES).flat_map(|_| [1, i32::MAX]) {
        // SAFETY: wakes the waiters at a word that lives; there are none.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, number) };
    }
    let wakes = waiting.barriers().close_window().unwrap().wakes;
    let own = wakes.iter().find(|wakes| wakes.address == word.as_ptr() as u64);
    assert_eq!(own.map(|wakes| wakes.count), Some(WAKES as u64), "{wakes:?}");
}

fn doctor_finds_exact_accounting() {
    let host = Host::new();
    let output = output(&mut host.evenkeel(["doctor", "--json"]));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(report["accounting"], "cbinfo", "{report:#}");
}

fn run_moves_and_gives_masks_back() {
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let worker =
            Worker::start(&host, &[&["-q", "--placement", placement][..], &EXACT, &EAGER].concat());
        worker.wait_moved(&host, 2);
        assert!(worker.end().success());
    }
}

fn a_killed_run_is_undone() {
    let host = Host::new();
    let mut worker = Worker::start(&host, &[&["-q"][..], &EXACT, &HARD].concat());
    worker.wait_moved(&host, 1);
    worker.kill_evenkeel();
    wait_for("masks to be given back", || worker.is_as(&all()));
    assert!(host.status().is_empty());
    worker.let_end();
}

fn undo_takes_back_what_a_killed_run_and_supervisor_left() {
    let host = Host::new();
    let mut worker =
        Worker::start(&host, &[&["-q", "--no-supervisor"][..], &EXACT, &HARD].concat());
    worker.wait_moved(&host, 1);
    kill(worker.pid_of_evenkeel(), libc::SIGSTOP);
    wait_for("its stop", || state(worker.pid_of_evenkeel()) == 'T');
    worker.kill_evenkeel();
    assert!(!worker.is_as(&all()), "nothing was left to undo");
    host.undo();
    assert!(worker.is_as(&all()));
    assert!(host.status().is_empty());
    worker.let_end();
}

fn the_daemon_balances_a_program_that_joins() {
    let host = Host::new();
    let daemon = Daemon::start(&host, &[&["--placement", "hard"][..], &EXACT, &EAGER].concat());
    let worker = lone_worker(&host);
    let joined = output(&mut host.evenkeel(["join", &worker.pid.to_string()]));
    assert!(joined.status.success(), "{joined:?}");
    worker.wait_moved(&host, 2);
    daemon.end();
    assert!(worker.is_as(&all()));
    assert!(worker.end().success());
}
