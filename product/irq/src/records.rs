//! The layouts of `bpf/irq/irq.h`.

use std::net::{Ipv6Addr, SocketAddr};

use bytemuck::{Pod, Zeroable};

use crate::toeplitz::Flow;

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

/// `struct reception_key`.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RawReceptionKey {
    /// In network order; IPv4 mapped into IPv6.
    pub remote: [u8; 16],
    pub local: [u8; 16],
    /// In network order.
    pub remote_port: [u8; 2],
    pub local_port: u16,
    pub napi_id: u32,
    pub cpu: u32,
}

impl RawReceptionKey {
    /// The connection, as its packets arrive.
    pub fn flow(&self) -> Flow {
        let address =
            |octets: [u8; 16], port| SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port);
        Flow {
            from: address(self.remote, u16::from_be_bytes(self.remote_port)),
            to: address(self.local, self.local_port),
        }
    }
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
        assert_eq!(size_of::<RawReceptionKey>(), 2 * 16 + 2 * 2 + 2 * 4);
    }

    #[test]
    fn a_connection_is_of_the_family_that_its_packets_have() {
        let mapped = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, last];
        let mut raw = RawReceptionKey {
            remote: mapped(2),
            local: mapped(1),
            remote_port: [0x9c, 0x40],
            local_port: 22,
            ..RawReceptionKey::default()
        };
        let flow =
            |from: &str, to: &str| Flow { from: from.parse().unwrap(), to: to.parse().unwrap() };
        assert_eq!(raw.flow(), flow("10.0.0.2:40000", "10.0.0.1:22"));
        (raw.remote, raw.local) = ([0; 16], [0; 16]);
        (raw.remote[0], raw.remote[15], raw.local[0], raw.local[15]) = (0xfd, 2, 0xfd, 1);
        assert_eq!(raw.flow(), flow("[fd00::2]:40000", "[fd00::1]:22"));
    }
}
