//! `evenkeel irq`, `evenkeel run --move-noise` and the daemon's table `[irq]` where nothing is moved.
//! (Lines are moved in guests only: `interrupts` in tests/vm.)

use std::fs;
use std::process::Stdio;

use crate::running_daemon::Daemon;
use crate::schema::check;
use crate::support::*;
use crate::worker::lines_of;

/// `evenkeel` with these words, as the user `nobody`: what it says, and its exit code.
fn refusal(host: &Host, words: &[&str]) -> (String, Option<i32>) {
    let mut command = if is_root() { as_nobody(host, words) } else { host.evenkeel(words) };
    let refused = output(&mut command);
    assert!(refused.stdout.is_empty(), "{words:?}: {refused:?}");
    (text(&refused.stderr), refused.status.code())
}

#[test]
fn only_root_moves_interrupts() {
    let host = Host::new();
    let wanted = "evenkeel: only root may move interrupts: run it as root\n".to_owned();
    for words in [&["run"][..], &["run", "--take-over"], &["once"], &["once", "--watch", "60s"]] {
        let words = [&["irq"], words].concat();
        assert_eq!(refusal(&host, &words), (wanted.clone(), Some(3)), "{words:?}");
    }
    // The file that a mover locks would stay, where the user can write it.
    let folders = [host.runtime(), "/tmp/evenkeel-65534".into()];
    let locks = folders.map(|folder| folder.join("irq.lock"));
    assert!(!locks.iter().any(|lock| lock.exists()), "{locks:?}");
}

#[test]
fn a_program_that_does_not_run_is_a_wrong_request() {
    let host = Host::new();
    let (said, code) = refusal(&host, &["irq", "plan", "--for", "999999999"]);
    assert!(said.contains("--for 999999999: there is no such process"), "{said}");
    assert_eq!(code, Some(2));
}

#[test]
fn a_program_is_not_started_if_its_noise_cannot_be_moved() {
    let host = Host::new();
    let file = host.path("home/started");
    let file = file.to_str().unwrap();
    let (said, code) = refusal(&host, &["run", "--move-noise", "--", "touch", file]);
    let wanted = "evenkeel: --move-noise: only root may move interrupts: run it as root; or leave \
                  --move-noise out\n";
    assert_eq!((&said[..], code), (wanted, Some(3)));
    assert!(!std::path::Path::new(file).exists(), "the program was started");
}

#[test]
fn a_device_without_an_indirection_table_is_said_and_no_error() {
    let host = Host::new();
    let status = output(&mut host.evenkeel(["irq", "status", "--watch", "10ms"]));
    let said = text(&status.stdout);
    assert!(
        status.status.success() && said.contains("without an indirection table: "),
        "{status:?}"
    );
    let status = output(&mut host.evenkeel(["irq", "status", "--watch", "10ms", "--json"]));
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let devices = status["devices"].as_array().unwrap();
    let loopback = devices.iter().find(|device| device["name"] == "lo").unwrap();
    let wanted = serde_json::json!({
        "name": "lo", "queues": null, "hash": null, "table": [], "connections": {}
    });
    assert_eq!(*loopback, wanted);
}

/// The command line and the process number of `evenkeel irq run` beside a daemon.
fn mover(daemon: i32) -> Option<(String, i32)> {
    let children = fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children")).ok()?;
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    let of = |pid: i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        words.contains("irq run").then(|| (words.trim_end().to_owned(), pid))
    };
    children.into_iter().find_map(of)
}

