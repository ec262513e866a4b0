//! What users and programs can take of a daemon: each user a fixed share, however much is asked for; and
//! its memory and journal do not grow.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use serde_json::json;

use crate::roles::role;
use crate::running_daemon::Daemon;
use crate::support::*;
use crate::worker::lines_of;

/// Connections that one user may have at a time.
const SHARE: usize = 16;
/// Joins (and as many leaves): enough to notice a journal that is never compacted.
const JOINS: u32 = 5_000;
/// The journal is compacted when it has grown by 512 KiB; little is left then here.
const MOST_JOURNAL_BYTES: u64 = 640 * 1024;
/// What an allocator may keep or give back.
const MOST_GROWTH_KIB: u64 = 1024;

/// The role: connects three times as often as it may, asks on each connection, says how many
/// answers it got, and keeps the connections until its input ends.
pub fn caller() {
    let path = std::env::var("SOCKET").unwrap();
    let asked: Vec<UnixStream> = (0..3 * SHARE)
        .map(|_| {
            let mut stream = UnixStream::connect(&path).unwrap();
            // A connection that is refused at once cannot be written to.
            let _ = writeln!(stream, "{}", json!({"req": "stats"}));
            stream
        })
        .collect();
    // A refused connection is told why.
    let is_answered = |stream: &&UnixStream| {
        let mut line = String::new();
        BufReader::new(*stream).read_line(&mut line).unwrap();
        !line.contains("too many connections")
    };
    say("answered", asked.iter().filter(is_answered).count());
    let _ = std::io::stdin().lines().next();
    // The pipe of what the test harness would print at its end is closed by then.
    std::process::exit(0);
}

#[test]
fn an_ordinary_user_has_a_share_of_the_connections() {
    if !needs_root("an_ordinary_user_has_a_share_of_the_connections") {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &["--dry-run"]);
    let call = || {
        let mut command = by_nobody(&host, &role("caller"));
        command.env("EVENKEEL_TEST_ROLE", "caller").env("SOCKET", &daemon.socket);
        let mut caller = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(caller.stdout.take().unwrap());
        let answered = lines.iter().find_map(|line| {
            let (_, said) = line.split_once("@answered=")?;
            Some(said.parse::<usize>().unwrap())
        });
        (caller, answered)
    };
    // Two callers are one user: what the first one holds, the second one does not get.
    let (mut first, answered) = call();
    assert_eq!(answered, Some(SHARE));
    let (mut second, answered) = call();
    assert_eq!(answered, Some(0));
    // The shares of other users are not used up.
    assert!(daemon.ask(&json!({"req": "stats"}))["errno"].as_i64().unwrap_or(0) == 0);
    for caller in [&mut first, &mut second] {
        drop(caller.stdin.take());
        assert!(ended(caller).success());
    }
    // The share is free as soon as the daemon has seen that the callers are gone.
    wait_for("the share to be free again", || {
        let (mut third, answered) = call();
        drop(third.stdin.take());
        assert!(ended(&mut third).success());
        answered == Some(SHARE)
    });
    daemon.end();
}

/// So many users with all their connections are all that the daemon serves.
const USERS: u32 = 8;

