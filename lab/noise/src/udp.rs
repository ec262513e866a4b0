//! Network noise: UDP through a veth pair, its receiving softirqs steered to the CPU by RPS.
//!
//! Two network namespaces without names hold the pair: the receiver's belongs to its socket, the
//! sender's to its thread, so both vanish with this process. The sender makes large GSO sends: one cheap
//! call makes up to 64 datagrams, which the receiver's softirq must cut, check, look up and queue (or
//! drop: no process reads). So the cost falls on the disturbed CPU.
//!
//! What one send costs the disturbed CPU is measured by [`gap`], before the noise begins and again when
//! it is stopped. The first measurement fixes the rate; the duty that is reported is the number of sends
//! times the mean of both. The rate is bounded: a send that costs more than measured cannot take the
//! CPU.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_machine::CpuSet;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::{Generator, NoiseConfig, NoiseError, Tally, gap, online_cpus, thread};

const NAME: &str = "evenkeel-udp";
const NEEDS: &str = "root (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_SYS_NICE, files in /sys)";
const RECEIVER: &str = "ek-receiver";
const SENDER: &str = "ek-sender";
/// The range for benchmarks (RFC 2544), inside namespaces that no other process sees.
const RECEIVER_IP: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const SENDER_IP: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const PORT: u16 = 9;
/// The payload of one datagram, in bytes: small, so that a send is cheap and cutting it costs much.
const SEGMENT_BYTES: usize = 16;
/// Datagrams in one send: as many as each kernel with UDP GSO takes. (Some take more.)
const SEGMENTS: usize = 64;
/// The work in a burst, in µs: short, so that the softirq ends before the kernel hands it to ksoftirqd.
const BURST_US: f64 = 400.0;
/// A burst never has more sends than this, however cheap they seem.
const MAX_SENDS_PER_BURST: f64 = 100.0;
/// A send is never taken to cost less than this.
const LEAST_COST_NS: f64 = 100.0;
/// What a send costs is measured while sends take about this share of the CPU, or more: at a small
/// share the machine's own noise is as large.
const LEAST_MEASURED_DUTY: f64 = 0.2;
/// The rate is corrected this often before the noise begins.
const ROUNDS: usize = 4;
/// So many rounds at most: where other work comes and goes meanwhile, a send can seem to cost nothing,
/// and the round is repeated.
const MOST_ROUNDS: usize = 3 * ROUNDS;

/// The running sender and the receiver's socket, which keeps its namespace alive.
pub(super) struct Udp {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<Result<Tally, NoiseError>>>>,
    _receiver: UdpSocket,
}

impl Udp {
    pub(super) fn start(cpu: u32, config: &NoiseConfig) -> Result<Self, NoiseError> {
        let others = others_than(cpu)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, config) = (Arc::clone(&stop), *config);
        let (give, receiver) = channel();
        let setup = move || Flood::begin(cpu, &others, &config, &give);
        let work = move |flood: Flood| flood.run(config.limit, &seen);
        let thread = thread::start(NAME, setup, work)?;
        let receiver = receiver
            .recv()
            .map_err(|_| NoiseError::failed("udp noise", "the receiver's socket is missing"))?;
        Ok(Self { stop, thread: Some(thread), _receiver: receiver })
    }
}

impl Generator for Udp {
    fn stop(&mut self) -> Result<Tally, NoiseError> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take() {
            Some(handle) => thread::finish(NAME, handle)?,
            None => Ok(Tally::default()),
        }
    }
}

impl Drop for Udp {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Where the sender may run: its own cost must not fall on the disturbed CPU.
fn others_than(cpu: u32) -> Result<CpuSet, NoiseError> {
    let mut others = online_cpus()?;
    others.remove(cpu);
    if others.is_empty() {
        return Err(NoiseError::failed("udp noise", "it needs a second CPU to send from"));
    }
    Ok(others)
}

/// The sender, in its thread.
struct Flood {
    cpu: u32,
    socket: UdpSocket,
    period_ns: u64,
    /// The period while the cost of a send is measured; the bursts are the same.
    measuring_period_ns: u64,
    /// Sends a period; a fraction is carried over.
    rate: f64,
    /// What a send takes from the CPU, in ns, as measured before the start.
    cost_ns: f64,
}

impl Flood {
    /// Builds the pair, connects it, and finds the rate.
    fn begin(
        cpu: u32,
        others: &CpuSet,
        config: &NoiseConfig,
        give: &Sender<UdpSocket>,
    ) -> Result<Self, NoiseError> {
        thread::pin_to(others)?;
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|e| denied("a network namespace for the sender", e.into()))?;
        let sender_tid = nix::unistd::gettid().as_raw();
        let setup = move || receiver_side(cpu, sender_tid);
        let handle = thread::start("evenkeel-udp-rx", setup, |socket| socket)?;
        let receiver = thread::finish("evenkeel-udp-rx", handle)?;
        let _ = give.send(receiver);
        bring_up(SENDER, SENDER_IP)?;
        let socket = connect()?;
        // Real-time, so that the pace holds whatever runs there; it needs a few per cent at most.
        // Without the privilege the pace is rougher, no more.
        let _ = thread::become_fifo(1);

