//! Packets. The parser that the kernel runs, compiled natively, reads nothing past the end of a packet
//! (a fault) and nothing undefined (a trap), and finds what this file's own reader finds, which checks
//! each access.

// The library that has the parser.
use evenkeel_sais as _;

use crate::edge::{ABSENT, Edge, FOUND, Found, MALFORMED, Packet};
use crate::target::{Target, no_repair};

const PACKETS: Target = Target { name: "packets", words: &[], repair: no_repair, read };

/// The longest packet without segmentation.
const MAX_BYTES: usize = 1514;
const LINK_BYTES: usize = 14;

thread_local! {
    static EDGE: Edge = Edge::new();
}

/// Accepted: it is a packet of TCP with well-formed options.
fn read(_: &str, text: &[u8]) -> bool {
    let packet = &text[..text.len().min(MAX_BYTES)];
    let found = EDGE.with(|edge| {
        if let Some(header) = packet.get(LINK_BYTES..).and_then(|ip| ip.first_chunk()) {
            assert_eq!(edge.is_paper_header(header), is_paper_header(header));
        }
        edge.parse(packet)
    });
    let found = match found {
        // Where the search for a hint began is not asked for.
        Found::Tcp(packet) => Found::Tcp(Packet { options: [0; 2], ..packet }),
        other => other,
    };
    assert_eq!(found, expected(packet).unwrap_or(Found::Malformed));
    matches!(found, Found::Tcp(packet) if packet.has_hint != MALFORMED)
}

/// `COUNT` bytes at a place; `None`: the packet ends before.
fn take<const COUNT: usize>(packet: &[u8], at: usize) -> Option<[u8; COUNT]> {
    packet.get(at..).and_then(|rest| rest.first_chunk()).copied()
}

/// What is in a packet; `None`: it is malformed.
fn expected(packet: &[u8]) -> Option<Found> {
    let mut at = LINK_BYTES;
    let mut kind = u16::from_be_bytes(take(packet, at - 2)?);
    for _ in 0..2 {
        if kind == 0x8100 || kind == 0x88a8 {
            kind = u16::from_be_bytes(take(packet, at + 2)?);
            at += 4;
        }
    }
    let mut found = Packet::default();
    match kind {
        0x0800 => {
            let header = take::<20>(packet, at)?;
            if header[0] >> 4 != 4 || header[0] & 15 < 5 {
                return None;
            }
            let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            if header[9] != 6 || is_fragment {
                return Some(Found::Other);
            }
            for (address, place) in [(&mut found.remote, 12), (&mut found.local, 16)] {
                address[10..12].fill(0xff);
                address[12..].copy_from_slice(&header[place..place + 4]);
            }
            at += usize::from(header[0] & 15) * 4;
        }
        0x86dd => {
            let header = take::<40>(packet, at)?;
            if header[0] >> 4 != 6 {
                return None;
            }
            if header[6] != 6 {
                return Some(Found::Other);
            }
            (found.remote, found.local) = (take(&header, 8)?, take(&header, 24)?);
            at += 40;
        }
        0 => return None,
        _ => return Some(Found::Other),
    }
    let header = take::<20>(packet, at)?;
    let options = usize::from(header[12] >> 4 & 15) * 4;
    let options = options.checked_sub(header.len())?;
    (found.remote_port, found.local_port) = (take(&header, 0)?, take(&header, 2)?);
    found.sequence = take(&header, 4)?;
    let options = packet.get(at + header.len()..).and_then(|rest| rest.get(..options));
    (found.has_hint, found.hint) = match options.map(hint) {
        Some(Some(Some(hint))) => (FOUND, u64::from_ne_bytes(hint)),
        Some(Some(None)) => (ABSENT, 0),
        Some(None) | None => (MALFORMED, 0),
    };
    Some(Found::Tcp(found))
}

/// The hint among options; `None`: they are malformed.
fn hint(mut options: &[u8]) -> Option<Option<[u8; 8]>> {
    loop {
        match options {
            [] | [0, ..] => return Some(None),
            [1, rest @ ..] => options = rest,
            [kind, length, ..] if *length >= 2 => {
                let (option, rest) = options.split_at_checked((*length).into())?;
                if *kind == 253 && option.get(2..4) == Some(&[0xa1, 0xf5]) {
                    return option[4..].try_into().ok().map(Some);
                }
                options = rest;
            }
            _ => return None,
        }
    }
}

/// One word of options: class and core, and an end; and a right checksum.
fn is_paper_header(header: &[u8; 24]) -> bool {
    let words = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let is_marked = header[0] == 0x46 && header[9] == 6 && header[20] & 0xe0 == 0xa0;
    is_marked && header[21..] == [0; 3] && sum == 0xffff
}

#[test]
fn nothing_is_read_past_the_end_of_a_packet() {
    PACKETS.fuzz();
}
