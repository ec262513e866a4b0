//! Signals that are sent to evenkeel, stops of evenkeel and of its program, and SIGKILL.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};

use crate::roles::role;
use crate::support::*;
use crate::worker::{Worker, lines_of};

/// A run of the program that counts signals.
struct Counter {
    evenkeel: Child,
    lines: Receiver<String>,
    pid: i32,
}

impl Counter {
    fn start(command: &mut Command) -> Self {
        command.env("EVENKEEL_TEST_ROLE", "counter");
        let mut evenkeel = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(evenkeel.stdout.take().unwrap());
        let mut counter = Self { evenkeel, lines, pid: 0 };
        counter.pid = counter.next("pid");
        counter
    }

    /// The next number that the program prints under this name.
    fn next(&self, name: &str) -> i32 {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(90)).unwrap();
            if let Some((_, said)) = line.split_once(&format!("@{name}=")) {
                return said.parse().unwrap();
            }
        }
    }

    fn send(&self, signal: i32) {
        kill(self.evenkeel.id() as i32, signal);
    }
}

/// While nothing is loaded, on CPUs that look alike, and while it is balanced.
const WAYS: [&[&str]; 2] = [&["-q"], &["-q", "--policy", "paper", "--interval", "20ms"]];

#[test]
fn each_signal_reaches_the_program_once() {
    let host = Host::new();
    // Sent from the same process group, as by a shell script, and from outside.
    let groups = [None, Some(0)];
    let ways = WAYS.into_iter().flat_map(|flags| groups.map(|group| (flags, group)));
    for (flags, group) in ways {
        let mut command = host.run(flags, &role("counter"));
        if let Some(group) = group {
            command.process_group(group);
        }
        let mut counter = Counter::start(&mut command);
        let signals = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
        let others = [libc::SIGALRM, libc::SIGURG, libc::SIGCONT, libc::SIGWINCH];
        let real_time = [libc::SIGRTMIN() + 1, libc::SIGRTMAX()];
        for signal in signals.into_iter().chain(others).chain(real_time) {
            counter.send(signal);
            assert_eq!(counter.next("got"), signal, "{flags:?}, group {group:?}");
        }
        // A signal that came twice would be the next one.
        counter.send(libc::SIGTERM);
        assert_eq!(counter.next("got"), libc::SIGTERM);
        assert_eq!(ended(&mut counter.evenkeel).code(), Some(7));
    }
}

/// The timer of alarm(2) stays across exec and counts for evenkeel, not for its program.
#[test]
fn an_alarm_that_evenkeel_inherits_reaches_the_program() {
    let host = Host::new();
    for flags in WAYS {
        let mut command = host.run(flags, &["sleep", "30"]);
        // SAFETY: one system call with an integer, between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::alarm(1);
                Ok(())
            })
        };
        let end = ended(&mut command.spawn().unwrap());
        assert_eq!(end.signal(), Some(libc::SIGALRM), "{flags:?}: {end:?}");
    }
}

/// Both ends of a new terminal. No program that another test starts meanwhile inherits one of them.
fn terminal() -> (PtyMaster, File) {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NOCTTY);
    let slave = options.open(ptsname_r(&master).unwrap()).unwrap();
    (master, slave)
}

/// As under `ssh -t host evenkeel run ...`: the kernel tells the leader of a session alone that the
/// terminal is gone.
#[test]
fn a_hang_up_reaches_the_program_where_evenkeel_leads_the_session() {
    let host = Host::new();
    for flags in WAYS {
        let (master, slave) = terminal();
        let mut command = host.run(flags, &role("counter"));
        command.stderr(slave);
        // SAFETY: a session of its own with the terminal on descriptor 2; integers only.
        unsafe {
            command.pre_exec(|| {
                let result = libc::setsid() + libc::ioctl(2, libc::TIOCSCTTY, 0);
                if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            })
        };
        let mut counter = Counter::start(&mut command);
        drop(master);
        // Both may come before the program runs again, and the last one is handled first then.
        let mut got = [counter.next("got"), counter.next("got")];
        got.sort_unstable();
        assert_eq!(got, [libc::SIGHUP, libc::SIGCONT], "{flags:?}");
        // One that came twice would be the next one.
        counter.send(libc::SIGTERM);
        assert_eq!(counter.next("got"), libc::SIGTERM);
        assert_eq!(ended(&mut counter.evenkeel).code(), Some(7));
    }
}

