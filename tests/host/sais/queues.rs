//! A virtual card with a receive queue for each of two connections, of TCP or of UDP: threaded NAPI
//! polls each queue in a kernel thread of its own, and a program at the sender chooses the queue.
//! `evenkeel irq run --mode source-aware` brings each thread to the CPU on which its connection is
//! consumed; no program of ours is on the packets' way.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_bench::irq::stage::{CLIENT, DEVICE, SERVER, Stage, choose_queue, queue_threads};
use evenkeel_journal::affinity;
use evenkeel_machine::CpuSet;
use serde_json::Value;

use super::can_run;
use super::net::run_on;
use super::traffic::incoming_cpu;
use crate::kill_moments::{Left, Moments, undo_all};
use crate::support::*;

/// A burst of a server, and the pause after it: a load that a CPU has time for.
const BURST_BYTES: usize = 32 << 10;
const PAUSE: Duration = Duration::from_millis(1);
/// TCP sends so many at a time. One alone takes 2 % of a fast CPU, and no source that takes less is
/// moved.
const TCP_BURSTS: u32 = 4;
/// A burst of UDP comes in datagrams of this length, so that they take time enough to be noticed.
const DATAGRAM_BYTES: usize = 700;
/// Until a consumer of UDP looks whether the test is over.
const SILENCE: Duration = Duration::from_millis(100);
/// Receptions that are judged, of each connection.
const JUDGED: u32 = 1000;

fn masks() -> Vec<CpuSet> {
    let threads = queue_threads().unwrap();
    threads.iter().map(|task| affinity::get(task.tid).unwrap()).collect()
}

/// `evenkeel irq run --mode source-aware`, ended when it is dropped.
struct Mover(Child);

impl Mover {
    fn start(host: &Host) -> Self {
        let words = ["irq", "run", "--mode", "source-aware", "--interval", "1s"];
        let mut child = host.evenkeel(words).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(
            said.starts_with("Moving interrupts to where their packets are received"),
            "{said}"
        );
        Self(child)
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        kill(self.0.id() as i32, libc::SIGTERM);
        let _ = self.0.wait();
    }
}

/// The CPU on which most of what each queue's thread brings is received, by `evenkeel irq status`.
fn consumers(host: &Host) -> Vec<u32> {
    let status = output(&mut host.evenkeel(["irq", "status", "--json"]));
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let prefix = format!("napi/{DEVICE}-");
    let sources = status["sources"].as_array().unwrap().iter();
    let is_ours = |source: &&Value| source["name"].as_str().unwrap().starts_with(&prefix);
    let consumer = |source: &Value| {
        let received = source["napis"][0]["received_bytes"].as_object()?;
        let most = received.iter().max_by_key(|(_, bytes)| bytes.as_u64())?;
        most.0.parse().ok()
    };
    sources.filter(is_ours).filter_map(consumer).collect()
}

/// An end of a connection.
trait End: AsRawFd + Send {
    /// Sends a burst; false: the other end is gone.
    fn send_burst(&mut self, burst: &[u8]) -> bool;

    /// Receives something, or nothing for a while; false: the other end is gone.
    fn receive(&mut self, room: &mut [u8]) -> bool;
}

impl End for TcpStream {
    fn send_burst(&mut self, burst: &[u8]) -> bool {
        (0..TCP_BURSTS).all(|_| self.write_all(burst).is_ok())
    }

    fn receive(&mut self, room: &mut [u8]) -> bool {
        self.read(room).is_ok_and(|bytes| bytes > 0)
    }
}

impl End for UdpSocket {
    fn send_burst(&mut self, burst: &[u8]) -> bool {
        // A full queue loses some.
        burst.chunks(DATAGRAM_BYTES).for_each(|datagram| drop(self.send(datagram)));
        true
    }

    fn receive(&mut self, room: &mut [u8]) -> bool {
        let _ = self.recv(room);
        true
    }
}

/// A connection of TCP: the client's end, and the server's.
fn tcp(stage: &Stage) -> [TcpStream; 2] {
    let server = &stage.server;
    let listener = server.within(|| Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?)).unwrap();
    let address = SocketAddr::from((SERVER, listener.local_addr().unwrap().port()));
    let client = stage.client.within(|| Ok(TcpStream::connect(address)?)).unwrap();
    let (server, _) = listener.accept().unwrap();
    [client, server]
}

/// The same of UDP.
fn udp(stage: &Stage) -> [UdpSocket; 2] {
    let ends = [(&stage.client, CLIENT), (&stage.server, SERVER)];
    let [(client, of_client), (server, of_server)] = ends.map(|(namespace, address)| {
        let socket = namespace.within(|| Ok(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?)).unwrap();
        let port = socket.local_addr().unwrap().port();
        (socket, SocketAddr::from((address, port)))
    });
    client.connect(of_server).unwrap();
    server.connect(of_client).unwrap();
    client.set_read_timeout(Some(SILENCE)).unwrap();
    [client, server]
}