#[test]
fn the_daemon_moves_interrupts_as_its_table_says() {
    const TEST: &str = "the_daemon_moves_interrupts_as_its_table_says";
    if !needs_root(TEST) || !needs_no_irqbalance(TEST) {
        return;
    }
    let host = Host::new();
    let config = host.path("config.toml");
    // The first move would come after two rounds: after the test.
    let configure = |mode: &str| {
        fs::write(&config, format!("[irq]\nmode = \"{mode}\"\ninterval = \"60s\"\n")).unwrap();
    };
    configure("level");
    let mut daemon = Daemon::start(&host, &["--config", config.to_str().unwrap()]);
    let words = || mover(daemon.pid()).map(|(words, _)| words).unwrap_or_default();
    wait_for("its process", || words().ends_with("irq run --mode level --interval 60000000us"));
    configure("off");
    kill(daemon.pid(), libc::SIGHUP);
    wait_for("the end of its process", || mover(daemon.pid()).is_none());
    configure("source-aware");
    kill(daemon.pid(), libc::SIGHUP);
    wait_for("the other process", || words().contains("irq run --mode source-aware"));
    let (_, pid) = mover(daemon.pid()).unwrap();
    // What a service manager sends to all processes of the service is meant for the daemon.
    for signal in [libc::SIGUSR1, libc::SIGHUP] {
        kill(pid, signal);
    }
    assert!(host.status().is_empty());
    assert_eq!(mover(daemon.pid()).map(|(_, pid)| pid), Some(pid));
    // One that ends by itself is started again.
    kill(pid, libc::SIGKILL);
    wait_for("the next process", || mover(daemon.pid()).is_some_and(|(_, next)| next != pid));
    let (_, pid) = mover(daemon.pid()).unwrap();
    // However the daemon ends.
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    let process = format!("/proc/{pid}");
    wait_for("its process to end, too", || {
        !std::path::Path::new(&process).exists() && host.journals().is_empty()
    });
    fs::remove_file(host.runtime().join("daemon.sock")).unwrap();
}

/// By default the signal would end it.
#[test]
fn the_state_is_logged_when_a_signal_asks_for_it() {
    const TEST: &str = "the_state_is_logged_when_a_signal_asks_for_it";
    if !needs_root(TEST) || !needs_no_irqbalance(TEST) {
        return;
    }
    let host = Host::new();
    // The first move would come after two rounds: after the test.
    let mut command = host.evenkeel(["irq", "run", "--interval", "60s"]);
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let printed = lines_of(run.stdout.take().unwrap());
    let begin = printed.recv_timeout(PATIENCE).unwrap();
    assert!(begin.starts_with("Moving interrupts "), "{begin}");
    let said = lines_of(run.stderr.take().unwrap());
    for _ in 0..2 {
        kill(run.id() as i32, libc::SIGUSR1);
        // Before it there may be a line about what cannot be measured here.
        let is_state = |line: &String| line.contains("SIGUSR1: the state is {\"rounds\":0,");
        wait_for("the state", || said.recv_timeout(PATIENCE).is_ok_and(|line| is_state(&line)));
    }
    kill(run.id() as i32, libc::SIGTERM);
    assert!(ended(&mut run).success());
}

/// With nothing to move, that is the last line. (Those of moves are looked at in guests: `interrupts`
/// in tests/vm.)
#[test]
fn what_is_taken_back_is_a_line_of_json() {
    const TEST: &str = "what_is_taken_back_is_a_line_of_json";
    if !needs_root(TEST) || !needs_no_irqbalance(TEST) {
        return;
    }
    let host = Host::new();
    let trace = host.path("irq.pftrace");
    // The first move would come after two rounds: after the test.
    let words = ["irq", "run", "--interval", "60s", "--json", "--perfetto"];
    let mut command = host.evenkeel(words);
    let run = command.arg(&trace).stdout(Stdio::piped()).spawn().unwrap();
    // Nothing is printed before the end. The trace tells that it has begun.
    let has_begun = |bytes: Vec<u8>| bytes.windows(7).any(|seven| seven == b"started");
    wait_for("its trace to begin", || fs::read(&trace).is_ok_and(has_begun));
    kill(run.id() as i32, libc::SIGTERM);
    let run = run.wait_with_output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let said = text(&run.stdout);
    assert_eq!(said.lines().count(), 1, "{said}");
    let line: serde_json::Value = serde_json::from_str(&said).unwrap();
    check("irq-run", &line);
    assert!(line["undone"].is_object(), "{line}");
}

#[test]
fn a_daemon_that_may_not_move_interrupts_says_so_and_balances() {
    let host = Host::new();
    let config = host.path("home/config.toml");
    fs::write(&config, "[irq]\nmode = \"level\"\n").unwrap();
    let log = host.path("log");
    let words = ["daemon", "--config", config.to_str().unwrap()];
    let mut command = if is_root() { as_nobody(&host, &words) } else { host.evenkeel(words) };
    let daemon = Daemon::start_by(&host, command.stderr(fs::File::create(&log).unwrap()));
    wait_for("it to say so", || {
        let said = fs::read_to_string(&log).unwrap();
        said.contains("[irq]: interrupts are not moved: only root may move")
    });
    assert_eq!(mover(daemon.pid()), None);
    daemon.end();
}
