//! Captures what goes over a cable, at one of its ends (AF_PACKET), and sends frames.

use std::io::ErrorKind;
use std::mem::{size_of, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::net::if_::if_nametoindex;

use super::net::Namespace;

/// Enough for all headers.
const SNAP: usize = 256;
/// Room for what waits to be read.
static BUFFER: libc::c_int = 64 << 20;
const ETHERNET: usize = 14;

/// A TCP packet.
pub struct Packet {
    /// Its headers, with that of Ethernet.
    headers: Vec<u8>,
    /// Where TCP begins in them.
    tcp: usize,
    /// Bytes of data.
    pub payload: usize,
    /// The hint's eight bytes.
    pub hint: Option<[u8; 8]>,
    /// The core that the paper's byte names.
    pub core: Option<u8>,
    from: IpAddr,
    to: IpAddr,
}

impl Packet {
    /// As it stands on the cable.
    fn read(bytes: &[u8], length: usize) -> Option<Self> {
        let ip = &bytes[ETHERNET..];
        let (from, to, tcp, end) = match (&bytes[12..ETHERNET], ip[9], ip[6]) {
            ([0x08, 0x00], 6, _) => {
                let tcp = usize::from(ip[0] & 15) * 4;
                let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
                let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap();
                (IpAddr::from(address(12)), IpAddr::from(address(16)), tcp, total)
            }
            ([0x86, 0xdd], _, 6) => {
                let total = 40 + usize::from(u16::from_be_bytes([ip[4], ip[5]]));
                let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).unwrap();
                (IpAddr::from(address(8)), IpAddr::from(address(24)), 40, total)
            }
            _ => return None,
        };
        let (tcp, end) = (ETHERNET + tcp, (ETHERNET + end).max(length));
        let data = tcp + usize::from(bytes[tcp + 12] >> 4) * 4;
        let (headers, payload) = (bytes[..data].to_vec(), end - data);
        let hint = hint(&headers[tcp + 20..]);
        let option = &headers[ETHERNET + 20..ETHERNET + 24];
        let is_paper = headers[ETHERNET] == 0x46 && option[0] >> 5 == 5 && option[1..] == [0; 3];
        let core = is_paper.then(|| option[0] & 31);
        Some(Self { headers, tcp, payload, hint, core, from, to })
    }

    /// The headers of this packet with another core in the paper's byte.
    pub fn with_core(&self, core: u8) -> Vec<u8> {
        let mut frame = self.with_option(&[]);
        frame[ETHERNET + 20] = 0xa0 | core;
        sign(&mut frame);
        frame
    }

    /// A packet without data like this one, of IPv4, with just this option.
    pub fn with_option(&self, option: &[u8]) -> Vec<u8> {
        let mut frame = self.headers[..self.tcp + 20].to_vec();
        frame.extend(option);
        frame.resize(self.tcp + 20 + option.len().div_ceil(4) * 4, 0);
        frame[self.tcp + 12] = (((frame.len() - self.tcp) / 4) as u8) << 4;
        let total = (frame.len() - ETHERNET) as u16;
        frame[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&total.to_be_bytes());
        frame
    }
}

/// The same frame from another address of IPv4.
pub fn from_other(mut frame: Vec<u8>, address: [u8; 4]) -> Vec<u8> {
    frame[ETHERNET + 12..ETHERNET + 16].copy_from_slice(&address);
    sign(&mut frame);
    frame
}

/// Makes the checksum of a header of IPv4 right.
fn sign(frame: &mut [u8]) {
    let end = ETHERNET + usize::from(frame[ETHERNET] & 15) * 4;
    frame[ETHERNET + 10..ETHERNET + 12].fill(0);
    let words = frame[ETHERNET..end].chunks(2);
    let sum: u32 = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&checksum.to_be_bytes());
}

/// A frame with these VLAN tags, the outer one first.
pub fn with_tags(frame: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(12);
    [addresses, &tags.concat(), rest].concat()
}

/// The hint among TCP's options, read without our parser.
fn hint(mut options: &[u8]) -> Option<[u8; 8]> {
    while let [kind, rest @ ..] = options {
        match kind {
            0 => return None,
            1 => options = rest,
            _ => {
                let bytes = usize::from(options[1]);
                if options.starts_with(&[253, 12, 0xa1, 0xf5]) {
                    return options[4..12].try_into().ok();
                }
                options = &options[bytes..];
            }
        }
    }
    None
}

/// A socket for all that a device of the calling thread's namespace sends and receives.
fn open(device: &str) -> OwnedFd {
    let protocol = (libc::ETH_P_ALL as u16).to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: three integers; what comes back is a descriptor of ours, or negative.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) };
    assert!(socket >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: see above; and all fields of the address may be zero.
    let (socket, mut address) =
        unsafe { (OwnedFd::from_raw_fd(socket), zeroed::<libc::sockaddr_ll>()) };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = if_nametoindex(device).unwrap() as i32;
    let patience = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    let option = |name, value: *const libc::c_void, bytes: usize| {
        // SAFETY: the value has as many bytes as is said.
        let result = unsafe {
            let bytes = bytes as libc::socklen_t;
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value, bytes)
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    };
    option(libc::SO_RCVBUFFORCE, (&raw const BUFFER).cast(), size_of::<libc::c_int>());
    option(libc::SO_RCVTIMEO, (&raw const patience).cast(), size_of::<libc::timeval>());
    // SAFETY: the address is laid out as its family says.
    let result = unsafe {
        let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    socket
}

/// Captures TCP packets until it is ended.
pub struct Capture {
    is_ending: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Packet>>,
}

impl Capture {
    /// At a device of a namespace, from now on.
    pub fn start(namespace: &Namespace, device: &str) -> Self {
        let socket = namespace.within(|| open(device));
        let is_ending = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_ending);
        let thread = std::thread::spawn(move || {
            let (mut packets, mut bytes) = (Vec::new(), [0; SNAP]);
            loop {
                // SAFETY: the buffer has as many bytes as is said.
                let length = unsafe {
                    let place = bytes.as_mut_ptr().cast();
                    libc::recv(socket.as_raw_fd(), place, SNAP, libc::MSG_TRUNC)
                };
                if let Ok(length) = usize::try_from(length) {
                    packets.extend(Packet::read(&bytes, length));
                    continue;
                }
                assert_eq!(std::io::Error::last_os_error().kind(), ErrorKind::WouldBlock);
                // All that came before it was told to end has been read.
                if seen.load(Ordering::Acquire) {
                    return packets;
                }
            }
        });
        Self { is_ending, thread }
    }

    /// What came from a server, and what went there.
    pub fn end(self, server: IpAddr) -> (Vec<Packet>, Vec<Packet>) {
        self.is_ending.store(true, Ordering::Release);
        let packets = self.thread.join().unwrap();
        let (from, rest): (Vec<_>, Vec<_>) =
            packets.into_iter().partition(|packet| packet.from == server);
        (from, rest.into_iter().filter(|packet| packet.to == server).collect())
    }
}

/// Sends a frame from a device of the calling thread's namespace, so many times.
pub fn send(device: &str, frame: &[u8], times: u64) {
    let socket = open(device);
    for _ in 0..times {
        // SAFETY: the frame has as many bytes as is said.
        let sent = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }
}
