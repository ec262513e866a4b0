//! A virtual card with a receive queue for each of two connections, of TCP or of UDP: threaded NAPI
//! polls each queue in a kernel thread of its own, and a program at the sender chooses the queue.
//! `evenkeel irq run --mode source-aware` brings each thread to the CPU on which its connection is
//! consumed; no program of ours is on the packets' way.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_journal::{TaskRef, affinity};
use evenkeel_machine::CpuSet;
use libbpf_sys::{
    BPF_PROG_TYPE_SCHED_CLS, BPF_TCX_EGRESS, bpf_insn, bpf_link_create, bpf_prog_load,
    bpf_prog_load_opts,
};
use nix::net::if_::if_nametoindex;
use serde_json::Value;

use super::can_run;
use super::net::{DEVICE, Namespace, Network, SERVER, run_on};
use super::traffic::incoming_cpu;
use crate::kill_moments::{Left, Moments, undo_all};
use crate::support::*;

/// A burst of a server, and the pause after it: a load that a CPU has time for.
const BURST_BYTES: usize = 32 << 10;
const PAUSE: Duration = Duration::from_millis(1);
/// A burst of UDP comes in datagrams of this length, so that they take time enough to be noticed.
const DATAGRAM_BYTES: usize = 700;
/// Until a consumer of UDP looks whether the test is over.
const SILENCE: Duration = Duration::from_millis(100);
/// Receptions that are judged, of each connection.
const JUDGED: u32 = 1000;

/// linux/ethtool.h.
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGRO: u32 = 0x2c;

/// Has each packet that leaves by a device arrive at the queue that its socket's mark says (SO_MARK):
/// the queue's number and 1. It ends when this is dropped.
struct Director(#[allow(dead_code)] OwnedFd, #[allow(dead_code)] OwnedFd);

impl Director {
    /// At a device of the calling thread's network namespace. `None`: this kernel has no TCX (it came
    /// with Linux 6.6).
    fn start(device: &str) -> Option<Self> {
        let code = |code, registers: (u8, u8), off, imm| {
            let mut insn = bpf_insn { code, off, imm, ..Default::default() };
            insn.set_dst_reg(registers.0);
            insn.set_src_reg(registers.1);
            insn
        };
        // linux/bpf.h, struct __sk_buff: `mark` is at 8, `queue_mapping` at 12; TCX_NEXT is -1.
        let program = [
            code(0x61, (0, 1), 8, 0),
            code(0x63, (1, 0), 12, 0),
            code(0xb7, (0, 0), 0, -1),
            code(0x95, (0, 0), 0, 0),
        ];
        let mut options =
            bpf_prog_load_opts { sz: size_of::<bpf_prog_load_opts>() as u64, ..Default::default() };
        options.expected_attach_type = BPF_TCX_EGRESS;
        // SAFETY: the instructions, the texts and the options outlive the call.
        let loaded = unsafe {
            bpf_prog_load(
                BPF_PROG_TYPE_SCHED_CLS,
                c"director".as_ptr(),
                c"GPL".as_ptr(),
                program.as_ptr(),
                program.len() as u64,
                &raw mut options,
            )
        };
        assert!(loaded >= 0, "{}", std::io::Error::from_raw_os_error(-loaded));
        // SAFETY: it was just made, and is no other's.
        let program = unsafe { OwnedFd::from_raw_fd(loaded) };
        let index = if_nametoindex(device).unwrap() as i32;
        // SAFETY: a descriptor, an index, and no options.
        let link = unsafe { bpf_link_create(loaded, index, BPF_TCX_EGRESS, std::ptr::null()) };
        if link == -libc::EINVAL {
            return None;
        }
        assert!(link >= 0, "{}", std::io::Error::from_raw_os_error(-link));
        // SAFETY: it was just made, and is no other's.
        let link = unsafe { OwnedFd::from_raw_fd(link) };
        Some(Self(link, program))
    }
}

/// Client and server at the two ends of a cable with two queues.
fn network() -> Network {
    let [client, router, server] = [(); 3].map(|()| Namespace::new());
    let queues = "numtxqueues 2 numrxqueues 2";
    let path = server.path();
    client.ip(&format!(
        "link add {DEVICE} {queues} type veth peer name {SERVER} {queues} netns {path}"
    ));
    for (namespace, device, end) in [(&client, DEVICE, 1), (&server, SERVER, 2)] {
        namespace.ip(&format!("address add 198.18.1.{end}/24 dev {device}"));
        namespace.ip(&format!("link set {device} up"));
    }
    // It has NAPI instances only while it joins packets; joined ones would go past them.
    client.set_ethtool(DEVICE, ETHTOOL_SGRO, 1);
    client.write_sysfs(&format!("class/net/{DEVICE}/threaded"), "1");
    server.set_ethtool(SERVER, ETHTOOL_STSO, 0);
    Network { client, router, server }
}

/// The kernel threads of the client's queues.
fn queue_threads() -> Vec<TaskRef> {
    let prefix = format!("napi/{DEVICE}-");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_ours = |pid: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with(&prefix)
    };
    numbers.filter(is_ours).filter_map(|pid| TaskRef::in_process(pid, pid).ok()).collect()
}

