//! One connection with a consumer that is pinned, or moves: where its packets are processed, in which
//! order they arrive, and whether hints come back, by what the server's device sends.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use evenkeel_experiment::host::run_on;
use evenkeel_experiment::{AimRow, Wanted};
use evenkeel_machine::CpuSet;
use evenkeel_sais::STRIP_BYTES;
use nix::sys::socket::sockopt::RcvBufForce;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket,
};

use super::arrivals::{Arrivals, share_pct};
use super::contestant::{HINTED_ISSUER, Method, RUNNER};
use super::network::{Network, SERVER};
use super::traffic::{DISORDERED, HINTED, HOME, out_of_order};

const PORT: u16 = 9001;
/// No client waits longer for a strip.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a consumer that moves stays where it is, ...
const STAY: Duration = Duration::from_millis(50);
/// ... and from when on its packets count.
const SETTLED: Duration = Duration::from_millis(10);
/// Room for what was captured; what comes when it is full is not.
const CAPTURE_BYTES: usize = 64 << 20;
/// What is captured of each packet: enough for all headers.
const HEADERS_BYTES: usize = 128;

/// Shares of what arrived, in %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Placement {
    /// Of the looks at a socket with a pinned consumer, those that found it served on its core.
    pub pinned_pct: f64,
    /// Of a consumer that moves, from 10 ms after each move on.
    pub moved_pct: f64,
    /// Segments that came out of order to the two of them, ...
    pub disordered: u64,
    /// ... and all.
    pub segments: u64,
    /// Of the packets of data that a server sends after the first round trip, those with a hint.
    pub hinted_pct: f64,
}

/// Measures each for so long.
///
/// # Errors
/// There is no second CPU, or something refused.
pub(super) fn measure(executable: &Path, cpus: &CpuSet, time: Duration) -> Result<Placement> {
    let [sending, consuming, ..] = cpus.iter().collect::<Vec<u32>>()[..] else {
        bail!("packets can be processed elsewhere only where there are two CPUs");
    };
    let seen = |method: Method, stops: &[u32]| -> Result<Seen> {
        let network = Network::new(None)?;
        network.keep_order(sending)?;
        let _in_charge = method.begin(executable, &network, cpus)?;
        consume(&network, sending, stops, time)
    };
    let (pinned, moved) = (seen(RUNNER, &[consuming])?, seen(RUNNER, &[consuming, sending])?);
    Ok(Placement {
        pinned_pct: pinned.home_pct()?,
        moved_pct: moved.home_pct()?,
        disordered: pinned.disordered + moved.disordered,
        segments: pinned.segments + moved.segments,
        hinted_pct: seen(HINTED_ISSUER, &[consuming])?.hinted_pct()?,
    })
}

/// Shares of packets that are wanted, in %: at home while the consumer is pinned, at home from 10 ms
/// after it has moved, and with a hint after the first round trip.
const PINNED_PCT: f64 = 99.9;
const MOVED_PCT: f64 = 99.0;
const HINTED_ALL_PCT: f64 = 100.0;

impl Placement {
    /// What is wanted of them.
    pub fn aims(&self) -> [AimRow; 4] {
        let Self { pinned_pct, moved_pct, disordered, hinted_pct, .. } = *self;
        let aim = |consumer: &str, metric, method: Method, count, wanted| {
            let case = format!("one connection, its consumer {consumer}");
            AimRow::counted(&case, metric, method.name(), count, wanted)
        };
        let least = Wanted::AtLeast;
        let none = Wanted::AtMost(0.0);
        [
            aim("is pinned", HOME, RUNNER, pinned_pct, least(PINNED_PCT)),
            aim("moves", HOME, RUNNER, moved_pct, least(MOVED_PCT)),
            aim("is pinned, then moves", DISORDERED, RUNNER, disordered as f64, none),
            aim("is pinned", HINTED, HINTED_ISSUER, hinted_pct, least(HINTED_ALL_PCT)),
        ]
    }

    /// What the aims do not say.
    pub fn sentence(&self) -> String {
        let Self { disordered, segments, .. } = self;
        format!(
            "One connection under runner, all sent in order: {disordered} of {segments} segments came \
             out of order. Hints are counted in the packets that left the server after the first round \
             trip; arrivals after a move from 10 ms on."
        )
    }
}

/// What was seen of a connection.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    arrivals: Arrivals,
    disordered: u64,
    segments: u64,
    /// Packets of data with a hint, and without, after the first with one.
    hinted: u64,
    bare: u64,
}

impl Seen {
    fn home_pct(&self) -> Result<f64> {
        share_pct(self.arrivals.home, self.arrivals.away)
    }

    fn hinted_pct(&self) -> Result<f64> {
        share_pct(self.hinted, self.bare)
    }
}

/// Reads strips for so long, moving from stop to stop; the server sends from its own CPU.
fn consume(network: &Network, sending: u32, stops: &[u32], time: Duration) -> Result<Seen> {
    let (listener, cable) = network.server.within(|| {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("cannot listen")?;
        Ok((listener, Capture::start()?))
    })?;
    // A connection is there before it is accepted.
    let client = network.client.within(|| {
        let address = SocketAddr::from((SERVER, PORT));
        TcpStream::connect_timeout(&address, PATIENCE).context("no server")
    })?;
    let (server, _) = listener.accept().context("cannot accept")?;
    let mut seen = thread::scope(|scope| {
        let server = scope.spawn(move || serve(server, sending));
        let client = scope.spawn(move || read(client, stops, time));
        let failed = |_| anyhow!("a thread of the benchmark has failed");
        let seen = client.join().map_err(failed)?;
        server.join().map_err(failed)??;
        seen
    })?;
    (seen.hinted, seen.bare) = cable.hinted_and_bare();
    (seen.disordered, seen.segments) = out_of_order(&network.client)?;
    Ok(seen)
}

