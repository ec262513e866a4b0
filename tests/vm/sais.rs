//! Steering packets on stock kernels: every kernel accepts the programs, and CPUs that go offline are no
//! longer steered to.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_journal::affinity;
use serde_json::Value;

use crate::Test;
use crate::hotplug::switch;
use crate::storms::{set_real_time, spin};
use crate::support::*;

/// On a kernel that does not tell when a thread receives.
pub const OLD: &[Test] =
    &[Test { name: "sais::an_old_kernel_is_recognised", run: an_old_kernel_is_recognised }];

/// On one kernel: the kernel has no part in what is tested.
pub const ONCE: &[Test] = &[Test {
    name: "sais::a_core_without_time_is_not_steered_to",
    run: a_core_without_time_is_not_steered_to,
}];

pub const TESTS: &[Test] = &[
    Test { name: "sais::packets_go_to_their_consumer", run: packets_go_to_their_consumer },
    Test { name: "sais::hints_come_back_on_one_machine", run: hints_come_back_on_one_machine },
    Test { name: "sais::the_kernel_accepts_every_program", run: the_kernel_accepts_every_program },
    Test {
        name: "sais::a_cpu_that_went_is_not_steered_to",
        run: a_cpu_that_went_is_not_steered_to,
    },
    Test {
        name: "sais::a_cpu_is_not_steered_to_before_it_goes",
        run: a_cpu_is_not_steered_to_before_it_goes,
    },
];

fn an_old_kernel_is_recognised() {
    let host = Host::new();
    let run = output(&mut host.evenkeel(["sais", "attach", "lo"]));
    let wanted = "evenkeel: this kernel has no tracepoint sock_recv_length, by which consumers are \
                  found: run Linux 6.3 or newer\n";
    assert_eq!((text(&run.stderr).as_str(), run.status.code()), (wanted, Some(3)));
}

/// Steers at the loopback device.
struct Steering<'a> {
    host: &'a Host,
    child: Child,
}

impl<'a> Steering<'a> {
    fn start(host: &'a Host, flags: &[&str]) -> Self {
        let mut command = host.evenkeel([&["sais", "attach", "lo"], flags].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut word = [0; 3];
        child.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
        assert_eq!(&word, b"lo:");
        Self { host, child }
    }

    fn core(&self, cpu: u32) -> Value {
        let output = output(&mut self.host.evenkeel(["sais", "status", "--json"]));
        assert!(output.status.success(), "{output:?}");
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        let answers = status["processes"].as_array().unwrap();
        let ours = answers.iter().find(|answer| answer.get("device").is_some()).unwrap();
        ours["cores"][cpu.to_string()].clone()
    }

    /// A counter of both CPUs together.
    fn count(&self, name: &str) -> u64 {
        let counts = [0, 1].map(|cpu| self.core(cpu)["counters"][name].as_u64().unwrap());
        counts.iter().sum()
    }

    fn end(mut self) {
        kill(self.child.id() as i32, libc::SIGTERM);
        assert_eq!(ended(&mut self.child).code(), Some(0));
    }
}

/// As `ip link set lo up`.
fn loopback_up() {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    // SAFETY: all of its fields may be zero.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    asked.ifr_name[0] = b'l' as libc::c_char;
    asked.ifr_name[1] = b'o' as libc::c_char;
    asked.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_LOOPBACK) as libc::c_short;
    // SAFETY: the request outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const asked) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// At least so many packets of a transfer are sent from the first CPU. Not all of them are: the
/// next ones are sent from the CPU on which a packet is acknowledged.
const SENT: u64 = 20;

/// Sends from CPU `from` to a consumer on CPU `to`.
pub fn transfer(from: u32, to: u32) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        affinity::set(nix::unistd::gettid().as_raw(), &just(from)).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(&vec![7; 8 << 20]).unwrap();
    });
    let consumer = std::thread::spawn(move || {
        affinity::set(nix::unistd::gettid().as_raw(), &just(to)).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[1]).unwrap();
        let mut bytes = Vec::new();
        assert_eq!(stream.read_to_end(&mut bytes).unwrap(), 8 << 20);
        assert!(bytes.iter().all(|byte| *byte == 7));
    });
    consumer.join().unwrap();
    server.join().unwrap();
}

fn packets_go_to_their_consumer() {
    loopback_up();
    let host = Host::new();
    let steering = Steering::start(&host, &[]);
    transfer(0, 1);
    let processed = |cpu| steering.core(cpu)["counters"]["processed"].as_u64().unwrap();
    assert!(processed(1) >= SENT, "{}", processed(1));
    steering.end();
}