#[test]
fn users_with_all_their_connections_lock_out_no_other_user() {
    if !needs_root("users_with_all_their_connections_lock_out_no_other_user") {
        return;
    }
    let host = Host::new();
    let daemon = Daemon::start(&host, &["--dry-run"]);
    let call = |uid: u32| {
        let mut command = host.command("setpriv");
        let user = [format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()];
        command.args(user).args(role("caller"));
        command.env("EVENKEEL_TEST_ROLE", "caller").env("SOCKET", &daemon.socket);
        let mut caller = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = lines_of(caller.stdout.take().unwrap());
        let answered = lines.iter().find_map(|line| {
            let (_, said) = line.split_once("@answered=")?;
            Some(said.parse::<usize>().unwrap())
        });
        (caller, answered.unwrap())
    };
    let mut callers = Vec::new();
    for uid in 60_001..=60_000 + USERS {
        let (caller, answered) = call(uid);
        assert_eq!(answered, SHARE);
        callers.push(caller);
    }
    let (last, answered) = call(NOBODY);
    callers.push(last);
    assert!(answered > 0, "the last user was locked out");
    // Root sees what each user has, and another user only its own.
    let shares = daemon.ask(&json!({"req": "connections"}));
    let shares = shares["args"]["resp"].as_array().unwrap().clone();
    assert_eq!(shares.len(), USERS as usize + 2, "{shares:?}");
    let connections = |share: &serde_json::Value| share["connections"].as_u64().unwrap() as usize;
    assert!(shares.iter().all(|share| connections(share) <= SHARE), "{shares:?}");
    // Each caller asked for more than it got, which is counted and shown.
    let status = output(&mut host.evenkeel(["status"]));
    let said = text(&status.stdout);
    assert!(said.contains("User 60001 at the daemon: "), "{said}");
    assert!(said.contains("connections, ") && said.contains(" refused beyond that"), "{said}");
    for caller in &mut callers {
        drop(caller.stdin.take());
        assert!(ended(caller).success());
    }
    daemon.end();
}

/// Read calls of a process so far.
fn reads(pid: i32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}

/// Any user may ask for a join as often as it likes.
#[test]
fn a_join_does_not_read_all_that_is_balanced() {
    let host = Host::new();
    const TASKS: u64 = 200;
    const ASKED: u64 = 20;
    let flags = ["--dry-run", "--accounting", "procfs", "--interval", "60s"];
    let daemon = Daemon::start(&host, &flags);
    let script = format!("for i in $(seq {TASKS}); do sleep 600 & done; wait");
    let mut program = host.command("sh").args(["-c", &script]).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", program.id());
    let children = || std::fs::read_to_string(&children).unwrap();
    wait_for("all children", || children().split_whitespace().count() as u64 == TASKS);
    let join = |pid: u32| daemon.ask(&json!({"req": "join", "args": {"pid": pid}}));
    assert_eq!(join(program.id())["errno"], 0);
    // A child joined with its parent.
    let child: u32 = children().split_whitespace().next().unwrap().parse().unwrap();
    let before = reads(daemon.pid());
    for _ in 0..ASKED {
        assert_eq!(join(child)["args"]["resp"]["programs"][0]["pid"], program.id());
    }
    let each = (reads(daemon.pid()) - before) / ASKED;
    assert!(each < TASKS / 2, "a join read {each} times");
    for pid in children().split_whitespace() {
        kill(pid.parse().unwrap(), libc::SIGKILL);
    }
    program.kill().unwrap();
    program.wait().unwrap();
    daemon.end();
}

#[test]
fn nothing_grows_while_programs_come_and_go() {
    let host = Host::new();
    let daemon = Daemon::start(&host, &[]);
    let mut sleeper = host.command("sleep").arg("600").spawn().unwrap();
    let resident_kib = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let journal_bytes = || {
        let sizes = host.journals().into_iter().filter_map(|path| std::fs::metadata(path).ok());
        sizes.map(|meta| meta.len()).sum::<u64>()
    };
    let mut most_bytes = 0;
    let mut half_way_kib = 0;
    for join in 0..JOINS {
        for request in ["join", "leave"] {
            let answer = daemon.ask(&json!({"req": request, "args": {"pid": sleeper.id()}}));
            assert_eq!(answer["errno"].as_i64().unwrap_or(0), 0, "{request}: {answer}");
        }
        most_bytes = most_bytes.max(journal_bytes());
        if join == JOINS / 2 {
            half_way_kib = resident_kib();
        }
    }
    let growth_kib = resident_kib().saturating_sub(half_way_kib);
    assert!(growth_kib < MOST_GROWTH_KIB, "{growth_kib} KiB more");
    assert!(most_bytes > 0 && most_bytes < MOST_JOURNAL_BYTES, "{most_bytes} bytes");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    daemon.end();
}
