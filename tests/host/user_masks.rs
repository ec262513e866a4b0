//! The user's choice wins: threads that are pinned before or during a run.

use std::process::Stdio;

use evenkeel_bench::programs::{Installed, Program};
use evenkeel_journal::affinity;

use crate::roles::role;
use crate::support::*;
use crate::worker::Worker;

/// Stops evenkeel, pins the worker's first thread to the CPU where evenkeel did not place it, and
/// continues evenkeel. Returns that CPU. (A pin to the same CPU could not be told from evenkeel's
/// own.)
fn repin(worker: &Worker, x: u32, y: u32) -> u32 {
    let evenkeel = worker.pid_of_evenkeel();
    stop_while_it_waits(evenkeel);
    let tid = worker.threads[0];
    let chosen = if mask(tid) == just(x) { y } else { x };
    affinity::set(tid, &just(chosen)).unwrap();
    kill(evenkeel, libc::SIGCONT);
    chosen
}

#[test]
fn a_thread_that_is_pinned_in_mid_run_is_let_go() {
    let Some((x, y)) = two_cpus("a_thread_that_is_pinned_in_mid_run_is_let_go") else { return };
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let flags = [&["-q", "--placement", placement], &EAGER[..]].concat();
        let mut worker = Worker::start(&host, &flags);
        worker.wait_moved(&host, 2);
        let chosen = repin(&worker, x, y);
        let (tid, other) = (worker.threads[0], worker.threads[1]);
        // From the first interval on.
        host.wait_intervals(10);
        let before = host.pins_of(tid);
        host.wait_intervals(40);
        assert_eq!(host.pins_of(tid), before, "{placement}: it was moved again");
        assert_eq!(mask(tid), just(chosen));
        worker.kill_evenkeel();
        wait_for("the supervisor's work", || host.journals().is_empty());
        assert_eq!(mask(tid), just(chosen), "{placement}");
        assert_eq!(mask(other), all(), "{placement}");
        host.status();
    }
}

#[test]
fn a_program_that_pins_itself_in_mid_run_is_let_go() {
    let Some((x, _)) = two_cpus("a_program_that_pins_itself_in_mid_run_is_let_go") else { return };
    let host = Host::new();
    let mut worker = Worker::start(&host, &[&["-q"], &EAGER[..]].concat());
    worker.wait_moved(&host, 2);
    let tid = worker.threads[0];
    // A mask that is set in the very moment of a move may be overwritten (see stop_while_it_waits),
    // and the thread may be on its CPU by chance: only a thread that is not moved any more has been
    // let go.
    let is_let_go = (0..5).any(|_| {
        worker.ask(&x.to_string(), "pinned");
        host.wait_intervals(30);
        let before = host.pins_of(tid);
        host.wait_intervals(30);
        host.pins_of(tid) == before && mask(tid) == just(x)
    });
    assert!(is_let_go, "each time it was moved again");
    assert!(worker.end().success());
}

#[test]
fn with_override_it_is_moved_and_gets_its_users_mask_back() {
    let Some((x, y)) = two_cpus("with_override_it_is_moved_and_gets_its_users_mask_back") else {
        return;
    };
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let flags = [&["-q", "--override", "--placement", placement], &EAGER[..]].concat();
        let mut worker = Worker::start(&host, &flags);
        worker.wait_moved(&host, 2);
        let chosen = repin(&worker, x, y);
        let (tid, other) = (worker.threads[0], worker.threads[1]);
        let before = host.pins_of(tid);
        wait_for("more moves of it", || host.pins_of(tid) > before + 4);
        worker.kill_evenkeel();
        wait_for("the supervisor's work", || host.journals().is_empty());
        assert_eq!(mask(tid), just(chosen), "{placement}");
        assert_eq!(mask(other), all(), "{placement}");
        host.status();
    }
}

#[test]
fn threads_that_were_pinned_from_the_start_are_never_moved() {
    let Some((x, y)) = two_cpus("threads_that_were_pinned_from_the_start_are_never_moved") else {
        return;
    };
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let flags = [&["-q", "--placement", placement], &EAGER[..]].concat();
        let mut command = host.run(&flags, &role("worker"));
        let worker = Worker::start_by(command.env("PINNED", "1"), 2);
        host.wait_intervals(40);
        for (tid, cpu) in worker.threads.iter().zip([x, y]) {
            assert_eq!(host.pins_of(*tid), 0, "{placement}: it was moved");
            assert_eq!(mask(*tid), just(cpu), "{placement}");
        }
        assert!(worker.end().success());
    }
}

#[test]
fn with_override_threads_pinned_from_the_start_are_moved_and_get_their_masks_back() {
    let Some((x, y)) =
        two_cpus("with_override_threads_pinned_from_the_start_are_moved_and_get_their_masks_back")
    else {
        return;
    };
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let flags = [&["-q", "--override", "--placement", placement], &EAGER[..]].concat();
        let mut command = host.run(&flags, &role("worker"));
        let mut worker = Worker::start_by(command.env("PINNED", "1"), 2);
        worker.wait_moved(&host, 3);
        worker.kill_evenkeel();
        wait_for("the supervisor's work", || host.journals().is_empty());
        assert_eq!(mask(worker.threads[0]), just(x), "{placement}");
        assert_eq!(mask(worker.threads[1]), just(y), "{placement}");
        host.status();
    }
}

#[test]
fn openmp_threads_that_are_bound_are_never_moved() {
    let Some(_) = two_cpus("openmp_threads_that_are_bound_are_never_moved") else { return };
    let host = Host::new();
    let programs = Installed::new().unwrap();
    let path = programs.path(Program::StaticLoop);
    // The program stops evenkeel until the test has seen its threads: a thread that is not bound
    // yet may be moved.
    let script = "kill -STOP $PPID; exec \"$0\" --work 1000000";
    for is_bound in [true, false] {
        let flags = [&["-q"], &EAGER[..]].concat();
        let mut command = host.run(&flags, &["sh", "-c", script, path.to_str().unwrap()]);
        command.env("OMP_PROC_BIND", is_bound.to_string()).env("OMP_NUM_THREADS", "2");
        let mut evenkeel = command.stdout(Stdio::null()).spawn().unwrap();
        let pid = evenkeel.id() as i32;
        wait_for("the stop", || state(pid) == 'T');
        let mut threads = Vec::new();
        wait_for("the pool", || {
            threads = threads_below(pid);
            threads.len() == 2 && (!is_bound || threads.iter().all(|tid| mask(*tid).len() == 1))
        });
        let pins = || threads.iter().map(|tid| host.pins_of(*tid)).sum::<usize>();
        let before = pins();
        kill(pid, libc::SIGCONT);
        if is_bound {
            host.wait_intervals(30);
            assert_eq!(pins(), before);
        } else {
            wait_for("a move, without which this shows nothing", || pins() > before);
        }
        kill(pid, libc::SIGTERM);
        assert_eq!(wait_status(ended(&mut evenkeel)), libc::SIGTERM);
    }
}

/// The threads of a process's only child.
fn threads_below(pid: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let Some(child) = children.split_whitespace().next() else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(format!("/proc/{child}/task")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}
