//! The records that `bpf/sais/intf.h` lays out.

use bytemuck::{Pod, Zeroable};

/// `MAX_CPUS`.
pub(crate) const MAX_CPUS: usize = 1024;
/// `NO_CORE`.
pub(crate) const NO_CORE: u32 = u32::MAX;

/// `struct sais_settings`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawSettings {
    pub netns_cookie: u64,
    pub policy: u32,
    pub dedicated: u32,
}

/// `struct sais_live`.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawLive {
    pub allowed: [u64; MAX_CPUS / 64],
    pub ranking: [u32; MAX_CPUS],
    pub ranked: u32,
    pub generation: u32,
    pub next: u32,
    pub cpumap_id: u32,
}

/// `struct sais_flow_key`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawKey {
    pub remote: [u8; 16],
    pub local: [u8; 16],
    pub remote_port: [u8; 2],
    pub local_port: [u8; 2],
}

/// `struct sais_flow`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawFlow {
    pub core: u32,
    pub path: u32,
    pub tid: u32,
    pub tgid: u32,
    pub has_reader: u32,
    pub generation: u32,
    pub pad: [u32; 10],
    pub received_bytes: u64,
}

/// `struct sais_cpu`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawCpu {
    pub counters: [u64; COUNTERS.len()],
}

/// `enum sais_counter`: name and meaning, in its order.
pub(crate) const COUNTERS: [(&str, &str); 10] = [
    ("steered", "sent to their consumer's core"),
    ("home", "arrived on their consumer's core by themselves"),
    ("kept", "went where those before them went, which had not all arrived"),
    ("refused", "their consumer was on a core that may not be used"),
    ("unknown", "nobody here was known to wait for them"),
    ("other", "not TCP over IP, or fragments"),
    ("malformed", "with headers that contradict themselves or end too early"),
    ("moved", "flows that changed their core"),
    ("dropped", "sent to a core whose queue was full"),
    ("processed", "taken from its queue by the core that they were sent to"),
];
/// `COUNT_PACKETS`: the first so many counters share all packets among them.
pub(crate) const PACKET_COUNTERS: usize = 7;
