//! The parser that the kernel runs, compiled natively with undefined behaviour made a trap, on
//! packets that end where readable memory ends: whatever anybody sends, it reads nothing past the
//! end and says nothing wrong.

#![allow(clippy::panic)]

use std::ptr;

use proptest::prelude::*;

/// `enum parse_result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Tcp(Packet),
    Other,
    Malformed,
}

/// `struct sais_packet`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
struct Packet {
    remote: [u8; 16],
    local: [u8; 16],
    remote_port: [u8; 2],
    local_port: [u8; 2],
    sequence: u32,
}

#[link(name = "sais_parse", kind = "static")]
unsafe extern "C" {
    fn sais_parse(data: *const u8, end: *const u8, packet: *mut Packet) -> i32;
}

/// Memory whose end is the end of all that may be read: what lies behind it is a fault.
struct Edge {
    base: *mut u8,
}

const PAGE: usize = 4096;

impl Edge {
    fn new() -> Self {
        let (read, write) = (libc::PROT_READ, libc::PROT_WRITE);
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), 2 * PAGE, read | write, kind, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.cast::<u8>();
        // SAFETY: the second page of that mapping.
        assert_eq!(unsafe { libc::mprotect(base.add(PAGE).cast(), PAGE, libc::PROT_NONE) }, 0);
        Self { base }
    }

    fn parse(&self, bytes: &[u8]) -> Found {
        assert!(bytes.len() <= PAGE);
        let mut packet = Packet::default();
        // SAFETY: the bytes fit before the edge, and the function reads nothing but them.
        let result = unsafe {
            let end = self.base.add(PAGE);
            let data = end.sub(bytes.len());
            ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len());
            sais_parse(data, end, &mut packet)
        };
        match result {
            0 => Found::Tcp(packet),
            1 => Found::Other,
            2 => Found::Malformed,
            other => panic!("{other} is no result"),
        }
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped.
        unsafe { libc::munmap(self.base.cast(), 2 * PAGE) };
    }
}

/// What a frame is made of.
#[derive(Debug, Clone)]
struct Frame {
    tags: Vec<u16>,
    is_ipv6: bool,
    packet: Packet,
    /// Words of options behind the IPv4 header.
    ip_options: u8,
    /// Words of options behind the TCP header.
    tcp_options: u8,
    payload: usize,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![1; 12];
        for (number, tag) in self.tags.iter().enumerate() {
            let is_outer = number + 1 < self.tags.len();
            bytes.extend(if is_outer { [0x88, 0xa8] } else { [0x81, 0x00] });
            bytes.extend(tag.to_be_bytes());
        }
        let Packet { remote, local, remote_port, local_port, sequence } = self.packet;
        if self.is_ipv6 {
            bytes.extend([0x86, 0xdd, 0x6f, 0xff, 0xff, 0xff, 0, 20, 6, 64]);
            bytes.extend(remote);
            bytes.extend(local);
        } else {
            bytes.extend([
                0x08,
                0x00,
                0x45 + self.ip_options,
                0,
                0,
                40,
                1,
                2,
                0x40,
                0,
                64,
                6,
                9,
                9,
            ]);
            bytes.extend(&remote[12..]);
            bytes.extend(&local[12..]);
            bytes.resize(bytes.len() + usize::from(self.ip_options) * 4, 1);
        }
        bytes.extend(remote_port);
        bytes.extend(local_port);
        bytes.extend(sequence.to_be_bytes());
        bytes.extend([0, 0, 0, 0, (5 + self.tcp_options) << 4, 0x10, 1, 1, 0, 0, 0, 0]);
        bytes.resize(bytes.len() + usize::from(self.tcp_options) * 4 + self.payload, 0xaa);
        bytes
    }

    /// Where the TCP header ends that every such packet must have.
    fn needed(&self) -> usize {
        let ip = if self.is_ipv6 { 40 } else { 20 + usize::from(self.ip_options) * 4 };
        14 + self.tags.len() * 4 + ip + 20
    }
}

