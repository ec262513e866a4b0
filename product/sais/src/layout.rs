//! The layouts of `bpf/sais/intf.h`.

use bytemuck::{Pod, Zeroable};
use ipnet::IpNet;

/// `MAX_CPUS`.
pub(crate) const MAX_CPUS: usize = 1024;
/// `NO_CORE`.
pub(crate) const NO_CORE: u32 = u32::MAX;
/// `RULE_REFUSED`.
pub(crate) const RULE_REFUSED: u8 = 0;
/// `RULE_ALLOWED`.
pub(crate) const RULE_ALLOWED: u8 = 1;
/// `RULE_JUDGED`.
pub(crate) const RULE_JUDGED: u8 = 2;
/// `RULE_SATURATED`.
pub(crate) const RULE_SATURATED: u8 = 3;

/// `struct sais_settings`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawSettings {
    pub hint_key: [u64; 2],
    pub netns_cookie: u64,
    pub policy: u32,
    pub dedicated: u32,
    pub mode: u32,
    pub wire: u32,
    pub paper_segment: u32,
    pub hold_ms: u32,
}

/// `struct sais_serve_settings`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawServeSettings {
    pub wire: u32,
}

/// `struct sais_live`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawLive {
    pub rules: [u8; MAX_CPUS],
    pub ranking: [u32; MAX_CPUS],
    pub ranked: u32,
    pub generation: u32,
    pub next: u32,
    pub cpumap_id: u32,
    pub domain: [u16; MAX_CPUS],
    pub worth_within: u32,
    pub worth_across: u32,
    pub is_looking: u32,
    pub pad: u32,
}

/// `struct sais_flow_key`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawKey {
    pub remote: [u8; 16],
    pub local: [u8; 16],
    pub remote_port: [u8; 2],
    pub local_port: [u8; 2],
}

/// The map of connections that were made from here.
pub(crate) const FLOWS: &str = "flows";
/// `MAX_FLOWS`: so many are remembered.
pub(crate) const MAX_FLOWS: u32 = 131_072;
/// The map of connections that were accepted.
pub(crate) const ACCEPTED_FLOWS: &str = "accepted_flows";
/// `MAX_ACCEPTED`: so many are remembered.
pub(crate) const MAX_ACCEPTED: u32 = 32_768;

/// `struct sais_flow`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawFlow {
    pub core: u32,
    pub path: u32,
    pub tid: u32,
    pub tgid: u32,
    pub has_reader: u32,
    pub arrived: u32,
    pub hint: u64,
    pub echoed: u64,
    pub received_bytes: u64,
    pub start_boottime_ns: u64,
    pub process_start_boottime_ns: u64,
    pub asker: u32,
    pub asked_ms: u32,
    pub generation: u32,
    pub pad: [u32; 7],
}

/// `struct sais_reader`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawReader {
    pub start_boottime_ns: u64,
    pub tgid: u32,
    pub core: u32,
    pub late: u32,
    pub outstanding: u32,
}

/// `struct sais_peer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawPeer {
    pub prefix_bits: u32,
    pub address: [u8; 16],
}

impl RawPeer {
    /// IPv4 mapped into IPv6, as connections are.
    pub fn new(network: &IpNet) -> Self {
        let (address, more) = match network {
            IpNet::V4(v4) => (v4.network().to_ipv6_mapped(), 96),
            IpNet::V6(v6) => (v6.network(), 0),
        };
        let prefix_bits = more + u32::from(network.prefix_len());
        Self { prefix_bits, address: address.octets() }
    }
}

/// `struct sais_served`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawServed {
    pub counters: [u64; SERVED_COUNTERS.len()],
}

/// `enum sais_served_counter`: name and meaning, in its order.
pub(crate) const SERVED_COUNTERS: [(&str, &str); 5] = [
    ("connections", "accepted from peers"),
    ("heard", "packets that came with a hint"),
    ("malformed", "packets that came with a hint of another length"),
    ("echoed", "packets that left with the hint that was heard last"),
    (
        "no_room",
        "packets that left without, because the core or they do not fit the paper's format",
    ),
];

