//! `--hold`: a thread that waits for data stays on the CPU where it asked. It gets its own mask
//! back when the data is there, and when evenkeel has been killed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use nix::unistd::gettid;

use super::net::Network;
use super::{Steering, can_run};
use crate::support::*;

const PORT: u16 = 9001;
/// Longer than any test.
const LONG: [&str; 3] = ["--policy", "issuer", "--hold=3600"];

/// A thread that sends a request when it is told to, and waits for the answer. This struct is the
/// server.
struct Waiter {
    tid: i32,
    stream: TcpStream,
    ask: Option<Sender<()>>,
    answered: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Waiter {
    fn new(network: &Network) -> Self {
        Self::at(network, PORT)
    }

    /// With a server at this port.
    fn at(network: &Network, port: u16) -> Self {
        let listener = network.server.within(|| TcpListener::bind(("0.0.0.0", port)).unwrap());
        let address = SocketAddr::from((Network::address(), port));
        let connect = || TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        let client = network.client.within(connect);
        let (stream, _) = listener.accept().unwrap();
        let (ask, asked) = channel();
        let (answer, answered) = channel();
        let (say, said) = channel();
        let thread = thread::spawn(move || {
            say.send(gettid().as_raw()).unwrap();
            wait(client, &asked, &answer);
        });
        let tid = said.recv().unwrap();
        Self { tid, stream, ask: Some(ask), answered, thread: Some(thread) }
    }

    fn mask(&self) -> CpuSet {
        mask(self.tid)
    }

    /// Has the thread send a request, and wait from then on.
    fn ask(&mut self) {
        self.ask.as_ref().unwrap().send(()).unwrap();
        self.stream.read_exact(&mut [0]).unwrap();
    }

    fn ask_and_be_held(&mut self) {
        self.ask();
        wait_for("it to be held", || self.mask().len() == 1);
    }

    /// Sends the answer.
    fn answer(&mut self) {
        self.stream.write_all(&[7]).unwrap();
        self.answered.recv().unwrap();
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Requests and waits until the test is over, or the server is gone.
fn wait(mut stream: TcpStream, asked: &Receiver<()>, answer: &Sender<()>) {
    while asked.recv().is_ok() {
        if stream.write_all(&[1]).is_err() || stream.read_exact(&mut [0]).is_err() {
            return;
        }
        let _ = answer.send(());
    }
}

fn holds(steering: &Steering, what: &str) -> u64 {
    steering.status()["hold"][what].as_u64().unwrap()
}

#[test]
fn a_waiting_thread_is_held_until_the_answer_comes() {
    let Some((interrupts, _)) = can_run("a_waiting_thread_is_held_until_the_answer_comes") else {
        return;
    };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let steering = Steering::start(&host, &network, &LONG);
    let mut waiter = Waiter::new(&network);
    for _ in 0..3 {
        waiter.ask_and_be_held();
        waiter.answer();
        wait_for("it to be let go", || waiter.mask() == all());
    }
    wait_for("the count", || holds(&steering, "held") == 0);
    assert_eq!((holds(&steering, "holds"), holds(&steering, "timed_out")), (3, 0));
    // At the end of the steering, too.
    waiter.ask_and_be_held();
    assert_eq!(steering.end(libc::SIGTERM), Some(0));
    assert_eq!(waiter.mask(), all());
}

#[test]
fn a_thread_that_waits_too_long_is_let_go() {
    let Some((interrupts, _)) = can_run("a_thread_that_waits_too_long_is_let_go") else { return };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let steering = Steering::start(&host, &network, &["--policy", "runner", "--hold"]);
    let mut waiter = Waiter::new(&network);
    waiter.ask();
    wait_for("it to be let go", || holds(&steering, "timed_out") == 1);
    assert_eq!(waiter.mask(), all());
    assert_eq!(holds(&steering, "holds"), 1, "it is not held again for the same");
    // An answer and a new request are a new wait.
    waiter.answer();
    waiter.ask();
    wait_for("it to be held again", || holds(&steering, "holds") == 2);
    waiter.answer();
    wait_for("it to be let go", || waiter.mask() == all());
}

#[test]
fn a_mask_that_the_user_sets_meanwhile_stays() {
    let Some((interrupts, other)) = can_run("a_mask_that_the_user_sets_meanwhile_stays") else {
        return;
    };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let steering = Steering::start(&host, &network, &LONG);
    let mut waiter = Waiter::new(&network);
    waiter.ask_and_be_held();
    let held = waiter.mask();
    let chosen = just(if held == just(other) { interrupts } else { other });
    affinity::set(waiter.tid, &chosen).unwrap();
    waiter.answer();
    wait_for("it to be let go", || holds(&steering, "yielded") == 1);
    assert_eq!(waiter.mask(), chosen);
    // The mask is not changed again.
    waiter.ask();
    waiter.answer();
    assert_eq!(steering.end(libc::SIGTERM), Some(0));
    assert_eq!(waiter.mask(), chosen);
}

#[test]
fn a_thread_that_a_held_thread_starts_is_not_held() {
    let Some((interrupts, _)) = can_run("a_thread_that_a_held_thread_starts_is_not_held") else {
        return;
    };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let _steering = Steering::start(&host, &network, &LONG);
    let listener = network.server.within(|| TcpListener::bind(("0.0.0.0", PORT)).unwrap());
    network.client.within(|| {
        let own = || mask(gettid().as_raw());
        let before = own();
        let mut client = TcpStream::connect((Network::address(), PORT)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[1]).unwrap();
        // One thread waits, and starts another one meanwhile.
        wait_for("it to be held", || own().len() == 1);
        let heir = thread::spawn(move || {
            let is_born_held = own().len() == 1;
            wait_for("the heir to be freed", || own() == before);
            is_born_held
        });
        assert!(heir.join().unwrap(), "it did not inherit");
        server.write_all(&[7]).unwrap();
        client.read_exact(&mut [0]).unwrap();
    });
}

/// The thread of the test as a client, and the servers' ends of so many connections.
fn connections(network: &Network, number: usize) -> Vec<(TcpStream, TcpStream)> {
    let listener = network.server.within(|| TcpListener::bind(("0.0.0.0", PORT)).unwrap());
    (0..number)
        .map(|_| {
            let client = TcpStream::connect((Network::address(), PORT)).unwrap();
            (client, listener.accept().unwrap().0)
        })
        .collect()
}

fn own() -> CpuSet {
    mask(gettid().as_raw())
}

#[test]
fn a_silent_connection_beside_an_active_one_holds_no_thread() {
    let Some((interrupts, _)) = can_run("a_silent_connection_beside_an_active_one_holds_no_thread")
    else {
        return;
    };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let steering = Steering::start(&host, &network, &["--policy", "issuer", "--hold"]);
    network.client.within(|| {
        let before = own();
        let mut ends = connections(&network, 2);
        let (mut active, mut answers) = ends.remove(1);
        let (silent, _no_answer) = &mut ends[0];
        silent.write_all(&[1]).unwrap();
        wait_for("it to be held", || own().len() == 1);
        // Each time when the answer has come, nothing is waited for but the silent one.
        wait_for("it to be let go", || {
            active.write_all(&[1]).unwrap();
            answers.read_exact(&mut [0]).unwrap();
            answers.write_all(&[7]).unwrap();
            active.read_exact(&mut [0]).unwrap();
            own() == before
        });
        assert_eq!(holds(&steering, "timed_out"), 1);
        // It is held for the active one as before.
        active.write_all(&[1]).unwrap();
        wait_for("it to be held again", || own().len() == 1);
        answers.write_all(&[7]).unwrap();
        active.read_exact(&mut [0]).unwrap();
        wait_for("it to be let go again", || own() == before);
    });
}

#[test]
fn data_that_is_only_looked_at_is_not_received() {
    let Some((interrupts, _)) = can_run("data_that_is_only_looked_at_is_not_received") else {
        return;
    };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let steering = Steering::start(&host, &network, &LONG);
    network.client.within(|| {
        let before = own();
        let (mut client, mut server) = connections(&network, 1).remove(0);
        client.write_all(&[1]).unwrap();
        wait_for("it to be held", || own().len() == 1);
        server.write_all(&[7]).unwrap();
        assert_eq!(client.peek(&mut [0]).unwrap(), 1);
        // Several looks later.
        thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!((own().len(), holds(&steering, "held")), (1, 1));
        assert_eq!(steering.flows()[0]["received_bytes"], 0);
        client.read_exact(&mut [0]).unwrap();
        wait_for("it to be let go", || own() == before);
    });
}

/// The request itself, which the kernel gives back with the time at which it left.
fn sent_packet(client: &TcpStream) -> bool {
    let mut room = [0_u8; 256];
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: `room` is as long as it is said to be.
    let bytes =
        unsafe { libc::recv(client.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), flags) };
    bytes > 0
}

#[test]
fn a_packet_that_was_sent_is_no_answer() {
    let Some((interrupts, _)) = can_run("a_packet_that_was_sent_is_no_answer") else { return };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let steering = Steering::start(&host, &network, &LONG);
    network.client.within(|| {
        let before = own();
        let (mut client, mut server) = connections(&network, 1).remove(0);
        let stamps = libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
        // SAFETY: the flags are as long as they are said to be.
        let result = unsafe {
            libc::setsockopt(
                client.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_TIMESTAMPING,
                (&raw const stamps).cast(),
                size_of_val(&stamps) as libc::socklen_t,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        client.write_all(&[1]).unwrap();
        wait_for("it to be held", || own().len() == 1);
        wait_for("the packet that was sent", || sent_packet(&client));
        // Several looks later.
        thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!((own().len(), holds(&steering, "held")), (1, 1));
        assert_eq!(steering.flows()[0]["received_bytes"], 0);
        server.write_all(&[7]).unwrap();
        client.read_exact(&mut [0]).unwrap();
        wait_for("it to be let go", || own() == before);
    });
}

#[test]
fn a_thread_that_fails_to_read_consumes_nothing() {
    let Some((interrupts, _)) = can_run("a_thread_that_fails_to_read_consumes_nothing") else {
        return;
    };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let steering = Steering::start(&host, &network, &["--policy", "runner"]);
    network.client.within(|| {
        let (mut client, mut server) = connections(&network, 1).remove(0);
        server.write_all(&[7]).unwrap();
        client.read_exact(&mut [0]).unwrap();
        let consumer = || steering.flows()[0]["tid"].as_i64().unwrap();
        assert_eq!(consumer(), i64::from(gettid().as_raw()));
        client.set_nonblocking(true).unwrap();
        thread::scope(|scope| {
            let reading = scope.spawn(|| (&client).read(&mut [0]).unwrap_err().kind());
            assert_eq!(reading.join().unwrap(), std::io::ErrorKind::WouldBlock);
        });
        assert_eq!(consumer(), i64::from(gettid().as_raw()));
    });
}

/// A worker of a server with a connection that is kept alive: it has answered, and waits for nothing
/// that it asked for.
#[test]
fn a_worker_with_a_connection_that_stays_open_is_not_held() {
    let Some((interrupts, _)) = can_run("a_worker_with_a_connection_that_stays_open_is_not_held")
    else {
        return;
    };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let steering = Steering::start(&host, &network, &LONG);
    let listener = network.client.within(|| TcpListener::bind(("0.0.0.0", PORT)).unwrap());
    let address = SocketAddr::from((Network::client_address(), PORT));
    let connect = || TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    let mut visitor = network.server.within(connect);
    network.client.within(|| {
        let before = own();
        let (mut worker, _) = listener.accept().unwrap();
        visitor.write_all(&[1]).unwrap();
        worker.read_exact(&mut [0]).unwrap();
        worker.write_all(&[7]).unwrap();
        visitor.read_exact(&mut [0]).unwrap();
        wait_for("the connection to be known", || steering.flows().len() == 1);
        // Another thread asks meanwhile, and is held: by then the worker would be, too.
        let mut waiter = Waiter::at(&network, PORT + 1);
        waiter.ask_and_be_held();
        assert_eq!((own(), holds(&steering, "holds")), (before, 1));
        waiter.answer();
    });
}

#[test]
fn threads_held_by_a_killed_steering_are_freed_by_the_supervisor_or_by_undo() {
    let Some((interrupts, _)) =
        can_run("threads_held_by_a_killed_steering_are_freed_by_the_supervisor_or_by_undo")
    else {
        return;
    };
    let host = Host::alone();
    let network = Network::new(interrupts);
    let mut waiter = Waiter::new(&network);
    let steering = Steering::start(&host, &network, &LONG);
    waiter.ask_and_be_held();
    assert_eq!(steering.end(libc::SIGKILL), None);
    wait_for("the supervisor", || waiter.mask() == all());
    waiter.answer();
    // The steering and its supervisor are both killed.
    let flags = [&LONG[..], &["--no-supervisor"]].concat();
    let steering = Steering::start(&host, &network, &flags);
    waiter.ask_and_be_held();
    assert_eq!(steering.end(libc::SIGKILL), None);
    assert_eq!(waiter.mask().len(), 1);
    let undone = output(&mut host.evenkeel(["undo"]));
    let said = text(&undone.stdout);
    assert!(said.ends_with("): 1 task may use all its CPUs again.\n"), "{said}");
    assert_eq!(waiter.mask(), all());
}
