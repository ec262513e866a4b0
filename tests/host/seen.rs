//! What a user sees of evenkeel while it runs: `status` again and again, the daemon's state in a file,
//! log lines in systemd's journal, and the manual.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use nix::pty::{Winsize, openpty};

use crate::report::json;
use crate::running_daemon::{Daemon, lone_worker};
use crate::schema;
use crate::support::*;
use crate::worker::Worker;

#[test]
fn status_names_the_user_and_the_time_of_a_program() {
    let host = Host::new();
    let worker = Worker::start(&host, &[&["-q"], &EAGER[..]].concat());
    wait_for("its status", || !host.status().is_empty());
    let program = &host.status()[0];
    assert_eq!(program["user"], nix::unistd::geteuid().as_raw());
    let elapsed_ns = || host.status()[0]["elapsed_ns"].as_u64().unwrap();
    let before_ns = elapsed_ns();
    assert!(before_ns < elapsed_ns(), "it goes on");
    let said = text(&output(&mut host.evenkeel(["status"])).stdout);
    let name = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    assert!(said.contains(&format!(", user {name}, for ")), "{said}");
    assert!(worker.end().success());
}

#[test]
fn status_is_printed_again_and_again() {
    let host = Host::new();
    let once = text(&output(&mut host.evenkeel(["status"])).stdout);
    assert!(once.contains("No program "), "{once}");
    assert!(once.ends_with(" not shown). Start one with: evenkeel run -- CMD\n"), "{once}");
    let shown: Vec<&str> = once.lines().chain([""]).collect();
    let mut command = host.evenkeel(["status", "--watch", "100ms"]);
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines: Vec<String> = lines.take(2 * shown.len()).collect();
    assert_eq!(lines, [&shown[..], &shown[..]].concat());
    // The reader is gone, as after `head`.
    assert_eq!(wait_status(ended(&mut watch)), libc::SIGPIPE);
    for words in [["--watch", "50ms"], ["--watch=1s", "--json"]] {
        let refused = output(&mut host.evenkeel([&["status"], &words[..]].concat()));
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
}

#[test]
fn status_is_redrawn_on_a_terminal() {
    let host = Host::new();
    let size = Winsize { ws_row: 5, ws_col: 30, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&size, None).unwrap();
    let mut command = host.evenkeel(["status", "--watch", "100ms"]);
    command.env("TERM", "xterm").stdin(pty.slave.try_clone().unwrap()).stdout(pty.slave);
    let mut watch = command.spawn().unwrap();
    drop(command);
    let mut seen = vt100::Parser::new(5.try_into().unwrap(), 30.try_into().unwrap(), 0);
    let mut screen = File::from(pty.master);
    let mut drawn = 0;
    for _ in 0..1000 {
        if drawn >= 3 {
            break;
        }
        let mut bytes = [0; 4096];
        let length = std::io::Read::read(&mut screen, &mut bytes).unwrap();
        drawn += bytes[..length].windows(3).filter(|three| three == b"\x1b[H").count();
        seen.process(&bytes[..length]);
    }
    assert!(drawn >= 3, "it is not drawn over what was there");
    kill(watch.id() as i32, libc::SIGINT);
    assert_eq!(wait_status(ended(&mut watch)), libc::SIGINT);
    let shown = seen.screen().contents();
    assert_eq!(shown.matches("No program ").count(), 1, "{shown:?}");
}

#[test]
fn status_says_whether_a_daemon_runs() {
    let host = Host::new();
    let says = || text(&output(&mut host.evenkeel(["status"])).stdout);
    // A user without a daemon asks the system's, which may run here.
    if is_root() {
        let none = says();
        assert!(none.lines().any(|line| line == "No daemon runs."), "{none}");
    }
    for (flags, verb) in [(&[][..], "balances"), (&["--dry-run"], "only observes")] {
        let daemon = Daemon::start(&host, flags);
        let worker = lone_worker(&host);
        assert!(output(&mut host.evenkeel(["join", &worker.pid.to_string()])).status.success());
        let said = says();
        let line = format!("The daemon {verb} 1 program, with ");
        assert!(said.lines().any(|shown| shown.starts_with(&line)), "{said}");
        assert!(worker.end().success());
        wait_for("its end to be seen", || host.status().is_empty());
        daemon.end();
    }
}

#[test]
fn the_daemon_writes_its_state_when_asked_by_a_signal() {
    let host = Host::new();
    let daemon = Daemon::start(&host, &[]);
    let mut worker = lone_worker(&host);
    assert!(output(&mut host.evenkeel(["join", &worker.pid.to_string()])).status.success());
    let path = host.runtime().join("daemon-state.json");
    assert!(!path.exists());
    for _ in 0..2 {
        let _ = std::fs::remove_file(&path);
        kill(daemon.pid(), libc::SIGUSR1);
        wait_for("the state", || path.exists());
        let state = json(&path);
        schema::check("daemon-state", &state);
        assert_eq!(state["pid"], daemon.pid());
        assert_eq!(state["programs"][0]["root"], worker.pid);
        let file = path.metadata().unwrap();
        assert_eq!((file.mode() & 0o777, file.uid()), (0o600, nix::unistd::geteuid().as_raw()));
    }
    // It goes on, and the file stays for a report, also one after a restart. Then an undo removes it,
    // even if that daemon was killed and its socket is still there.
    assert_eq!(host.status().len(), 1);
    worker.let_end();
    host.undo();
    assert!(path.exists());
    daemon.end();
    let mut daemon = Daemon::start(&host, &[]);
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    assert!(path.exists() && daemon.socket.exists());
    host.undo();
    assert!(!path.exists());
}

#[test]
fn whether_the_daemon_answers_is_an_exit_code() {
    let host = Host::new();
    let ask = || output(&mut host.evenkeel(["status", "--daemon"]));
    // A user without a daemon asks the system's, which may run here.
    if is_root() {
        let none = ask();
        assert_eq!(none.status.code(), Some(3), "{none:?}");
        assert!(text(&none.stderr).starts_with("evenkeel: no daemon runs; start one"), "{none:?}");
    }
    let daemon = Daemon::start(&host, &[]);
    let answers = ask();
    assert_eq!(answers.status.code(), Some(0), "{answers:?}");
    assert_eq!(text(&answers.stdout), "The daemon answers.\n");
    // A daemon with a loop that hangs.
    kill(daemon.pid(), libc::SIGSTOP);
    wait_for("its stop", || state(daemon.pid()) == 'T');
    let hangs = ask();
    kill(daemon.pid(), libc::SIGCONT);
    assert!(!hangs.status.success(), "{hangs:?}");
    assert!(text(&hangs.stderr).contains("daemon.sock: no answer: "), "{hangs:?}");
    assert_eq!(ask().status.code(), Some(0));
    daemon.end();
}

#[test]
fn log_lines_have_levels_in_the_journal_and_nowhere_else() {
    let host = Host::new();
    let path = host.path("log");
    let log = File::create(&path).unwrap();
    let meta = log.metadata().unwrap();
    let here = format!("{}:{}", meta.dev(), meta.ino());
    let elsewhere = format!("{}:{}", meta.dev(), meta.ino() + 1);
    for (stream, is_journal) in [(here.as_str(), true), (elsewhere.as_str(), false), ("x", false)] {
        log.set_len(0).unwrap();
        let mut command = host.evenkeel(["--config", "/no/such/file", "run", "--", "true"]);
        command.env("JOURNAL_STREAM", stream);
        command.stderr(File::options().append(true).open(&path).unwrap());
        assert_eq!(ended(&mut command.spawn().unwrap()).code(), Some(2));
        let mut command = host.evenkeel(["daemon"]);
        command.env("JOURNAL_STREAM", stream);
        command.stderr(File::options().append(true).open(&path).unwrap());
        Daemon::start_by(&host, &mut command).end();
        let said = std::fs::read_to_string(&path).unwrap();
        let (error, ready) = match is_journal {
            true => ("<3>evenkeel: ", "<6>ready at "),
            false => ("evenkeel: ", " INFO ready at "),
        };
        assert!(said.starts_with(error), "{stream}: {said}");
        assert!(said.lines().any(|line| line.starts_with(ready)), "{stream}: {said}");
    }
}

#[test]
fn levels_of_the_log_are_chosen_by_module_and_a_wrong_choice_is_said() {
    let host = Host::new();
    for (levels, is_ready_said, is_wrong) in [
        ("evenkeel=info", true, false),
        ("info,evenkeel_host=error", false, false),
        ("warn", false, false),
        ("", true, false),
        ("=loud", true, true),
    ] {
        let path = host.path("log");
        let log = File::create(&path).unwrap();
        let mut command = host.evenkeel(["daemon"]);
        command.env("EVENKEEL_LOG", levels).env_remove("JOURNAL_STREAM").stderr(log);
        let daemon = Daemon::start_by(&host, &mut command);
        let said = || std::fs::read_to_string(&path).unwrap();
        kill(daemon.pid(), libc::SIGHUP);
        if is_ready_said {
            wait_for("the log", || said().contains(" INFO the configuration was read again"));
        }
        daemon.end();
        let said = said();
        assert_eq!(said.contains("ready at "), is_ready_said, "{levels}: {said}");
        assert_eq!(said.contains("EVENKEEL_LOG=\"=loud\""), is_wrong, "{levels}: {said}");
    }
}

#[test]
fn the_manual_has_a_page_of_the_configuration() {
    let host = Host::new();
    let pages = host.path("man");
    let words = ["generate", "man", pages.to_str().unwrap()];
    assert!(output(&mut host.evenkeel(words)).status.success());
    let page = std::fs::read_to_string(pages.join("evenkeel.toml.5")).unwrap();
    assert!(page.contains(".TH evenkeel.toml 5"), "{page}");
    assert!(output(&mut host.evenkeel_lab(words)).status.success());
}
