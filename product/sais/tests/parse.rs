//! The parser that the kernel runs, compiled natively with undefined behaviour made a trap, on
//! packets that end where readable memory ends: whatever anybody sends, it reads nothing past the
//! end and says nothing wrong.

#![allow(clippy::panic)]

use std::hash::Hasher;

use proptest::prelude::*;

mod common;

use common::edge::{ABSENT, Edge, FOUND, Found, MALFORMED, Packet};

#[link(name = "sais_parse", kind = "static")]
unsafe extern "C" {
    fn sais_sip_hash(key: *const u64, flow: *const u8, core: u16, number: u16) -> u64;
}

/// What is found, but for hints.
fn parse(edge: &Edge, bytes: &[u8]) -> Found {
    match edge.parse(bytes) {
        Found::Tcp(packet) => {
            Found::Tcp(Packet { hint: 0, has_hint: 0, options: [0; 2], ..packet })
        }
        other => other,
    }
}

/// The hint of a TCP packet, and what is said of it.
fn hint_of(edge: &Edge, bytes: &[u8]) -> (u32, u64) {
    match edge.parse(bytes) {
        Found::Tcp(packet) => (packet.has_hint, packet.hint),
        other => panic!("{other:?} is no TCP packet"),
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
        let Packet { remote, local, remote_port, local_port, sequence, .. } = self.packet;
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
        bytes.extend(sequence);
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
        sequence in any::<[u8; 4]>(),
        ip_options in 0..=10_u8,
        tcp_options in 0..=10_u8,
        payload in 0..200_usize,
    ) -> Frame {
        if !is_ipv6 {
            for address in [&mut remote, &mut local] {
                address[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
            }
        }
        let packet = Packet { remote, local, remote_port, local_port, sequence, ..Packet::default() };
        Frame { tags, is_ipv6, packet, ip_options, tcp_options, payload }
    }
}

proptest! {
    #[test]
    fn a_tcp_packet_is_read_right_or_found_too_short(frame in frames()) {
        let (edge, bytes) = (Edge::new(), frame.bytes());
        for length in 0..bytes.len() {
            let found = parse(&edge, &bytes[..length]);
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
            prop_assert_eq!(parse(&edge, &bytes), Found::Other);
        }
        if ![0, 0x0800, 0x86dd, 0x8100, 0x88a8].contains(&kind) {
            bytes[network - 2..network].copy_from_slice(&kind.to_be_bytes());
            prop_assert_eq!(parse(&edge, &bytes), Found::Other);
        }
    }

    #[test]
    fn fragments_are_left_alone(frame in frames(), offset in 0..0x2000_u16, more in any::<bool>()) {
        prop_assume!(!frame.is_ipv6 && (offset != 0 || more));
        let (edge, mut bytes) = (Edge::new(), frame.bytes());
        let place = 14 + frame.tags.len() * 4 + 6;
        let field = offset | u16::from(more) << 13;
        bytes[place..place + 2].copy_from_slice(&field.to_be_bytes());
        prop_assert_eq!(parse(&edge, &bytes), Found::Other);
    }

    #[test]
    fn headers_that_contradict_themselves_are_malformed(frame in frames(), half in 0..16_u8) {
        let (edge, bytes) = (Edge::new(), frame.bytes());
        let network = 14 + frame.tags.len() * 4;
        let with = |place: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[place] = byte;
            parse(&edge, &bytes)
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

/// What Linux begins with, when it uses time stamps.
const TIME_STAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];

/// The option of a hint, with bytes that the length claims.
fn hint_option(bytes: u8, hint: u64) -> Vec<u8> {
    let mut option = vec![253, bytes, 0xa1, 0xf5];
    option.extend(hint.to_ne_bytes());
    option
}

/// A packet with these options, which are filled up to whole words.
fn with_options(mut frame: Frame, options: &[u8]) -> Vec<u8> {
    let words = options.len().div_ceil(4);
    frame.tcp_options = words as u8;
    let begin = frame.needed();
    let mut bytes = frame.bytes();
    bytes[begin..begin + words * 4].fill(0);
    bytes[begin..begin + options.len()].copy_from_slice(options);
    bytes
}

fn other_options() -> impl Strategy<Value = Vec<u8>> {
    let other = prop_oneof![
        Just(vec![1]),
        Just(TIME_STAMPS[2..].to_vec()),
        (2..6_usize).prop_map(|bytes| {
            let mut option = vec![77; bytes];
            option[1] = bytes as u8;
            option
        }),
        // Another experiment, and an option without room for its number.
        Just(vec![253, 4, 0xa1, 0xf6]),
        Just(vec![253, 2]),
    ];
    prop::collection::vec(other, 0..4).prop_map(|options| options.concat())
}

proptest! {
    #[test]
    fn a_hint_is_found_wherever_it_is(
        frame in frames(), before in other_options(), after in other_options(), hint in any::<u64>()
    ) {
        let edge = Edge::new();
        let mut options = [before, hint_option(12, hint), after].concat();
        prop_assume!(options.len() <= 40);
        prop_assert_eq!(hint_of(&edge, &with_options(frame.clone(), &options)), (FOUND, hint));
        // Behind the end of all options there is none.
        options.insert(0, 0);
        options.truncate(40);
        prop_assert_eq!(hint_of(&edge, &with_options(frame, &options)).0, ABSENT);
    }

    #[test]
    fn where_there_is_no_hint_none_is_found(frame in frames(), options in other_options()) {
        let edge = Edge::new();
        prop_assume!(options.len() <= 40);
        prop_assert_eq!(hint_of(&edge, &with_options(frame.clone(), &options)).0, ABSENT);
        // The word that Linux begins with, but another option behind.
        let options = [&TIME_STAMPS[..], &[254, 12, 0xa1, 0xf5, 1, 2, 3, 4, 5, 6, 7, 8]].concat();
        prop_assert_eq!(hint_of(&edge, &with_options(frame, &options)).0, ABSENT);
    }

    #[test]
    fn a_hint_of_another_length_is_malformed(
        frame in frames(), stamped in any::<bool>(), bytes in 4..28_u8, hint in any::<u64>()
    ) {
        prop_assume!(bytes != 12);
        let edge = Edge::new();
        let before: &[u8] = if stamped { &TIME_STAMPS } else { &[] };
        let mut options = [before, &hint_option(bytes, hint)].concat();
        options.resize(before.len() + usize::from(bytes).max(12), 1);
        prop_assert_eq!(hint_of(&edge, &with_options(frame, &options)).0, MALFORMED);
    }

    #[test]
    fn an_option_that_ends_too_early_or_late_is_malformed(frame in frames(), length in 0..=255_u8) {
        let edge = Edge::new();
        let options = [77, length, 1, 1];
        let found = hint_of(&edge, &with_options(frame.clone(), &options)).0;
        let fits = (2..=4).contains(&length);
        prop_assert_eq!(found, if fits { ABSENT } else { MALFORMED });
        // Cut off by the end of the packet, though the header says that it goes on.
        let whole = with_options(Frame { payload: 0, ..frame.clone() }, &hint_option(12, 7));
        for cut in 1..=12 {
            let found = hint_of(&edge, &whole[..whole.len() - cut]).0;
            prop_assert_eq!(found, MALFORMED);
        }
    }

    #[test]
    fn the_tag_is_siphash(
        keys in any::<[u64; 2]>(), flow in prop::collection::vec(any::<u8>(), 36), core in any::<u16>(),
        number in any::<u16>()
    ) {
        #[repr(C, align(4))]
        struct Flow([u8; 36]);
        let mut key = Flow([0; 36]);
        key.0.copy_from_slice(&flow);
        // SAFETY: the function reads two keys and a connection of 36 bytes.
        let found = unsafe { sais_sip_hash(keys.as_ptr(), key.0.as_ptr(), core, number) };
        // An implementation of the same function that is not ours.
        #[allow(deprecated)]
        let mut expected = std::hash::SipHasher::new_with_keys(keys[0], keys[1]);
        expected.write(&[&flow[..], &core.to_ne_bytes(), &number.to_ne_bytes()].concat());
        prop_assert_eq!(found, expected.finish());
    }
}

/// A header of IPv4 and TCP with the paper's byte and a right checksum.
fn paper_header(core: u8) -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&[0x46, 0, 1, 0x2c]);
    (header[8], header[9], header[20]) = (64, 6, 0xa0 | core);
    header[12..20].copy_from_slice(&[198, 18, 0, 2, 198, 18, 0, 1]);
    let words = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !(((folded & 0xffff) + (folded >> 16)) as u16);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

/// The checksum is made anew where the paper's byte is taken off.
#[test]
fn a_damaged_header_does_not_pass_for_the_papers() {
    let edge = Edge::new();
    let is_paper = |header: &[u8; 24]| edge.is_paper_header(header);
    for core in 0..32 {
        let header = paper_header(core);
        assert!(is_paper(&header), "{core}");
        for bit in 0..24 * 8 {
            let mut damaged = header;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_paper(&damaged), "core {core}, bit {bit}");
        }
    }
}
