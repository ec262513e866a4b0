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