fn masks() -> Vec<CpuSet> {
    queue_threads().iter().map(|task| affinity::get(task.tid).unwrap()).collect()
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
        self.write_all(burst).is_ok()
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
fn tcp(network: &Network) -> [TcpStream; 2] {
    let listener = network.server.within(|| TcpListener::bind(("0.0.0.0", 0)).unwrap());
    let address = SocketAddr::from((Network::address(), listener.local_addr().unwrap().port()));
    let client = network.client.within(|| TcpStream::connect(address).unwrap());
    let (server, _) = listener.accept().unwrap();
    [client, server]
}

/// The same of UDP.
fn udp(network: &Network) -> [UdpSocket; 2] {
    let ends = [(&network.client, 1), (&network.server, 2)];
    let [(client, of_client), (server, of_server)] =
        ends.map(|(namespace, end): (&Namespace, u8)| {
            let socket = namespace.within(|| UdpSocket::bind(("0.0.0.0", 0)).unwrap());
            let port = socket.local_addr().unwrap().port();
            (socket, SocketAddr::from(([198, 18, 1, end], port)))
        });
    client.connect(of_server).unwrap();
    server.connect(of_client).unwrap();
    client.set_read_timeout(Some(SILENCE)).unwrap();
    [client, server]
}

/// Sends bursts by a queue until it is told to end.
fn serve(mut end: impl End, queue: u32, is_over: &AtomicBool) {
    let mark = queue + 1;
    // SAFETY: the mark is as long as it is said to be.
    let result = unsafe {
        libc::setsockopt(
            end.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MARK,
            (&raw const mark).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
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

/// The network, and what chooses the queue of each connection; `None`: the test is skipped.
fn stage(test: &str) -> Option<(Network, Director)> {
    if !needs_no_irqbalance(test) {
        return None;
    }
    let network = network();
    wait_for("the queues' threads", || queue_threads().len() == 2);
    let director = network.server.within(|| Director::start(SERVER));
    if director.is_none() {
        evenkeel_skip::skip(test, "this kernel has no TCX (Linux 6.6)");
    }
    Some((network, director?))
}

/// Works while each queue brings a connection that is consumed on one of these CPUs.
fn in_traffic<E: End>(
    network: &Network,
    cpus: [u32; 2],
    connect: impl Fn(&Network) -> [E; 2],
    work: impl FnOnce(&Judged),
) {
    let (is_over, judged) = (AtomicBool::new(false), Judged::default());
    std::thread::scope(|scope| {
        for (queue, cpu) in cpus.into_iter().enumerate() {
            let [client, server] = connect(network);
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

fn each_queue_goes_home<E: End>(test: &str, connect: impl Fn(&Network) -> [E; 2]) {
    let Some((first, second)) = can_run(test) else { return };
    let host = Host::alone();
    let Some((network, _director)) = stage(test) else { return };
    in_traffic(&network, [first, second], connect, |judged| {
        let mover = Mover::start(&host);
        let wanted = [just(first), just(second)];
        wait_for("each thread at its consumer's CPU", || {
            let masks = masks();
            wanted.iter().all(|cpu| masks.contains(cpu))
        });
        judged.is_on.store(true, Ordering::Relaxed);
        let counts = || [&judged.home, &judged.away].map(|count| count.load(Ordering::Relaxed));
        wait_for("the receptions", || counts().iter().sum::<u32>() >= 2 * JUDGED);
        judged.is_on.store(false, Ordering::Relaxed);
        let mut seen = consumers(&host);
        seen.sort_unstable();
        let mut cpus = vec![first, second];
        cpus.sort_unstable();
        assert_eq!(seen, cpus, "where `irq status` sees them received");
        let [home, away] = counts();
        assert!(home >= 99 * away, "{home} at home, {away} not");
        drop(mover);
        // All is as before.
        assert_eq!(masks(), [all(), all()]);
        assert!(host.journals().is_empty());
    });
    // A queue that runs full loses packets; none overtakes another.
    for counter in ["TCPSACKReorder", "TCPTSReorder"] {
        assert_eq!(network.server.counter("TcpExt", counter), 0, "{counter}");
    }
}

/// Killed at random moments from the first pinned thread on (`crate::kill_moments`); every second time
/// there is no supervisor, and `evenkeel undo` has to do it.
#[test]
fn threads_are_free_after_all_kill_moments_of_irq_run() {
    const TEST: &str = "threads_are_free_after_all_kill_moments_of_irq_run";
    let Some((first, second)) = can_run(TEST) else { return };
    let host = Host::alone();
    let Some((network, _director)) = stage(TEST) else { return };
    let (mut moments, left) = (Moments::of(TEST), Left::now());
    in_traffic(&network, [first, second], tcp, |_| {
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
