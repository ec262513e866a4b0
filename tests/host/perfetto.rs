//! What `run --perfetto` draws, and which files it, `irq run --perfetto` and `sched --perfetto` take.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::*;
use crate::trace::read;
use crate::worker::Worker;

#[test]
fn a_trace_shows_threads_causes_and_decisions() {
    let Some(_) = two_cpus("a_trace_shows_threads_causes_and_decisions") else { return };
    let host = Host::new();
    let path = host.path("run.pftrace");
    std::fs::write(&path, "an older file that is longer than nothing").unwrap();
    let flags = [&["-q", "--perfetto", path.to_str().unwrap()], &EAGER[..]].concat();
    let mut worker = Worker::start(&host, &flags);
    worker.wait_moved(&host, 2);
    let (pid, threads) = (worker.pid, worker.threads.clone());
    worker.let_end();
    assert!(ended(&mut worker.evenkeel).success());
    let seen = read(&path);
    assert_eq!(seen.processes.first(), Some(&(pid as u64)), "{seen:?}");
    for tid in threads {
        let stays = seen.stays(tid);
        assert!(!stays.is_empty() && stays.iter().all(|name| name.starts_with("CPU ")), "{seen:?}");
    }
    seen.assert_sound();
    let cpu = all().iter().next().unwrap();
    for what in
        ["capability", "interrupts", "softirqs", "steal", "real-time tasks", "other programs"]
    {
        let name = format!("CPU {cpu}: {what}");
        assert!(seen.counters.contains(&name), "{name}: {seen:?}");
    }
    assert!(seen.says("started") && seen.says("ended") && seen.says(" move"), "{seen:?}");
    assert!(seen.annotations.iter().any(|name| name == "move 1"), "{seen:?}");
}

