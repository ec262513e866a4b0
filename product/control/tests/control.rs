//! The socket with real connections: answers, malformed requests, floods, and peers.

// In a test a panic is the report, in its helpers too.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_control::{Answer, AskError, BindError, Peer, Request, Server, ask, ask_within};
use nix::errno::Errno;
use nix::poll::{PollTimeout, poll};
use nix::sys::socket::{Backlog, listen};
use serde_json::json;

/// A service in a thread, and its socket.
struct Service {
    dir: tempfile::TempDir,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::bind(&dir.path().join("socket")).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            let mut is_left = false;
            while !is_done.load(Ordering::Relaxed) {
                let timeout = if is_left { 0u8 } else { 5 };
                poll(&mut server.poll_fds(), PollTimeout::from(timeout)).unwrap();
                is_left = server.serve(answer);
            }
        });
        Self { dir, done, thread: Some(thread) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("socket")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
            assert!(!self.path().exists(), "the socket is left behind");
        }
    }
}

fn answer(peer: &Peer, request: &Request) -> Answer {
    match request.req.as_str() {
        "peer" => Answer::ok(json!({"uid": peer.uid, "pid": peer.pid})),
        "echo" => Answer::ok(request.args.clone()),
        "much" => Answer::ok("x".repeat(3 * 1024 * 1024)),
        other => Answer::refused(Errno::ENOSYS, format!("{other}: no such request")),
    }
}

fn connect(path: &Path) -> (UnixStream, BufReader<UnixStream>) {
    let stream = UnixStream::connect(path).unwrap();
    let reader = BufReader::new(stream.try_clone().unwrap());
    (stream, reader)
}

fn next(reader: &mut impl BufRead) -> Answer {
    let mut text = String::new();
    reader.read_line(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_request_of_a_client_that_is_gone_is_not_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut server = Server::bind(&path).unwrap();
    let ask = |name: &str| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(&Request::new(name).encode()).unwrap();
        stream
    };
    drop(ask("gone"));
    let ending = ask("ending");
    // It still receives.
    ending.shutdown(std::net::Shutdown::Write).unwrap();
    let mut asked = Vec::new();
    for _ in 0..4 {
        server.serve(|_, request| {
            asked.push(request.req.clone());
            Answer::ok(1)
        });
    }
    assert_eq!(asked, ["ending"]);
    let mut line = String::new();
    BufReader::new(&ending).read_line(&mut line).unwrap();
    assert!(line.contains("\"errno\":0"), "{line}");
}

#[test]
fn the_peer_is_identified_by_the_kernel() {
    let service = Service::start();
    let peer = ask(&service.path(), &Request::new("peer")).unwrap();
    assert_eq!(peer["uid"], nix::unistd::geteuid().as_raw());
    assert_eq!(peer["pid"], std::process::id());
    let refused = ask(&service.path(), &Request::new("fly")).unwrap_err();
    assert!(matches!(&refused, AskError::Refused { errno, .. } if *errno == Errno::ENOSYS as i32));
    assert_eq!(refused.to_string(), "fly: no such request");
    assert!(Peer { uid: 0, pid: 1 }.may_steer(7) && Peer { uid: 7, pid: 1 }.may_steer(7));
    assert!(!Peer { uid: 7, pid: 1 }.may_steer(0) && !Peer { uid: 7, pid: 1 }.may_steer(8));
}