#[test]
fn a_script_can_end_a_run() {
    let host = Host::new();
    let script = format!("'{EVENKEEL}' run -q -- sleep 600 & kill -TERM $!; wait $!; echo $?");
    let output = output(host.command("sh").args(["-c", &script]));
    assert_eq!(text(&output.stdout), "143\n");
    // `timeout --foreground` signals its child only.
    let mut command = host.command("timeout");
    command.args(["--foreground", "0.2", EVENKEEL, "run", "-q", "--", "sleep", "600"]);
    assert_eq!(ended(&mut command.spawn().unwrap()).code(), Some(124));
}

#[test]
fn a_signal_of_the_program_to_its_group_arrives_once() {
    let host = Host::new();
    let script = "n=0; trap 'n=$((n+1))' USR1; kill -USR1 0; sleep 0.2; kill -USR1 0; \
                  sleep 0.2; echo $n";
    for flags in WAYS {
        let mut command = host.run(flags, &["bash", "-c", script]);
        let output = output(command.process_group(0));
        assert_eq!(text(&output.stdout), "2\n", "{flags:?}: {output:?}");
    }
}

#[test]
fn evenkeel_dies_of_the_signal_that_killed_the_program() {
    let host = Host::new();
    let signals = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1];
    for (flags, signal) in WAYS.into_iter().flat_map(|flags| signals.map(|signal| (flags, signal)))
    {
        let mut child = host.run(flags, &["sh", "-c", "echo; exec sleep 600"]);
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        lines.recv_timeout(Duration::from_secs(90)).unwrap();
        kill(child.id() as i32, signal);
        assert_eq!(ended(&mut child).signal(), Some(signal));
    }
}

#[test]
fn a_run_ended_by_a_signal_leaves_no_task_pinned() {
    let Some(_) = two_cpus("a_run_ended_by_a_signal_leaves_no_task_pinned") else { return };
    let host = Host::new();
    let mut worker = Worker::start(&host, &[&["-q", "--placement", "hard"], &EAGER[..]].concat());
    let orphan: i32 = worker.ask("orphan", "orphan").parse().unwrap();
    worker.wait_moved(&host, 2);
    kill(worker.pid_of_evenkeel(), libc::SIGTERM);
    assert_eq!(ended(&mut worker.evenkeel).signal(), Some(libc::SIGTERM));
    // The program has ended, and the process that it left behind has all CPUs.
    assert_eq!(mask(orphan), all());
    assert!(host.journals().is_empty());
    kill(orphan, libc::SIGKILL);
}

#[test]
fn a_stopped_evenkeel_does_not_stop_the_program() {
    let Some(_) = two_cpus("a_stopped_evenkeel_does_not_stop_the_program") else { return };
    let host = Host::new();
    let mut worker = Worker::start(&host, &[&["-q", "--placement", "hard"], &EAGER[..]].concat());
    worker.wait_moved(&host, 2);
    for _ in 0..3 {
        kill(worker.pid_of_evenkeel(), libc::SIGSTOP);
        wait_for("its stop", || state(worker.pid_of_evenkeel()) == 'T');
        let before = host.pins().len();
        // The program goes on: it answers. (This takes many intervals.)
        assert_eq!(worker.ask("spawn sleep 0.3; echo here", "printed"), "here");
        assert_eq!(host.pins().len(), before);
        kill(worker.pid_of_evenkeel(), libc::SIGCONT);
        wait_for("more moves", || host.pins().len() > before);
    }
    assert!(worker.end().success());
}

#[test]
fn a_stopped_program_goes_on_when_it_is_continued() {
    let host = Host::new();
    for flags in WAYS {
        let mut counter = Counter::start(&mut host.run(flags, &role("counter")));
        for _ in 0..3 {
            kill(counter.pid, libc::SIGSTOP);
            wait_for("its stop", || state(counter.pid) == 'T');
            // Without a terminal no shell waits for evenkeel to stop, and none would continue it.
            kill(counter.pid, libc::SIGCONT);
            assert_eq!(counter.next("got"), libc::SIGCONT);
            counter.send(libc::SIGUSR1);
            assert_eq!(counter.next("got"), libc::SIGUSR1);
        }
        drop(counter.evenkeel.stdin.take());
        assert_eq!(ended(&mut counter.evenkeel).code(), Some(0));
    }
}