/// Reads a trace by Perfetto's own schema; none, and the test is skipped: it is not installed.
fn perfettos_reader(test: &'static str) -> Option<impl Fn(&Path) -> Output> {
    let python = evenkeel_vm::cache().join("perfetto/bin/python");
    let mut ask = Command::new(&python);
    ask.args(["-c", "import perfetto.protos.perfetto.trace.perfetto_trace_pb2"]);
    if !python.exists() || !output(&mut ask).status.success() {
        evenkeel_skip::skip(test, "no schema of Perfetto (scripts/setup perfetto installs it)");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/check-trace");
    Some(move |file: &Path| output(Command::new(&python).arg(&script).arg(file)))
}

/// A run's, with tracks and events, and a simulation's, with switches of the kernel.
#[test]
fn traces_are_read_by_perfettos_own_schema() {
    const TEST: &str = "traces_are_read_by_perfettos_own_schema";
    let Some(check) = perfettos_reader(TEST) else { return };
    let Some(_) = two_cpus(TEST) else { return };
    let host = Host::new();
    let traces = ["run.pftrace", "simulated.pftrace", "cut.pftrace"];
    let [run, simulated, cut] = traces.map(|name| host.path(name));
    let flags = [&["-q", "--perfetto", run.to_str().unwrap()], &EAGER[..]].concat();
    let worker = Worker::start(&host, &flags);
    worker.wait_moved(&host, 2);
    assert!(worker.end().success());
    let words = ["sim", "run", "barrier:tasks=6,work=2ms,rounds=5", "--machine", "amc1"];
    let mut sim = host.evenkeel_lab(words);
    assert!(output(sim.arg("--perfetto").arg(&simulated)).status.success());
    for (file, has) in [(&run, " 0 switches"), (&simulated, " 0 tracks, 0 events")] {
        let checked = check(file);
        assert!(checked.status.success(), "{checked:?}");
        let said = text(&checked.stdout);
        assert!(said.contains(has) && !said.contains(" 0 packets"), "{said}");
    }
    // What is no trace is refused: half of its last packet is missing.
    let bytes = std::fs::read(&run).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
    assert_eq!(check(&cut).status.code(), Some(1));
}

#[test]
fn the_trace_of_a_killed_run_is_whole_up_to_its_last_round() {
    let test = "the_trace_of_a_killed_run_is_whole_up_to_its_last_round";
    let Some(_) = two_cpus(test) else { return };
    let host = Host::new();
    let path = host.path("run.pftrace");
    let flags = [&["-q", "--perfetto", path.to_str().unwrap()], &EAGER[..]].concat();
    let mut worker = Worker::start(&host, &flags);
    worker.wait_moved(&host, 1);
    host.wait_intervals(5);
    worker.kill_evenkeel();
    // This removes its status file.
    assert!(host.status().is_empty());
    let seen = read(&path);
    assert!(!seen.says("ended") && seen.says("started"), "{seen:?}");
    assert!(!seen.stays(worker.threads[0]).is_empty(), "{seen:?}");
    worker.let_end();
    host.undo();
}

#[test]
fn a_trace_goes_to_a_regular_file_that_the_command_does_not_inherit() {
    let host = Host::new();
    let (path, pipe) = (host.path("run.pftrace"), host.path("pipe"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let name = path.to_str().unwrap();
    // A command that is not found leaves no new file, and an older one as it was.
    let flags = ["-q", "--perfetto", name];
    assert_eq!(output(&mut host.run(&flags, &["/no/such"])).status.code(), Some(127));
    assert!(!path.exists());
    std::fs::write(&path, "older").unwrap();
    assert_eq!(output(&mut host.run(&flags, &["/no/such"])).status.code(), Some(127));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "older");
    // A command that ends at once has a trace of its start and its end.
    let list = output(&mut host.run(&flags, &["sh", "-c", "ls -l /proc/$$/fd; exit 3"]));
    assert_eq!(list.status.code(), Some(3));
    assert!(!text(&list.stdout).contains("pftrace"), "{list:?}");
    let seen = read(&path);
    assert!(seen.says("started") && seen.says("ended"), "{seen:?}");
    // A pipe would hold evenkeel up once it is full.
    let reader = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    for (place, expected) in [
        (pipe.to_str().unwrap(), "is no regular file"),
        ("/dev/null", "is no regular file"),
        ("/no/such/directory/file", "nothing was started"),
    ] {
        let run = output(&mut host.run(&["--perfetto", place], &["sh", "-c", "echo ran"]));
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        assert!(run.stdout.is_empty(), "the command was started: {run:?}");
        let said = text(&run.stderr);
        assert!(
            said.contains(&format!("--perfetto {place}: ")) && said.contains(expected),
            "{said}"
        );
    }
    drop(reader);
    // Nor do two writers share a file: not the trace and the command, not the trace and the figures.
    let results = host.path("results");
    std::fs::write(&results, "earlier results").unwrap();
    let stdout = std::fs::File::options().append(true).open(&results).unwrap();
    let mut run = host.run(&["--perfetto", "-"], &["true"]);
    let run = run.stdout(stdout).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let run = run.wait_with_output().unwrap();
    assert!(text(&run.stderr).contains("is no regular file of its own"), "{run:?}");
    assert_eq!(std::fs::read_to_string(&results).unwrap(), "earlier results");
    let flags = ["--json", name, "--perfetto", name];
    let run = output(&mut host.run(&flags, &["sh", "-c", "echo ran"]));
    assert_eq!((run.status.code(), text(&run.stdout)), (Some(2), String::new()), "{run:?}");
    assert!(text(&run.stderr).contains("both are the same file"), "{run:?}");
}

#[test]
fn a_disk_that_is_full_ends_the_trace_and_not_the_command() {
    let host = Host::new();
    let path = host.path("run.pftrace");
    // No file may grow, so the first packet fails.
    let line = format!(
        "ulimit -f 0; exec {EVENKEEL} run -q --perfetto {} -- sh -c 'exit 5'",
        path.display()
    );
    let run = output(host.command("sh").args(["-c", &line]));
    assert_eq!(run.status.code(), Some(5), "{run:?}");
    assert!(text(&run.stderr).contains("--perfetto: the trace ends here"), "{run:?}");
}

/// A service opens its file before the kernel refuses it to open any; where it may not run, it leaves
/// the file as it was.
#[test]
fn a_service_that_may_not_run_leaves_no_trace() {
    let host = Host::new();
    let path = host.path("home/service.pftrace");
    let name = path.to_str().unwrap();
    for words in [&["irq", "run"][..], &["sched"]] {
        let words = [words, &["--perfetto", name]].concat();
        let refused = || match is_root() {
            true => output(&mut as_nobody(&host, &words)),
            false => output(&mut host.evenkeel(&words)),
        };
        let new = refused();
        assert_eq!(new.status.code(), Some(3), "{words:?}: {new:?}");
        assert!(!path.exists(), "{words:?}");
        std::fs::write(&path, "older").unwrap();
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap_or_default();
        assert_eq!(refused().status.code(), Some(3), "{words:?}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "older", "{words:?}");
        std::fs::remove_file(&path).unwrap();
        for (place, expected) in [
            ("/dev/null", "is no regular file"),
            ("-", "is no regular file"),
            ("/no/such/directory/file", "nothing was started"),
        ] {
            let words = [&words[..words.len() - 1], &[place]].concat();
            let run = output(&mut host.evenkeel(&words));
            assert_eq!(run.status.code(), Some(2), "{run:?}");
            let said = text(&run.stderr);
            assert!(
                said.contains(&format!("--perfetto {place}: ")) && said.contains(expected),
                "{said}"
            );
        }
    }
}

/// `irq run --perfetto`. Its first round comes after the test: it moves nothing.
fn irq_run(host: &Host, path: &Path) -> std::process::Child {
    let words = ["irq", "run", "--interval", "60s", "--perfetto", path.to_str().unwrap()];
    let run = host.evenkeel(words).stdout(Stdio::null()).spawn().unwrap();
    wait_for("its trace to begin", || {
        std::fs::read(path).is_ok_and(|bytes| bytes.windows(7).any(|seven| seven == b"started"))
    });
    run
}

/// (Its rounds and moves are looked at in guests: `interrupts` in tests/vm.)
#[test]
fn a_trace_of_interrupts_is_whole_however_it_ends() {
    const TEST: &str = "a_trace_of_interrupts_is_whole_however_it_ends";
    if !needs_root(TEST) || !needs_no_irqbalance(TEST) {
        return;
    }
    let host = Host::new();
    let path = host.path("irq.pftrace");
    std::fs::write(&path, "an older file that is longer than nothing").unwrap();
    let mut run = irq_run(&host, &path);
    // Another one is refused, and leaves no file.
    let second = host.path("second.pftrace");
    let words = ["irq", "run", "--perfetto", second.to_str().unwrap()];
    assert_eq!(output(&mut host.evenkeel(words)).status.code(), Some(3));
    assert!(!second.exists());
    kill(run.id() as i32, libc::SIGTERM);
    assert!(ended(&mut run).success());
    let seen = read(&path);
    seen.assert_sound();
    assert_eq!(seen.on("moves of interrupts").first(), Some(&"started"), "{seen:?}");
    assert_eq!(seen.on("moves of interrupts").last(), Some(&"ended"), "{seen:?}");
    std::fs::remove_file(&path).unwrap();
    let mut run = irq_run(&host, &path);
    run.kill().unwrap();
    run.wait().unwrap();
    let seen = read(&path);
    assert!(seen.says("started") && !seen.says("ended"), "{seen:?}");
    host.undo();
}

#[test]
fn a_trace_of_interrupts_is_read_by_perfettos_own_schema() {
    const TEST: &str = "a_trace_of_interrupts_is_read_by_perfettos_own_schema";
    if !needs_root(TEST) || !needs_no_irqbalance(TEST) {
        return;
    }
    let Some(check) = perfettos_reader(TEST) else { return };
    let host = Host::new();
    let path = host.path("irq.pftrace");
    let mut run = irq_run(&host, &path);
    kill(run.id() as i32, libc::SIGTERM);
    assert!(ended(&mut run).success());
    let checked = check(&path);
    assert!(checked.status.success(), "{checked:?}");
    let said = text(&checked.stdout);
    assert!(!said.contains(" 0 tracks") && !said.contains(" 0 events"), "{said}");
}
