//! The RSS indirection table of a network card, and `evenkeel irq`: an emulated igb of which the wire
//! leads back to the card, so that it receives what it sends (`make vm-card`). The queue of each packet
//! is known beforehand by its Toeplitz hash.

use std::fs::{self, File};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use evenkeel_irq::Flow;
use evenkeel_journal::ethtool::{self, HashFunction, Rss};
use evenkeel_vm::Initramfs;
use serde_json::{Value, json};

use crate::Test;
use crate::interrupts::end;
use crate::support::*;

pub const TESTS: &[Test] = &[Test {
    name: "card::buckets_of_a_hot_queue_are_moved_and_come_back",
    run: buckets_of_a_hot_queue_are_moved_and_come_back,
}];

/// The kernel that `scripts/card` fetches.
pub const KERNEL: &str = "6.18-card";

/// What the driver needs, and the driver, in this order.
const MODULES: [&str; 5] = ["pps_core", "ptp", "i2c-algo-bit", "dca", "igb"];
const DEVICE: &str = "eth0";
const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
/// Pauses between bursts of packets, in us, until the queue is hot: guests differ much in speed.
const PAUSES_US: [u64; 5] = [3000, 1000, 300, 100, 0];

fn module(name: &str) -> String {
    format!("/modules/{name}.ko")
}

/// Adds the driver to the files of the guest. What is not there is built into the kernel.
pub fn add_driver(initramfs: &mut Initramfs) {
    let folder = evenkeel_vm::cache().join("kernels").join(KERNEL).join("modules");
    for name in MODULES {
        let file = folder.join(format!("{name}.ko"));
        if file.exists() {
            initramfs.copy(&file, Path::new(&module(name)));
        }
    }
}

/// QEMU's arguments for the card, with a wire from a UDP port of the host to the same port. The card
/// wants a machine with PCI Express.
pub fn arguments() -> Vec<String> {
    let port = UdpSocket::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let [local, remote] = ["local", "remote"]
        .map(|end| format!("{end}.type=inet,{end}.host=127.0.0.1,{end}.port={port}"));
    let mac = MAC.map(|byte| format!("{byte:02x}")).join(":");
    let wire = format!("dgram,id=wire,{local},{remote}");
    let card = format!("igb,netdev=wire,mac={mac},romfile=");
    ["-machine", "q35", "-netdev", &wire, "-device", &card].map(str::to_owned).to_vec()
}

fn load_driver() {
    for name in MODULES {
        let Ok(file) = File::open(module(name)) else { continue };
        // SAFETY: a descriptor and a text that live across the call.
        let result =
            unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
        let why = std::io::Error::last_os_error();
        let is_loaded = result == 0 || why.raw_os_error() == Some(libc::EEXIST);
        assert!(is_loaded, "{name}: {why}");
    }
    let folder = format!("/sys/class/net/{DEVICE}");
    wait_for("the card", || Path::new(&folder).exists());
    let socket = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    // SAFETY: all of its fields may be zero.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in asked.ifr_name.iter_mut().zip(DEVICE.bytes()) {
        *to = from as libc::c_char;
    }
    asked.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the request outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const asked) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    wait_for("the wire", || {
        fs::read_to_string(format!("{folder}/carrier")).is_ok_and(|text| text.trim() == "1")
    });
}

/// The lines of the card: the number, and the names of its handlers.
fn lines() -> Vec<(u32, String)> {
    let entries = fs::read_dir("/sys/kernel/irq").unwrap();
    let line = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("actions")).ok()?.trim().to_owned();
        name.starts_with(&format!("{DEVICE}-")).then_some((number, name))
    };
    entries.flatten().filter_map(line).collect()
}

/// Its queue, and whether it receives.
fn queue(name: &str) -> (u32, bool) {
    let queue = name.rsplit('-').next().unwrap().parse().unwrap();
    (queue, name.to_ascii_lowercase().contains("rx"))
}