/// Until the client closes.
fn serve(mut stream: TcpStream, cpu: u32) -> Result<()> {
    run_on(cpu)?;
    let (strip, mut request) = (vec![7; STRIP_BYTES], [0]);
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(&strip)?;
    }
    Ok(())
}

fn read(mut stream: TcpStream, stops: &[u32], time: Duration) -> Result<Seen> {
    let mut seen = Seen::default();
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let (start, mut strip) = (Instant::now(), vec![0; STRIP_BYTES]);
    for cpu in stops.iter().cycle() {
        run_on(*cpu)?;
        let moved = Instant::now();
        while moved.elapsed() < STAY {
            stream.write_all(&[1])?;
            let is_settled = stops.len() == 1 || moved.elapsed() > SETTLED;
            let mut left = &mut strip[..];
            while !left.is_empty() {
                let bytes = stream.read(left)?;
                if bytes == 0 {
                    bail!("the server has closed the connection");
                }
                left = &mut left[bytes..];
                if is_settled {
                    seen.arrivals.look(&stream, *cpu)?;
                }
            }
        }
        if start.elapsed() >= time {
            break;
        }
    }
    Ok(seen)
}

/// All that the devices of a namespace send and receive, kept by the kernel until it is asked for.
struct Capture(OwnedFd);

impl Capture {
    /// In the calling thread's namespace.
    fn start() -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let all = SockProtocol::EthAll;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, all)
            .context("packets cannot be captured")?;
        setsockopt(&socket.as_fd(), RcvBufForce, &CAPTURE_BYTES)?;
        Ok(Self(socket))
    }

    /// Packets of data from the server with a hint, and without after the first that has one.
    fn hinted_and_bare(&self) -> (u64, u64) {
        let (mut hinted, mut bare) = (0, 0);
        let mut packet = [0; HEADERS_BYTES];
        while let Ok(bytes) = recv(self.0.as_raw_fd(), &mut packet, MsgFlags::empty()) {
            match is_hinted(&packet[..bytes]) {
                Some(true) => hinted += 1,
                Some(false) if hinted > 0 => bare += 1,
                _ => {}
            }
        }
        (hinted, bare)
    }
}

/// Whether a packet of data from the server (IPv4) bears a hint; none: it is another packet.
fn is_hinted(packet: &[u8]) -> Option<bool> {
    let ip = packet.get(14..)?;
    let is_tcp = packet[12..14] == [0x08, 0x00] && *ip.get(9)? == 6;
    let tcp = ip.get(usize::from(ip[0] & 15) * 4..)?;
    if !is_tcp || tcp.get(..2)? != PORT.to_be_bytes() {
        return None;
    }
    let header_bytes = usize::from(*tcp.get(12)? >> 4) * 4;
    // Only what is cut off at the headers' end has no data.
    tcp.get(header_bytes)?;
    let mut options = tcp.get(20..header_bytes)?;
    while let [kind, rest @ ..] = options {
        options = match kind {
            0 => break,
            1 => rest,
            253 if options.starts_with(&[253, 12, 0xa1, 0xf5]) => return Some(true),
            _ => options.get(usize::from(*rest.first()?).max(2)..)?,
        };
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::Reached;

    use super::*;

    /// With these options and so many bytes of data.
    fn packet(from: u16, options: &[u8], data_bytes: usize) -> Vec<u8> {
        let mut packet = vec![0; 12];
        packet.extend([0x08, 0x00, 0x45]);
        packet.resize(14 + 9, 0);
        packet.push(6);
        packet.resize(14 + 20, 0);
        packet.extend(from.to_be_bytes());
        packet.resize(14 + 20 + 12, 0);
        packet.push((5 + options.len() as u8 / 4) << 4);
        packet.resize(14 + 20 + 20, 0);
        packet.extend(options);
        packet.resize(packet.len() + data_bytes, 7);
        packet
    }

    #[test]
    fn hints_are_found_in_data_from_the_server_only() {
        let hint =
            [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 253, 12, 0xa1, 0xf5, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(is_hinted(&packet(PORT, &hint, 5)), Some(true));
        assert_eq!(is_hinted(&packet(PORT, &hint[..12], 5)), Some(false));
        assert_eq!(is_hinted(&packet(PORT, &[], 5)), Some(false));
        assert_eq!(is_hinted(&packet(PORT, &hint, 0)), None, "an acknowledgement");
        assert_eq!(is_hinted(&packet(PORT + 1, &hint, 5)), None, "another connection");
        assert_eq!(is_hinted(&packet(PORT, &hint, 5)[..40]), None, "cut off");
        assert_eq!(is_hinted(&[]), None);
    }

    #[test]
    fn packets_just_short_of_what_is_wanted_miss_it() {
        let reached = |pinned_pct, moved_pct, disordered, hinted_pct| {
            let segments = 1000;
            let found = Placement { pinned_pct, moved_pct, disordered, segments, hinted_pct };
            found.aims().map(|aim| aim.reached == Some(Reached::Reached))
        };
        assert_eq!(reached(99.9, 99.0, 0, 100.0), [true; 4]);
        assert_eq!(reached(99.89, 98.99, 1, 99.99), [false; 4]);
    }
}