#[test]
fn many_requests_on_one_connection_are_answered_in_order() {
    let service = Service::start();
    let (mut stream, mut reader) = connect(&service.path());
    let text: String =
        (0..100).map(|n| format!("{{\"req\":\"echo\",\"args\":{{\"n\":{n}}}}}\n")).collect();
    stream.write_all(text.as_bytes()).unwrap();
    for n in 0..100 {
        assert_eq!(next(&mut reader).into_result().unwrap(), json!({"n": n}));
    }
    // Half a line, then the rest.
    stream.write_all(b"{\"req\":\"ec").unwrap();
    assert!(ask(&service.path(), &Request::new("echo")).is_ok());
    stream.write_all(b"ho\"}\n").unwrap();
    assert_eq!(next(&mut reader).into_result().unwrap(), json!({}));
    // A request before end of file is still answered.
    stream.write_all(b"{\"req\":\"echo\"}\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(next(&mut reader).errno, 0);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn malformed_requests_are_answered_and_disturb_no_other_client() {
    let service = Service::start();
    let (mut stream, mut reader) = connect(&service.path());
    for malformed in
        [&b"\n"[..], b"{}\n", b"[1]\n", b"\xff\xfe\0\n", b"{\"req\":1}\n", b"GET /\r\n"]
    {
        stream.write_all(malformed).unwrap();
        let (errno, why) = next(&mut reader).into_result().unwrap_err();
        assert_eq!(errno, Errno::EINVAL as i32);
        assert!(why.starts_with("not a request like {\"req\":\"status\""), "{why}");
    }
    // A line that does not end.
    let sent = stream.write_all(&[b'x'; 200_000]);
    let answer = next(&mut reader);
    assert_eq!(answer.errno, Errno::EMSGSIZE as i32, "{answer:?} {sent:?}");
    assert!(ask(&service.path(), &Request::new("peer")).is_ok());
}

#[test]
fn a_client_that_does_not_read_delays_no_other() {
    let service = Service::start();
    let (mut lazy, _reader) = connect(&service.path());
    lazy.write_all("{\"req\":\"much\"}\n".repeat(50).as_bytes()).unwrap();
    for _ in 0..20 {
        assert!(ask(&service.path(), &Request::new("peer")).is_ok());
    }
}

#[test]
fn a_user_gets_only_its_share_of_connections() {
    let service = Service::start();
    if nix::unistd::geteuid().is_root() {
        // Root is never refused.
        let held: Vec<UnixStream> =
            (0..200).map(|_| UnixStream::connect(service.path()).unwrap()).collect();
        assert!(ask(&service.path(), &Request::new("peer")).is_ok());
        drop(held);
        return;
    }
    let held: Vec<UnixStream> = (0..16).map(|_| connect(&service.path()).0).collect();
    let refused = ask(&service.path(), &Request::new("peer")).unwrap_err();
    assert!(refused.to_string().contains("too many connections"), "{refused}");
    drop(held);
}

/// Clients that connect as fast as the service accepts do not keep it from its other work.
#[test]
fn connections_are_accepted_in_portions() {
    // Fewer than wait for a listener on any kernel.
    const CONNECTIONS: usize = 120;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut server = Server::bind(&path).unwrap();
    let _held: Vec<UnixStream> =
        (0..CONNECTIONS).map(|_| UnixStream::connect(&path).unwrap()).collect();
    server.serve(answer);
    // The listener is not among them: it is readable all the time.
    let accepted = server.poll_fds().len();
    assert!(accepted <= 64 && server.patience().is_some(), "{accepted} at once");
    while let Some(patience) = server.patience() {
        std::thread::sleep(patience);
        server.serve(answer);
    }
    let most = if nix::unistd::geteuid().is_root() { CONNECTIONS } else { 16 };
    assert_eq!(server.poll_fds().len(), most + 1);
}

/// A service that ends before it answers is reported as absent, one that closes the connection is not.
#[test]
fn a_service_that_ends_before_its_answer_is_reported_as_absent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let asked = |ends: bool| {
        let listener = UnixListener::bind(&path).unwrap();
        let answer = std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&path, &Request::new("peer")));
            let (connection, _) = listener.accept().unwrap();
            let listener = Some(listener).filter(|_| !ends);
            drop(connection);
            let answer = asking.join().unwrap();
            drop(listener);
            answer
        });
        std::fs::remove_file(&path).unwrap();
        answer.unwrap_err()
    };
    assert!(matches!(asked(true), AskError::NoService { .. }));
    assert!(matches!(asked(false), AskError::Broken { .. }));
}

#[test]
fn a_socket_has_one_service_at_a_time() {
    let service = Service::start();
    let again = Server::bind(&service.path()).unwrap_err();
    assert!(matches!(again, BindError::Busy { .. }), "{again}");
    assert!(ask(&service.path(), &Request::new("peer")).is_ok());

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    assert!(matches!(ask(&path, &Request::new("peer")).unwrap_err(), AskError::NoService { .. }));
    // The socket of a service that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(Server::bind(&path).unwrap());
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Server::bind(&path).unwrap_err(), BindError::NotASocket { .. }));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

/// Its queue of connections is full, and it takes none out.
#[test]
fn a_service_that_stands_still_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    listen(&listener, Backlog::new(2).unwrap()).unwrap();
    let ask = || ask_within(&path, &Request::new("a"), Duration::from_millis(5));
    let why = ask().unwrap_err();
    assert!(matches!(why, AskError::Broken { .. }), "{why:?}");
    // Connections stay in the queue after their clients have given up.
    let is_full = || matches!(ask(), Err(AskError::NoService { .. }));
    assert!((0..100).any(|_| is_full()), "the queue is endless");
}