/// Each receive queue's line on the CPU of its number, and those that send on other CPUs than the first:
/// by hand, so that `irq` moves none of them.
fn pin_lines() {
    let cpus = all().len() as u32;
    for (line, name) in lines() {
        let cpu = match queue(&name) {
            (queue, true) => queue % cpus,
            (queue, false) => 1 + queue % (cpus - 1),
        };
        fs::write(format!("/proc/irq/{line}/smp_affinity_list"), cpu.to_string()).unwrap();
    }
}

/// Interrupts of the lines of the receive queues but the first one.
fn interrupts_of_others() -> u64 {
    let others = lines().into_iter().filter(|(_, name)| {
        let (queue, receives) = queue(name);
        receives && queue > 0
    });
    let count = |(line, _): (u32, String)| {
        let text = fs::read_to_string(format!("/sys/kernel/irq/{line}/per_cpu_count")).unwrap();
        text.trim().split(',').map(|count| count.parse::<u64>().unwrap()).sum::<u64>()
    };
    others.map(count).sum()
}

/// The key of the card; igb tells none, and has that of the kernel.
fn key(rss: &Rss) -> Vec<u8> {
    if !rss.key.is_empty() {
        return rss.key.clone();
    }
    let text = fs::read_to_string("/proc/sys/net/core/netdev_rss_key").unwrap();
    text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// A connection for each bucket of the first queue.
fn flows_of_first_queue(rss: &Rss) -> Vec<Flow> {
    let (key, to) = (key(rss), SocketAddr::from(([10, 7, 0, 2], 80)));
    let mut flows = Vec::new();
    let mut buckets: Vec<usize> =
        (0..rss.table.len()).filter(|bucket| rss.table[*bucket] == 0).collect();
    for port in 1024..=u16::MAX {
        let flow = Flow { from: SocketAddr::from(([10, 7, 0, 1], port)), to };
        let bucket = flow.bucket(&key, rss.table.len()).unwrap() as usize;
        if buckets.contains(&bucket) {
            buckets.retain(|other| *other != bucket);
            flows.push(flow);
        }
    }
    assert!(buckets.is_empty(), "no port of 64,000 leads to buckets {buckets:?}");
    flows
}

/// A segment without data, from the card to itself.
fn frame(flow: &Flow) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (flow.from, flow.to) else {
        panic!("{flow:?}");
    };
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend(from.ip().octets());
    ip.extend(to.ip().octets());
    let words = ip.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    ip[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    let mut frame = [MAC, MAC].concat();
    frame.extend([0x08, 0x00]);
    frame.extend(ip);
    frame.extend(from.port().to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0x10, 0, 0, 0, 0, 0]);
    frame.resize(60, 0);
    frame
}

/// Packets on the wire, while this lives.
struct Wire {
    is_over: Arc<AtomicBool>,
    pause_us: Arc<AtomicU64>,
}