prop_compose! {
    fn frames()(
        tags in prop::collection::vec(any::<u16>(), 0..=2),
        is_ipv6 in any::<bool>(),
        mut remote in any::<[u8; 16]>(),
        mut local in any::<[u8; 16]>(),
        remote_port in any::<[u8; 2]>(),
        local_port in any::<[u8; 2]>(),
        sequence in any::<u32>(),
        ip_options in 0..=10_u8,
        tcp_options in 0..=10_u8,
        payload in 0..200_usize,
    ) -> Frame {
        if !is_ipv6 {
            for address in [&mut remote, &mut local] {
                address[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
            }
        }
        let packet = Packet { remote, local, remote_port, local_port, sequence };
        Frame { tags, is_ipv6, packet, ip_options, tcp_options, payload }
    }
}

proptest! {
    #[test]
    fn a_tcp_packet_is_read_right_or_found_too_short(frame in frames()) {
        let (edge, bytes) = (Edge::new(), frame.bytes());
        for length in 0..bytes.len() {
            let found = edge.parse(&bytes[..length]);
            let whole = length >= frame.needed();
            prop_assert_eq!(found, if whole { Found::Tcp(frame.packet) } else { Found::Malformed });
        }
    }

    #[test]
    fn other_protocols_are_left_alone(frame in frames(), protocol in any::<u8>(), kind in any::<u16>()) {
        let (edge, mut bytes) = (Edge::new(), frame.bytes());
        let network = 14 + frame.tags.len() * 4;
        let place = network + if frame.is_ipv6 { 6 } else { 9 };
        if protocol != 6 {
            bytes[place] = protocol;
            prop_assert_eq!(edge.parse(&bytes), Found::Other);
        }
        if ![0, 0x0800, 0x86dd, 0x8100, 0x88a8].contains(&kind) {
            bytes[network - 2..network].copy_from_slice(&kind.to_be_bytes());
            prop_assert_eq!(edge.parse(&bytes), Found::Other);
        }
    }

    #[test]
    fn fragments_are_left_alone(frame in frames(), offset in 0..0x2000_u16, more in any::<bool>()) {
        prop_assume!(!frame.is_ipv6 && (offset != 0 || more));
        let (edge, mut bytes) = (Edge::new(), frame.bytes());
        let place = 14 + frame.tags.len() * 4 + 6;
        let field = offset | u16::from(more) << 13;
        bytes[place..place + 2].copy_from_slice(&field.to_be_bytes());
        prop_assert_eq!(edge.parse(&bytes), Found::Other);
    }

    #[test]
    fn headers_that_contradict_themselves_are_malformed(frame in frames(), half in 0..16_u8) {
        let (edge, bytes) = (Edge::new(), frame.bytes());
        let network = 14 + frame.tags.len() * 4;
        let with = |place: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[place] = byte;
            edge.parse(&bytes)
        };
        let version = if frame.is_ipv6 { 6 } else { 4 };
        if half != version {
            prop_assert_eq!(with(network, half << 4 | 5), Found::Malformed);
        }
        if !frame.is_ipv6 && half < 5 {
            prop_assert_eq!(with(network, 0x40 | half), Found::Malformed);
        }
        if half < 5 {
            prop_assert_eq!(with(frame.needed() - 8, half << 4), Found::Malformed);
        }
    }
}

/// Ten million packets that began as good ones and had bytes changed and ends cut off.
#[test]
fn ten_million_mutations() {
    const PACKETS: u32 = 10_000_000;
    let edge = Edge::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let seeds: Vec<Vec<u8>> = (0..12_u8)
        .map(|number| {
            let frame = Frame {
                tags: vec![42; usize::from(number % 3)],
                is_ipv6: number % 2 == 0,
                packet: Packet::default(),
                ip_options: number % 5,
                tcp_options: number % 4,
                payload: usize::from(number),
            };
            frame.bytes()
        })
        .collect();
    let mut found = [0_u32; 3];
    let mut bytes = Vec::new();
    for _ in 0..PACKETS {
        let choice = next();
        bytes.clone_from(&seeds[choice as usize % seeds.len()]);
        for _ in 0..choice >> 32 & 3 {
            let change = next();
            // Mostly in the headers, where it matters.
            let place = change as usize % bytes.len().min(90);
            bytes[place] = (change >> 32) as u8;
        }
        if choice >> 40 & 3 == 0 {
            bytes.truncate((choice >> 48) as usize % (bytes.len() + 1));
        }
        match edge.parse(&bytes) {
            Found::Tcp(_) => found[0] += 1,
            Found::Other => found[1] += 1,
            Found::Malformed => found[2] += 1,
        }
    }
    assert_eq!(found.iter().sum::<u32>(), PACKETS);
    // The mutations reach everything.
    assert!(found.iter().all(|count| *count > PACKETS / 100), "{found:?}");
}
