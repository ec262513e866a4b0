//! The layouts of `bpf/irq/irq.h`.

use bytemuck::{Pod, Zeroable};

/// `SOFTIRQS`.
pub(crate) const SOFTIRQS: usize = 10;
/// `NET_RX_SOFTIRQ`.
pub(crate) const NET_RX: usize = 3;

/// `struct line_account`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawLine {
    pub handler_ns: u64,
    pub handled: u64,
    pub softirq_ns: u64,
}

/// `struct napi_key`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawNapiKey {
    pub napi: u64,
    /// Line + 1; 0: none, or more than one.
    pub raiser: u32,
    pub pad: u32,
}

/// `struct napi_account`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawNapi {
    pub softirq_ns: u64,
    pub polls: u64,
    pub packets: u64,
}

/// `struct napi_info`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawInfo {
    pub napi_id: u64,
    pub net_ns: u64,
    pub ifindex: u32,
    pub thread: u32,
    /// Line + 1; 0: unknown.
    pub line: u32,
    pub pad: u32,
    pub device: [u8; 16],
}

/// `struct cpu_softirqs`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawSoftirqs {
    pub ns: [u64; SOFTIRQS],
    pub runs: [u64; SOFTIRQS],
    pub handler_ns: u64,
}

/// `struct consumer_key`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawConsumerKey {
    pub napi_id: u32,
    pub cpu: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_match_the_header() {
        assert_eq!(size_of::<RawLine>(), 3 * 8);
        assert_eq!(size_of::<RawNapiKey>(), 2 * 8);
        assert_eq!(size_of::<RawNapi>(), 3 * 8);
        assert_eq!(size_of::<RawInfo>(), 6 * 8);
        assert_eq!(size_of::<RawSoftirqs>(), 2 * SOFTIRQS * 8 + 8);
        assert_eq!(size_of::<RawConsumerKey>(), 8);
    }
}