/// Sends bursts by a queue until it is told to end.
fn serve(mut end: impl End, queue: u32, is_over: &AtomicBool) {
    choose_queue(&end, queue).unwrap();
    let burst = vec![7; BURST_BYTES];
    while !is_over.load(Ordering::Relaxed) {
        if !end.send_burst(&burst) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Receptions that are judged: on the CPU of their consumer, or elsewhere.
#[derive(Default)]
struct Judged {
    is_on: AtomicBool,
    home: AtomicU32,
    away: AtomicU32,
}

/// Receives on this CPU until it is told to end.
fn consume(mut end: impl End, cpu: u32, is_over: &AtomicBool, judged: &Judged) {
    run_on(&just(cpu));
    let mut room = vec![0; BURST_BYTES];
    while end.receive(&mut room) && !is_over.load(Ordering::Relaxed) {
        if judged.is_on.load(Ordering::Relaxed) {
            let is_home = incoming_cpu(&end) == cpu;
            let count = if is_home { &judged.home } else { &judged.away };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A card with two queues; `None`: the test is skipped.
fn stage(test: &str) -> Option<Stage> {
    if !needs_no_irqbalance(test) {
        return None;
    }
    let stage = Stage::new(2).unwrap();
    if stage.is_none() {
        evenkeel_skip::skip(test, "this kernel has no TCX (Linux 6.6)");
    }
    stage
}

/// Works while each queue brings a connection that is consumed on one of these CPUs.
fn in_traffic<E: End>(
    stage: &Stage,
    cpus: [u32; 2],
    connect: impl Fn(&Stage) -> [E; 2],
    work: impl FnOnce(&Judged),
) {
    let (is_over, judged) = (AtomicBool::new(false), Judged::default());
    std::thread::scope(|scope| {
        for (queue, cpu) in cpus.into_iter().enumerate() {
            let [client, server] = connect(stage);
            let (is_over, judged) = (&is_over, &judged);
            scope.spawn(move || serve(server, queue as u32, is_over));
            scope.spawn(move || consume(client, cpu, is_over, judged));
        }
        // The servers and the consumers end with the test, however that ends.
        let _over = Over(&is_over);
        work(&judged);
    });
}

#[test]
fn each_queue_is_processed_where_its_connection_is_consumed() {
    each_queue_goes_home("each_queue_is_processed_where_its_connection_is_consumed", tcp);
}

#[test]
fn each_queue_is_processed_where_its_datagrams_are_consumed() {
    each_queue_goes_home("each_queue_is_processed_where_its_datagrams_are_consumed", udp);
}

fn each_queue_goes_home<E: End>(test: &str, connect: impl Fn(&Stage) -> [E; 2]) {
    let Some((first, second)) = can_run(test) else { return };
    let host = Host::alone();
    let Some(stage) = stage(test) else { return };
    in_traffic(&stage, [first, second], connect, |judged| {
        let mover = Mover::start(&host);
        let wanted = [just(first), just(second)];
        wait_for("each thread at its consumer's CPU", || {
            let masks = masks();
            wanted.iter().all(|cpu| masks.contains(cpu))
        });
        judged.is_on.store(true, Ordering::Relaxed);
        // Beside another test, a thread may be late at its new place: then the next receptions count.
        wait_for("99 of 100 receptions at home", || {
            let [home, away] =
                [&judged.home, &judged.away].map(|count| count.load(Ordering::Relaxed));
            let is_all = home + away >= 2 * JUDGED;
            if is_all && home < 99 * away {
                judged.home.store(0, Ordering::Relaxed);
                judged.away.store(0, Ordering::Relaxed);
            }
            is_all && home >= 99 * away
        });
        judged.is_on.store(false, Ordering::Relaxed);
        let mut seen = consumers(&host);
        seen.sort_unstable();
        let mut cpus = vec![first, second];
        cpus.sort_unstable();
        assert_eq!(seen, cpus, "where `irq status` sees them received");
        drop(mover);
        // All is as before.
        assert_eq!(masks(), [all(), all()]);
        assert!(host.journals().is_empty());
    });
    // A queue that runs full loses packets; none overtakes another.
    let counters = stage.server.tcp_counters().unwrap();
    for counter in ["TCPSACKReorder", "TCPTSReorder"] {
        assert_eq!(counters[counter], 0.0, "{counter}");
    }
}

/// Killed at random moments from the first pinned thread on (`crate::kill_moments`); every second time
/// there is no supervisor, and `evenkeel undo` has to do it.
#[test]
fn threads_are_free_after_all_kill_moments_of_irq_run() {
    const TEST: &str = "threads_are_free_after_all_kill_moments_of_irq_run";
    let Some((first, second)) = can_run(TEST) else { return };
    let host = Host::alone();
    let Some(stage) = stage(TEST) else { return };
    let (mut moments, left) = (Moments::of(TEST), Left::now());
    in_traffic(&stage, [first, second], tcp, |_| {
        let is_free = || masks() == [all(), all()];
        for number in 0..moments.kills {
            let is_supervised = number % 2 == 0;
            let mut words = vec!["irq", "run", "--mode", "source-aware", "--interval", "1s"];
            if !is_supervised {
                words.push("--no-supervisor");
            }
            let mut run = host.evenkeel(words).stdout(Stdio::null()).spawn().unwrap();
            wait_for("a pinned thread", || !is_free());
            // The other thread is moved a round later.
            std::thread::sleep(Duration::from_micros(moments.next(1_200_000)));
            run.kill().unwrap();
            ended(&mut run);
            if is_supervised {
                wait_for("the supervisor", is_free);
            } else {
                assert!(!is_free(), "nothing was left to undo");
            }
            undo_all(&host, is_supervised);
            assert!(is_free());
            left.wait_as_before();
        }
    });
}

/// Sets this when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
