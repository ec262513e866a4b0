//! What programs do while they are balanced: exec, fork, end at once, start a pool or a virtual
//! machine. Each sees all CPUs.

use std::process::{Command, Stdio};

use crate::compiled::Compiled;
use crate::roles::role;
use crate::support::*;
use crate::worker::{Worker, lines_of};

fn count() -> String {
    all().iter().count().to_string()
}

fn eager(placement: &'static str) -> Vec<&'static str> {
    [&["-q", "--placement", placement], &EAGER[..]].concat()
}

/// A shell script that ends once its process may use all CPUs, and says so.
fn until_all() -> String {
    format!("while n=$(nproc); [ $n != {} ]; do sleep 0.01; done; echo $n", count())
}

#[test]
fn a_program_that_ends_at_once_ends_as_without_evenkeel() {
    let host = Host::new();
    for flags in [&[][..], &["--accounting", "procfs"], &["--placement", "hard"], &["--dry-run"]] {
        for _ in 0..5 {
            let run = output(&mut host.run(flags, &["true"]));
            assert!(run.status.success() && run.stdout.is_empty(), "{run:?}");
            only_summary(&run);
        }
        let run = output(&mut host.run(&[flags, &["-q"]].concat(), &["true"]));
        assert!(run.stderr.is_empty(), "{run:?}");
    }
}

#[test]
fn what_a_program_forks_at_once_is_followed() {
    let host = Host::new();
    // Both are there long before evenkeel begins to observe.
    let endless = "exec sh -c \"echo $$; while :; do :; done\"";
    let program = ["sh", "-c", &format!("sh -c '{endless}' & wait")];
    let mut command = host.run(&eager("soft"), &program);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = lines_of(child.stdout.take().unwrap());
    let pid: i32 = lines.recv_timeout(PATIENCE).unwrap().parse().unwrap();
    wait_for("the child among the threads that are followed", || {
        let status = host.status();
        let threads = status.first().and_then(|run| run["threads"].as_array());
        threads.is_some_and(|threads| threads.iter().any(|thread| thread["tid"] == pid))
    });
    kill(pid, libc::SIGTERM);
    assert!(ended(&mut child).success());
}

#[test]
fn a_task_that_execs_sees_all_cpus() {
    let Some(_) = two_cpus("a_task_that_execs_sees_all_cpus") else { return };
    for placement in ["soft", "hard"] {
        let host = Host::new();
        let mut worker = Worker::start(&host, &eager(placement));
        worker.wait_moved(&host, 2);
        // The moved thread executes the new program, which keeps the process number.
        worker.tell(&format!("exec {}; echo @became=$n,$$; read x; exit 6", until_all()));
        assert_eq!(worker.answer("became"), format!("{},{}", count(), worker.pid), "{placement}");
        wait_for("its own freedom", || mask(worker.pid) == all());
        assert_eq!(worker.end().code(), Some(6));
    }
}

#[test]
fn a_task_that_execs_is_moved_again() {
    let Some(_) = two_cpus("a_task_that_execs_is_moved_again") else { return };
    let host = Host::new();
    let mut worker = Worker::start(&host, &eager("soft"));
    worker.wait_moved(&host, 1);
    let before = host.pins_of(worker.pid);
    worker.tell("exec while :; do :; done");
    wait_for("moves of what it became", || host.pins_of(worker.pid) > before + 2);
    kill(worker.pid, libc::SIGTERM);
    assert_eq!(wait_status(ended(&mut worker.evenkeel)), libc::SIGTERM);
}

#[test]
fn children_of_a_moved_thread_see_all_cpus() {
    let Some(_) = two_cpus("children_of_a_moved_thread_see_all_cpus") else { return };
    for placement in ["soft", "hard"] {
        let host = Host::new();
        let mut worker = Worker::start(&host, &eager(placement));
        worker.wait_moved(&host, 2);
        for _ in 0..5 {
            assert_eq!(worker.ask(&format!("spawn {}", until_all()), "printed"), count());
        }
        let child: i32 = worker.ask("orphan", "orphan").parse().unwrap();
        wait_for("the child's freedom", || mask(child) == all());
        assert!(worker.end().success());
        assert_eq!(mask(child), all());
        kill(child, libc::SIGKILL);
    }
}

#[test]
fn short_threads_by_the_thousand_see_all_cpus() {
    let Some(_) = two_cpus("short_threads_by_the_thousand_see_all_cpus") else { return };
    for (placement, accounting) in [("soft", "auto"), ("hard", "auto"), ("hard", "procfs")] {
        let host = Host::new();
        let flags = [&["--placement", placement, "--accounting", accounting], &EAGER[..]].concat();
        let mut command = host.run(&flags, &role("storm"));
        let run = output(command.env("EVENKEEL_TEST_ROLE", "storm"));
        assert_eq!(run.status.code(), Some(3), "{run:?}");
        let said = text(&run.stdout);
        let line = said.lines().find_map(|line| line.split_once("@storm=")).unwrap().1;
        println!("{placement}, {accounting}: {line}");
        assert!(line.starts_with("2000 threads"), "{line}");
        only_summary(&run);
        assert!(text(&run.stderr).contains("moved tasks"), "{}", text(&run.stderr));
    }
}

/// Compiles the program that starts its pool late.
fn late_pool(host: &Host) -> String {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/host/late_pool.c");
    let program = Compiled::compile(host, source, "late_pool", &["-fopenmp"]);
    program.path
}

#[test]
fn an_openmp_pool_that_starts_after_a_move_has_full_size() {
    let Some(_) = two_cpus("an_openmp_pool_that_starts_after_a_move_has_full_size") else { return };
    // Under hard placement, too: a lone compute thread is not pinned, for exactly this reason.
    for placement in ["soft", "hard"] {
        let host = Host::new();
        let program = late_pool(&host);
        let mut command = host.run(&eager(placement), &[&program]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        let next = || lines.recv_timeout(std::time::Duration::from_secs(90)).unwrap();
        let tid: i32 = next().strip_prefix("@tid=").unwrap().parse().unwrap();
        wait_for("a move", || host.pins_of(tid) >= 2);
        drop(child.stdin.take());
        assert_eq!(next(), format!("@pool={} threads, 0 narrow", count()), "{placement}");
        assert!(ended(&mut child).success());
    }
}

#[test]
fn openmp_pools_of_two_pinned_processes_have_full_size() {
    let Some(_) = two_cpus("openmp_pools_of_two_pinned_processes_have_full_size") else { return };
    // Both processes are pinned when they start their pools. libgomp counted the CPUs when it was
    // loaded, so the pools have full size, and their threads are given all CPUs. A runtime that is
    // *loaded* only now would count one CPU under hard placement, and all under soft.
    let host = Host::new();
    let program = late_pool(&host);
    let script = format!("'{program}' <&3 & '{program}' <&3 & wait");
    let mut command = host.run(&eager("hard"), &["bash", "-c", &format!("exec 3<&0; {script}")]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = lines_of(child.stdout.take().unwrap());
    let next = || lines.recv_timeout(std::time::Duration::from_secs(90)).unwrap();
    for _ in 0..2 {
        let tid: i32 = next().strip_prefix("@tid=").unwrap().parse().unwrap();
        wait_for("a pin", || mask(tid) != all());
    }
    drop(child.stdin.take());
    let pools: Vec<String> = (0..2).map(|_| next()).collect();
    assert_eq!(pools, vec![format!("@pool={} threads, 0 narrow", count()); 2]);
    assert!(ended(&mut child).success());
}

#[test]
fn a_java_virtual_machine_that_starts_after_a_move_sees_all_cpus() {
    let Some(_) = two_cpus("a_java_virtual_machine_that_starts_after_a_move_sees_all_cpus") else {
        return;
    };
    if !Command::new("java").arg("-version").output().is_ok_and(|run| run.status.success()) {
        evenkeel_skip::skip(
            "a_java_virtual_machine_that_starts_after_a_move_sees_all_cpus",
            "there is no java",
        );
        return;
    }
    for placement in ["soft", "hard"] {
        let host = Host::new();
        let mut worker = Worker::start(&host, &eager(placement));
        worker.wait_moved(&host, 2);
        // The CPUs as the virtual machine counts them when it sizes its pools. Its thread is a compute
        // thread, and sees one CPU if it is being placed at that moment. That is rare; to inherit a pin
        // would not be.
        let java = "java -XX:+UseSerialGC -Xmx64m -XshowSettings:system -version";
        let count_of = "sed -n 's/.*Effective CPU Count: *//p'";
        let order = format!("spawn {java} 2>&1 | {count_of}");
        let tries = (1..=10).find(|_| worker.ask(&order, "printed") == count());
        println!("{placement}: all CPUs at try {tries:?}");
        assert!(tries.is_some(), "{placement}: it never sees all CPUs");
        // The launcher is moved, and then executes the virtual machine.
        let again =
            format!("while n=$({java} 2>&1 | {count_of}); [ $n != {} ]; do :; done", count());
        worker.tell(&format!("exec {again}; echo @java=$n"));
        assert_eq!(worker.answer("java"), count(), "{placement}");
        assert!(worker.end().success());
    }
}