impl Wire {
    fn start(flows: &[Flow]) -> Self {
        let frames: Vec<Vec<u8>> = flows.iter().map(frame).collect();
        let wire = Self { is_over: Arc::default(), pause_us: Arc::new(PAUSES_US[0].into()) };
        let (is_over, pause_us) = (Arc::clone(&wire.is_over), Arc::clone(&wire.pause_us));
        // SAFETY: plain numbers.
        let socket =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(socket >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: it was just opened, and nothing else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: all of its fields may be zero.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_ifindex = nix::net::if_::if_nametoindex(DEVICE).unwrap() as libc::c_int;
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for frame in &frames {
                    // A full queue loses some.
                    // SAFETY: the frame and the address live across the call, with these lengths.
                    unsafe {
                        libc::sendto(
                            socket.as_raw_fd(),
                            frame.as_ptr().cast(),
                            frame.len(),
                            libc::MSG_DONTWAIT,
                            (&raw const address).cast(),
                            size_of_val(&address) as libc::socklen_t,
                        )
                    };
                }
                let pause = Duration::from_micros(pause_us.load(Ordering::Relaxed));
                std::thread::sleep(pause);
            }
        });
        wire
    }

    /// Sends faster and faster, until a plan has buckets move.
    fn make_hot(&self, host: &Host) {
        let mut last = Value::Null;
        for pause_us in PAUSES_US {
            self.pause_us.store(pause_us, Ordering::Relaxed);
            let plan = output(&mut host.evenkeel(["irq", "plan", "--watch", "2s", "--json"]));
            assert!(plan.status.success(), "{plan:?}");
            last = serde_json::from_slice(&plan.stdout).unwrap();
            if last["spreads"].as_array().is_some_and(|spreads| !spreads.is_empty()) {
                assert_eq!(last["spreads"][0]["device"], DEVICE, "{last:#}");
                assert_eq!(last["spreads"][0]["from_queue"], 0, "{last:#}");
                return;
            }
        }
        let status = output(&mut host.evenkeel(["irq", "status"]));
        panic!("the first queue never became hot: {last:#}\n{}", text(&status.stdout));
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn table() -> Vec<u32> {
    ethtool::rss(DEVICE).unwrap().unwrap().table
}

/// `evenkeel irq run` with these flags, once it has changed the table.
fn run_until_changed(host: &Host, flags: &[&str], before: &[u32]) -> Child {
    let words = [&["irq", "run", "--interval", "1s"], flags].concat();
    let mut command: Command = host.evenkeel(words);
    let run = command.stdout(Stdio::piped()).spawn().unwrap();
    wait_for("buckets to move", || table() != before);
    run
}

fn buckets_of_a_hot_queue_are_moved_and_come_back() {
    load_driver();
    let rss = ethtool::rss(DEVICE).unwrap().unwrap();
    let queues = ethtool::receive_queues(DEVICE).unwrap().unwrap();
    assert!(queues > 1 && rss.hash == HashFunction::Toeplitz, "{queues} queues, {rss:?}");
    let before = rss.table.clone();
    pin_lines();
    let host = Host::new();
    let wire = Wire::start(&flows_of_first_queue(&rss));
    wire.make_hot(&host);

    // The hash has told the queue of each packet.
    let quiet = interrupts_of_others();
    let once = output(&mut host.evenkeel(["irq", "once", "--watch", "2s"]));
    let said = text(&once.stdout);
    assert!(once.status.success() && said.contains("spread eth0: "), "{once:?}");
    assert!(said.contains("is not looked at any more: `evenkeel irq run` looks"), "{said}");
    assert_ne!(table(), before);
    println!("interrupts of the other queues before: {quiet}");
    let earlier = interrupts_of_others();
    wait_for("packets by another queue", || interrupts_of_others() > earlier + 100);
    let status = output(&mut host.evenkeel(["irq", "status"]));
    let said = text(&status.stdout);
    for wanted in ["hash toeplitz, 128 buckets", "without an indirection table: lo"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert!(said.contains("    eth0: buckets by queue 0: "), "{said}");
    let undone = host.undo();
    assert_eq!(undone["restored_tables"], json!([DEVICE]), "{undone:#}");
    assert_eq!(table(), before);

    // Ended in order.
    let said = end(run_until_changed(&host, &[], &before));
    assert!(said.contains("eth0: has its earlier RSS indirection table again."), "{said}");
    assert_eq!(table(), before);

    let mut run = run_until_changed(&host, &["--no-supervisor"], &before);
    run.kill().unwrap();
    run.wait().unwrap();
    assert_ne!(table(), before, "nothing was left to undo");
    let undone = host.undo();
    assert_eq!((table(), &undone["restored_tables"]), (before.clone(), &json!([DEVICE])));

    let mut run = run_until_changed(&host, &[], &before);
    run.kill().unwrap();
    run.wait().unwrap();
    wait_for("the supervisor", || table() == before && host.journals().is_empty());
}