/// `struct sais_cpu`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawCpu {
    pub counters: [u64; COUNTERS.len()],
    pub pad: [u64; 4],
}

/// `cpus`: all of them.
pub(crate) type RawCpus = [RawCpu; MAX_CPUS];

/// `enum sais_counter`: name and meaning, in its order.
pub(crate) const COUNTERS: [(&str, &str); 20] = [
    ("steered", "sent to their consumer's core"),
    ("home", "arrived on their consumer's core by themselves"),
    ("kept", "went where those before them went, which had not all arrived"),
    ("refused", "their consumer was on a core that may not be used"),
    ("unknown", "no task here was known to wait for them"),
    ("other", "not TCP over IP, or fragments"),
    ("malformed", "with headers that contradict themselves or end too early"),
    ("distrusted", "without the hint that their connection should bear, or with another"),
    ("left", "left where they arrived, because handing them over costs more than it saves"),
    ("moved", "flows that changed their core"),
    ("dropped", "sent to a core with a full queue"),
    ("processed", "taken from its queue by the core that they were sent to"),
    ("hint_echoed", "came with the hint that was issued last (--stateless: with a valid one)"),
    ("hint_absent", "came without a hint"),
    ("hint_stale", "came with a hint that was replaced while they were under way"),
    ("hint_replayed", "came with a hint after which newer ones had come back already"),
    ("hint_forged", "came with a hint that was never issued for their connection"),
    ("hint_malformed", "came with a hint of another length, or with options in disorder"),
    ("hints_sent", "left with a hint"),
    ("followed", "kept or distrusted, and handed to the core of those before them"),
];
/// `COUNT_STEERED`.
pub(crate) const STEERED: usize = 0;
/// `COUNT_DROPPED`.
pub(crate) const DROPPED: usize = 10;
/// `COUNT_PROCESSED`.
pub(crate) const PROCESSED: usize = 11;
/// `COUNT_FOLLOWED`.
pub(crate) const FOLLOWED: usize = 19;
/// `COUNT_HINT_ABSENT`.
pub(crate) const HINT_ABSENT: usize = 13;
/// `COUNT_PACKETS`: the first so many counters share all packets among them.
pub(crate) const PACKET_COUNTERS: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_its_first_bits() {
        let peer = |text: &str| RawPeer::new(&text.parse().unwrap());
        let (four, six) = (peer("198.18.7.9/15"), peer("2001:db8::1/32"));
        assert_eq!(four.prefix_bits, 96 + 15);
        assert_eq!(four.address[10..], [0xff, 0xff, 198, 18, 0, 0]);
        assert_eq!((six.prefix_bits, &six.address[..5]), (32, &[0x20, 1, 0xd, 0xb8, 0][..]));
    }

    /// What the program on the device reads for each packet lies in no cache line that a consumer writes
    /// at each call, and no element shares a line with the next one.
    #[test]
    fn the_parts_of_a_connection_are_cache_lines_apart() {
        const LINE: usize = 64;
        // `FLOW_HEAD_BYTES`: the kernel's struct htab_elem, and the key in words of 8 bytes.
        let head = 48 + size_of::<RawKey>().next_multiple_of(8);
        let read = std::mem::offset_of!(RawFlow, received_bytes);
        assert_eq!((head + read) % LINE, 0);
        assert_eq!((head + size_of::<RawFlow>()) % LINE, 0);
        for field in [std::mem::offset_of!(RawFlow, core), std::mem::offset_of!(RawFlow, echoed)] {
            assert_eq!((head + field) / LINE, head / LINE);
        }
    }

    #[test]
    fn counters_are_where_they_are_looked_for() {
        let named =
            [STEERED, DROPPED, PROCESSED, FOLLOWED, HINT_ABSENT].map(|which| COUNTERS[which].0);
        assert_eq!(named, ["steered", "dropped", "processed", "followed", "hint_absent"]);
    }
}