/// With client and server on one machine, neither part touches the packets of the other.
fn hints_come_back_on_one_machine() {
    loopback_up();
    let host = Host::new();
    let hints = ["--mode", "hint", "--peers", "127.0.0.0/8", "--policy", "issuer"];
    let steering = Steering::start(&host, &hints);
    let serve = ["sais", "serve", "/", "--peers", "127.0.0.0/8"];
    let mut serving = host.evenkeel(serve).stdout(Stdio::piped()).spawn().unwrap();
    serving.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    transfer(0, 1);
    let echoed: u64 =
        (0..2).map(|cpu| steering.core(cpu)["counters"]["hint_echoed"].as_u64().unwrap()).sum();
    assert!(echoed >= 100, "{echoed}");
    kill(serving.id() as i32, libc::SIGTERM);
    assert_eq!(ended(&mut serving).code(), Some(0));
    steering.end();
}

/// Loads the programs that the other tests do not run: code of options that are off is cut off
/// before the verifier judges the rest.
fn the_kernel_accepts_every_program() {
    loopback_up();
    let host = Host::new();
    let hints = ["--mode", "hint", "--peers", "127.0.0.0/8"];
    // Both times are given, so that `sais` measures none.
    let auto = ["--policy", "auto", "--strip-us", "100,1"];
    let paper = ["--wire", "paper"];
    let alone = ["--stateless"];
    let cases = [
        auto.to_vec(),
        [hints, auto].concat(),
        [&hints[..], &paper].concat(),
        [&hints[..], &alone].concat(),
        [&hints[..], &paper, &alone].concat(),
    ];
    for flags in &cases {
        Steering::start(&host, flags).end();
    }
}

/// Makes the calling thread a real-time task on CPU 1.
fn be_urgent(priority: i32) {
    let tid = nix::unistd::gettid().as_raw();
    affinity::set(tid, &just(1)).unwrap();
    set_real_time(tid, priority);
}

/// Set when this is dropped, so that the threads of a test that fails end, too.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A steering thread comes before ordinary tasks; where real-time tasks leave it no time either, packets
/// are processed where they arrive.
fn a_core_without_time_is_not_steered_to() {
    loopback_up();
    let host = Host::new();
    // By these times steering would pay.
    let steering = Steering::start(&host, &["--policy", "auto", "--strip-us", "100,1"]);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    // Counts packets that arrive on CPU 0; the requests go the other way.
    let count = |name: &str| steering.core(0)["counters"][name].as_u64().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            affinity::set(nix::unistd::gettid().as_raw(), &just(0)).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            while stream.read_exact(&mut [0]).is_ok() {
                stream.write_all(&[7; 1 << 16]).unwrap();
            }
        });
        scope.spawn(|| {
            be_urgent(2);
            let mut stream = TcpStream::connect(address).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                stream.write_all(&[1]).unwrap();
                stream.read_exact(&mut [0; 1 << 16]).unwrap();
                // The consumer does not take the core's time itself.
                std::thread::sleep(Duration::from_millis(4));
            }
        });
        wait_for("it to steer", || count("steered") > 100);
        scope.spawn(|| {
            be_urgent(1);
            let start = Instant::now();
            while !is_over.load(Ordering::Relaxed) && start.elapsed() < PATIENCE {
                spin(Duration::from_millis(1));
            }
        });
        wait_for("packets to be left where they arrive", || count("left") > 0);
        let before = ["left", "steered"].map(count);
        wait_for("more of them", || count("left") > before[0] + 100);
        let more = count("steered") - before[1];
        assert!(more < 50, "{more} packets were still steered");
    });
    assert_eq!(steering.count("dropped"), 0);
    steering.end();
}

fn a_cpu_that_went_is_not_steered_to() {
    loopback_up();
    let host = Host::new();
    let steering = Steering::start(&host, &[]);
    let is_allowed = |cpu| steering.core(cpu)["allowed"].as_bool().unwrap();
    transfer(0, 1);
    switch(1, false);
    wait_for("the CPU to be left", || !is_allowed(1));
    transfer(0, 0);
    switch(1, true);
    wait_for("the CPU to be used again", || is_allowed(1));
    let before = steering.core(1)["counters"]["processed"].as_u64().unwrap();
    transfer(0, 1);
    assert!(steering.core(1)["counters"]["processed"].as_u64().unwrap() > before);
    steering.end();
}

/// The kernel's own notice is enough: the steering process does not even run meanwhile.
fn a_cpu_is_not_steered_to_before_it_goes() {
    loopback_up();
    let host = Host::new();
    let steering = Steering::start(&host, &["--policy", "dedicated:1"]);
    let count = |name| steering.count(name);
    transfer(0, 0);
    let steered = count("steered");
    assert!(steered >= SENT, "{steered}");
    let pid = steering.child.id() as i32;
    kill(pid, libc::SIGSTOP);
    switch(1, false);
    transfer(0, 0);
    switch(1, true);
    // The CPU is there again, but the steering process has not yet allowed its use.
    transfer(0, 0);
    kill(pid, libc::SIGCONT);
    // Packets that are under way at the first step may still be sent there.
    let (refused, more) = (count("refused"), count("steered") - steered);
    assert!(refused >= 100 && more < 10, "{refused} refused, {more} more steered");
    wait_for("the CPU to be used again", || {
        transfer(0, 0);
        count("steered") > steered + more
    });
    steering.end();
}