        let duty = config.duty();
        let busy_us = BURST_US.min(config.busy_us as f64);
        let burst_ns = busy_us * 1_000.0;
        let period_ns = (burst_ns / duty) as u64;
        let measuring_period_ns = (burst_ns / duty.max(LEAST_MEASURED_DUTY)) as u64;
        let mut flood =
            Self { cpu, socket, period_ns, measuring_period_ns, rate: 1.0, cost_ns: 0.0 };
        flood.cost_ns = find_cost(burst_ns, |rate| {
            flood.rate = rate;
            flood.measure_cost()
        })?;
        flood.rate = sends_per_burst(burst_ns, flood.cost_ns);
        tracing::debug!(cpu, rate = flood.rate, period_ns, cost_ns = flood.cost_ns, "udp noise");
        if flood.rate >= MAX_SENDS_PER_BURST {
            return Err(NoiseError::failed(
                "udp noise",
                format!(
                    "a send costs only {:.0} ns on CPU {cpu}: is receive packet steering (RPS) \
                     missing in this kernel?",
                    flood.cost_ns
                ),
            ));
        }
        Ok(flood)
    }

    /// Sends at the present rate until the limit or the word to stop.
    fn run(&self, limit: Duration, stop: &AtomicBool) -> Result<Tally, NoiseError> {
        let start = thread::monotonic_ns();
        let end = start + limit.as_nanos() as u64;
        let go_on = |now| now < end && !stop.load(Ordering::Relaxed);
        let sent = self.send_while(self.period_ns, go_on)?;
        let wall_ns = thread::monotonic_ns() - start;
        // Past the limit nothing more is sent, not even to measure.
        let cost_ns = if thread::monotonic_ns() < end {
            (self.cost_ns + self.measure_cost()?) / 2.0
        } else {
            self.cost_ns
        };
        let busy_ns = (sent as f64 * cost_ns) as u64;
        Ok(Tally { wall_ns, busy_ns, seen_ns: busy_ns, packets: sent * SEGMENTS as u64 })
    }

    /// Sends bursts on a grid of periods as long as `go_on` says; returns the number of sends.
    fn send_while(&self, period_ns: u64, go_on: impl Fn(u64) -> bool) -> Result<u64, NoiseError> {
        let payload = [0; SEGMENT_BYTES * SEGMENTS];
        let (mut sent, mut credit) = (0, 0.0);
        let mut now = thread::monotonic_ns();
        let mut next = now;
        while go_on(now) {
            credit += self.rate;
            while credit >= 1.0 {
                credit -= 1.0;
                match self.socket.send(&payload) {
                    Ok(_) => sent += 1,
                    // Full for the moment: this send is dropped, not made up for.
                    Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(NoiseError::failed("udp noise: cannot send", e)),
                }
            }
            next += period_ns;
            if next < thread::monotonic_ns() {
                // Missed a period: drop it.
                next = thread::monotonic_ns() + period_ns;
            }
            thread::sleep_until(next);
            now = thread::monotonic_ns();
        }
        Ok(sent)
    }

    /// What one send takes from the CPU at the present rate, in ns: the stolen share with sends
    /// less the share without.
    fn measure_cost(&self) -> Result<f64, NoiseError> {
        let quiet = gap::quiet_share(self.cpu)?;
        let start = thread::monotonic_ns();
        let (noisy, sent) = gap::share_during(self.cpu, |done| {
            self.send_while(self.measuring_period_ns, |_| !done.load(Ordering::Relaxed))
        })?;
        let sends_per_ns = sent as f64 / (thread::monotonic_ns() - start) as f64;
        tracing::debug!(quiet, noisy, sent, sends_per_ns, "udp cost");
        // A send that costs nothing measurable would make the rate endless.
        Ok(((noisy - quiet) / sends_per_ns.max(1e-12)).max(LEAST_COST_NS))
    }
}

/// Sends a burst at this cost of one.
fn sends_per_burst(burst_ns: f64, cost_ns: f64) -> f64 {
    (burst_ns / cost_ns).min(MAX_SENDS_PER_BURST)
}

/// What a send costs, in ns, at the rate that this cost leads to. `measure` sends at a rate, and tells
/// the cost of one send.
fn find_cost(
    burst_ns: f64,
    mut measure: impl FnMut(f64) -> Result<f64, NoiseError>,
) -> Result<f64, NoiseError> {
    let mut cost_ns = measure(1.0)?;
    for round in 1..MOST_ROUNDS {
        let rate = sends_per_burst(burst_ns, cost_ns);
        if round >= ROUNDS && rate < MAX_SENDS_PER_BURST {
            break;
        }
        cost_ns = measure(rate)?;
    }
    Ok(cost_ns)
}