/// As a batch system suspends a job. The time of the stop counts for nothing.
#[test]
fn a_stopped_program_is_left_alone() {
    let Some(_) = two_cpus("a_stopped_program_is_left_alone") else { return };
    let host = Host::new();
    let (json, log) = (host.path("json"), host.path("log"));
    let flags = ["-v", "--placement", "hard", "--json", json.to_str().unwrap()];
    let mut command = host.run(&[&flags, &EAGER[..]].concat(), &role("worker"));
    command.stderr(std::fs::File::create(&log).unwrap());
    let worker = Worker::start_by(&mut command, 2);
    worker.wait_moved(&host, 2);
    let said = |what: &str| format!("program {} {what}", worker.pid);
    let logged = |what: &str| std::fs::read_to_string(&log).unwrap().contains(&said(what));
    kill(worker.pid, libc::SIGSTOP);
    wait_for("the log of the stop", || logged("is stopped"));
    let masks: Vec<_> = worker.threads.iter().map(|tid| mask(*tid)).collect();
    let since = Instant::now();
    std::thread::sleep(Duration::from_millis(1200));
    assert!(worker.threads.iter().map(|tid| mask(*tid)).eq(masks), "pins stay as they are");
    let (before, stop) = (host.pins().len(), since.elapsed());
    kill(worker.pid, libc::SIGCONT);
    wait_for("the log of its end", || logged("was continued"));
    wait_for("more moves", || host.pins().len() > before);
    assert!(worker.end().success());
    let summary: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let ns =
        |value: &serde_json::Value| Duration::from_nanos(value["elapsed_ns"].as_u64().unwrap());
    let (elapsed, counted) = (ns(&summary), ns(&summary["cpus"][0]));
    assert!(counted + stop <= elapsed, "{counted:?} of {elapsed:?}, stopped for {stop:?}");
}

#[test]
fn a_killed_evenkeel_is_undone_by_its_supervisor() {
    let Some(_) = two_cpus("a_killed_evenkeel_is_undone_by_its_supervisor") else { return };
    for placement in ["hard", "soft"] {
        let host = Host::new();
        let flags = [&["-q", "--placement", placement], &EAGER[..]].concat();
        let mut worker = Worker::start(&host, &flags);
        worker.wait_moved(&host, 3);
        wait_for("a status file", || !host.status_files().is_empty());
        worker.kill_evenkeel();
        // The supervisor restores the masks and removes the journal.
        wait_for("the masks", || worker.is_as(&all()));
        wait_for("the journal's end", || host.journals().is_empty());
        let report = host.undo();
        assert_eq!(report["restored"].as_array().unwrap().len(), 0, "{report}");
        assert!(host.status().is_empty());
        assert!(host.status_files().is_empty());
        // The program runs on, and the next run finds nothing to undo.
        assert_eq!(worker.ask("spawn nproc", "printed"), all().iter().count().to_string());
        only_summary(&output(&mut host.run(&[], &["true"])));
        assert!(worker.is_as(&all()));
    }
}

#[test]
fn a_killed_evenkeel_and_supervisor_are_undone_by_the_next_command() {
    let Some(_) = two_cpus("a_killed_evenkeel_and_supervisor_are_undone_by_the_next_command")
    else {
        return;
    };
    for next_run in [false, true] {
        let host = Host::new();
        let flags = [&["-q", "--no-supervisor", "--placement", "hard"], &EAGER[..]].concat();
        let mut worker = Worker::start(&host, &flags);
        worker.wait_moved(&host, 2);
        kill(worker.pid_of_evenkeel(), libc::SIGSTOP);
        wait_for("its stop", || state(worker.pid_of_evenkeel()) == 'T');
        let pinned = worker.threads.iter().filter(|tid| mask(**tid) != all()).count();
        worker.kill_evenkeel();
        assert!(pinned > 0, "nothing was pinned, so this shows nothing");
        assert!(!worker.is_as(&all()));
        if next_run {
            let output = output(&mut host.run(&[], &["true"]));
            assert!(output.status.success());
        } else {
            // Threads besides the busy ones may be pinned, too.
            assert!(host.undo()["restored"].as_array().unwrap().len() >= pinned);
        }
        assert!(worker.is_as(&all()));
        host.status();
    }
}
