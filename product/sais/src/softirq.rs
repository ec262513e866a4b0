//! P of the paper's analysis, measured: the time that a CPU spends in softirqs to receive one strip in
//! packets of an Ethernet's size, on a loopback device of its own that neither joins nor splits them.
//! That is what the paper calls processing a strip's interrupts; the caches have no part in it, because
//! sender and receiver are the same thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Instant;

use evenkeel_cbinfo::Cbinfo;
use evenkeel_machine::CpuSet;
use evenkeel_stats::median;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use crate::device;
use crate::measure::{LIMIT, MeasureError, STRIP_BYTES, StripTimes, TIMES, run_on};

/// Ethernet's longest packet, in bytes.
const MTU_BYTES: u32 = 1500;
/// Strips that go before the measured ones: until TCP sends a whole one at once.
const WARM_UP: usize = 20;
const LOOPBACK: &str = "lo";

impl StripTimes {
    /// The same times with P, measured on the first CPU of `cpus`. Needs root: it loads BPF programs and
    /// makes a network namespace.
    ///
    /// # Errors
    /// [`MeasureError::Process`], [`MeasureError::Affinity`].
    pub fn with_process(self, cpus: &CpuSet) -> Result<Self, MeasureError> {
        let Some(cpu) = cpus.iter().next() else { return Ok(self) };
        Ok(Self { process_us: Some(process_us(cpu, MTU_BYTES)?), ..self })
    }
}

/// The time in softirqs of a strip that comes in packets of at most `mtu_bytes`, in microseconds: the
/// median of some hundred strips.
///
/// # Errors
/// [`MeasureError::Process`]: without root, for example.
fn process_us(cpu: u32, mtu_bytes: u32) -> Result<f64, MeasureError> {
    let measure = || {
        run_on(cpu)?;
        measure_here(cpu, mtu_bytes).map_err(|why| MeasureError::Process(why.to_string()))
    };
    // A thread of its own: its network namespace ends with it.
    let measured = thread::scope(|scope| scope.spawn(measure).join());
    measured.unwrap_or_else(|_| Err(MeasureError::Process("the thread failed".to_owned())))
}

fn measure_here(cpu: u32, mtu_bytes: u32) -> io::Result<f64> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    device::set_mtu(&socket, LOOPBACK, mtu_bytes)?;
    device::send_single_segments(&socket, LOOPBACK)?;
    device::bring_up(&socket, LOOPBACK)?;
    let accounting = Cbinfo::open(&[]).map_err(io::Error::other)?;
    let softirq_ns = || {
        let account = accounting.cpus().into_iter().find(|account| account.cpu == cpu);
        let softirq_ns = account.map(|account| account.noise.softirq_ns);
        softirq_ns.ok_or_else(|| io::Error::from(Errno::ENODEV))
    };
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (mut receiver, _) = listener.accept()?;
    for end in [&sender, &receiver] {
        end.set_nonblocking(true)?;
        end.set_nodelay(true)?;
    }
    let (mut times_us, begin) = (Vec::new(), Instant::now());
    for number in 0..WARM_UP + TIMES {
        if times_us.len() > 1 && begin.elapsed() > LIMIT {
            break;
        }
        let before_ns = softirq_ns()?;
        transfer(&mut sender, &mut receiver)?;
        let took_ns = softirq_ns()?.saturating_sub(before_ns);
        if number >= WARM_UP {
            times_us.push(took_ns as f64 / 1e3);
        }
    }
    median(&times_us).ok_or_else(|| io::Error::other("no strip was received"))
}

/// Sends a strip, and receives it.
fn transfer(sender: &mut TcpStream, receiver: &mut TcpStream) -> io::Result<()> {
    let (strip, mut room) = (vec![7_u8; STRIP_BYTES], vec![0_u8; STRIP_BYTES]);
    let (mut sent, mut received, begin) = (0, 0, Instant::now());
    let bytes = |result: io::Result<usize>| match result {
        Err(why) if why.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    };
    while received < STRIP_BYTES {
        sent += bytes(sender.write(&strip[sent..]))?;
        received += bytes(receiver.read(&mut room))?;
        if begin.elapsed() > 5 * LIMIT {
            return Err(io::Error::from(ErrorKind::TimedOut));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A memory read of the strip would take the same time, however many packets it came in.
    #[test]
    fn a_strip_in_more_packets_takes_more_interrupt_processing() {
        const TEST: &str = "a_strip_in_more_packets_takes_more_interrupt_processing";
        if !nix::unistd::geteuid().is_root() {
            evenkeel_skip::skip(TEST, "it needs root");
            return;
        }
        let own = nix::unistd::gettid().as_raw();
        let cpu = evenkeel_journal::affinity::get(own).unwrap().iter().next().unwrap();
        // What else this machine does makes it take longer, never shorter.
        let least_us = |mtu| {
            let measured = (0..5).map(|_| process_us(cpu, mtu).unwrap());
            measured.fold(f64::INFINITY, f64::min)
        };
        let [many_us, few_us] = [MTU_BYTES, 16_000].map(least_us);
        assert!(few_us > 0.0 && many_us > few_us, "{many_us} {few_us}");
    }
}