fn denied(what: &str, error: io::Error) -> NoiseError {
    NoiseError::from_io(format!("udp noise ({what})"), NEEDS, &error)
}

/// In the receiver's thread: a namespace, the pair (its other end goes to the sender's namespace),
/// RPS to the CPU, and a bound socket, which keeps the namespace when the thread ends.
fn receiver_side(cpu: u32, sender_tid: i32) -> Result<UdpSocket, NoiseError> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
        .map_err(|e| denied("namespaces for the receiver", e.into()))?;
    // A view of /sys with this namespace's devices, seen by this thread alone.
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .and_then(|()| mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none))
        .map_err(|e| denied("a private /sys", e.into()))?;
    let netns = sender_tid.to_string();
    ip(&["link", "add", RECEIVER, "type", "veth", "peer", "name", SENDER, "netns", &netns])?;
    bring_up(RECEIVER, RECEIVER_IP)?;
    steer(cpu)?;
    UdpSocket::bind((RECEIVER_IP, PORT)).map_err(|e| denied("the receiver's socket", e))
}

fn bring_up(device: &str, address: Ipv4Addr) -> Result<(), NoiseError> {
    ip(&["address", "add", &format!("{address}/30"), "dev", device])?;
    ip(&["link", "set", device, "up"])
}

/// Has the receiving softirqs of the pair done on this CPU.
fn steer(cpu: u32) -> Result<(), NoiseError> {
    let path = format!("/sys/class/net/{RECEIVER}/queues/rx-0/rps_cpus");
    std::fs::write(&path, mask(cpu)).map_err(|e| {
        if e.kind() == io::ErrorKind::NotFound {
            return NoiseError::failed(
                "udp noise",
                format!("{path} is missing: this kernel has no receive packet steering (RPS)"),
            );
        }
        denied("receive packet steering", e)
    })
}

/// A CPU mask as sysfs writes it: hexadecimal words of 32 bits, the highest first.
fn mask(cpu: u32) -> String {
    let mut text = format!("{:x}", 1u32 << (cpu % 32));
    for _ in 0..cpu / 32 {
        text.push_str(",00000000");
    }
    text
}

/// A socket of this thread's namespace, connected to the receiver, that sends datagrams by the
/// dozen (UDP_SEGMENT).
fn connect() -> Result<UdpSocket, NoiseError> {
    let socket = UdpSocket::bind((SENDER_IP, 0))
        .and_then(|socket| socket.connect((RECEIVER_IP, PORT)).map(|()| socket))
        .map_err(|e| denied("the sender's socket", e))?;
    let segment = SEGMENT_BYTES as libc::c_int;
    // SAFETY: the descriptor is open, and the option's value and length describe one c_int.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const segment).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(socket);
    }
    let why = format!("{}; Linux 4.18 or later is needed", io::Error::last_os_error());
    Err(NoiseError::failed("udp noise: no segmentation offload for UDP", why))
}

/// Runs iproute2's `ip` in the namespace of the calling thread.
fn ip(args: &[&str]) -> Result<(), NoiseError> {
    let what = || format!("udp noise: `ip {}`", args.join(" "));
    let output = Command::new("ip").args(args).output().map_err(|e| {
        if e.kind() == io::ErrorKind::NotFound {
            return NoiseError::failed(what(), "`ip` is missing; install iproute2");
        }
        NoiseError::failed(what(), e)
    })?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if why.contains("not permitted") {
        return Err(NoiseError::NotPermitted { what: what(), needs: NEEDS });
    }
    Err(NoiseError::failed(what(), why))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost that is found, and the rates at which it was measured: the first `free` measurements
    /// say that a send costs nothing.
    fn found(free: usize) -> (f64, Vec<f64>) {
        let mut rates = Vec::new();
        let cost_ns = find_cost(400_000.0, |rate| {
            rates.push(rate);
            Ok(if rates.len() <= free { LEAST_COST_NS } else { 20_000.0 })
        });
        (cost_ns.unwrap(), rates)
    }

    #[test]
    fn a_send_that_seems_to_cost_nothing_is_measured_again() {
        assert_eq!(found(0), (20_000.0, vec![1.0, 20.0, 20.0, 20.0]));
        // Other work ended during all of the usual rounds.
        assert_eq!(found(ROUNDS), (20_000.0, vec![1.0, 100.0, 100.0, 100.0, 100.0]));
        assert_eq!(found(MOST_ROUNDS - 1).0, 20_000.0);
        // Where nothing is steered to the CPU, the measuring ends all the same.
        let (cost_ns, rates) = found(usize::MAX);
        assert_eq!((cost_ns, rates.len()), (LEAST_COST_NS, MOST_ROUNDS));
    }

    #[test]
    fn masks_are_written_as_sysfs_reads_them() {
        for (cpu, text) in [
            (0, "1"),
            (1, "2"),
            (31, "80000000"),
            (32, "1,00000000"),
            (100, "10,00000000,00000000,00000000"),
        ] {
            assert_eq!(mask(cpu), text);
        }
    }
}
