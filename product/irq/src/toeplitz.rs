//! The hash by which cards choose the queue of a packet (Toeplitz, from Microsoft's specification of
//! receive-side scaling), and the bucket of a connection. Pure.
//!
//! The hash of a packet is linear: for each bit that is set in its addresses and ports, 32 bits of the
//! key from that place on are added without carry. So the key and the table say to which queue the
//! packets of a connection go.

use std::net::{IpAddr, SocketAddr};

/// A connection, as packets that arrive have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Where its packets come from.
    pub from: SocketAddr,
    /// Where they go to: an address of this host.
    pub to: SocketAddr,
}

/// The Toeplitz hash of `input` with this key; `None`: the key is shorter than the input and four bytes.
fn hash(key: &[u8], input: &[u8]) -> Option<u32> {
    let mut sum = 0;
    for (place, byte) in input.iter().enumerate() {
        let key = key.get(place..place + 5)?;
        let bits = key.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        for bit in (0..8).filter(|bit| byte & (0x80 >> bit) != 0) {
            sum ^= (bits >> (8 - bit)) as u32;
        }
    }
    Some(sum)
}

impl Flow {
    /// The hash of its packets by addresses and, with `has_ports`, ports; `None`: the key is too short,
    /// or one address is of IPv4 and the other of IPv6.
    pub fn hash(&self, key: &[u8], has_ports: bool) -> Option<u32> {
        let mut input = Vec::with_capacity(36);
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                input.extend([from.octets(), to.octets()].concat())
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                input.extend([from.octets(), to.octets()].concat())
            }
            _ => return None,
        }
        if has_ports {
            input.extend(self.from.port().to_be_bytes());
            input.extend(self.to.port().to_be_bytes());
        }
        hash(key, &input)
    }

    /// The bucket of its packets in a table with so many buckets, on a card that hashes TCP by addresses
    /// and ports, as cards do unless told otherwise (`ethtool -N DEV rx-flow-hash`).
    pub fn bucket(&self, key: &[u8], buckets: usize) -> Option<u32> {
        let buckets = u32::try_from(buckets).ok()?;
        self.hash(key, true)?.checked_rem(buckets)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The key and the results that Microsoft publishes for checks ("Verifying the RSS Hash
    /// Calculation").
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Destination, source, the hash of the addresses, and that of addresses and ports.
    const PUBLISHED: [(&str, &str, u32, u32); 8] = [
        ("161.142.100.80:1766", "66.9.149.187:2794", 0x323e_8fc2, 0x51cc_c178),
        ("65.69.140.83:4739", "199.92.111.2:14230", 0xd718_262a, 0xc626_b0ea),
        ("12.22.207.184:38024", "24.19.198.95:12898", 0xd2d0_a5de, 0x5c2b_394a),
        ("209.142.163.6:2217", "38.27.205.30:48228", 0x8298_9176, 0xafc7_327f),
        ("202.188.127.2:1303", "153.39.163.191:44251", 0x5d18_09c5, 0x10e8_28a2),
        ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc1_8cd5, 0x4020_7d3d),
        ("[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0x0f0c_461c, 0xdde5_1bbf),
        (
            "[fe80::200:f8ff:fe21:67cf]:38024",
            "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    fn flow(from: &str, to: &str) -> Flow {
        Flow { from: from.parse().unwrap(), to: to.parse().unwrap() }
    }

    #[test]
    fn hashes_are_the_published_ones() {
        for (to, from, of_addresses, of_all) in PUBLISHED {
            let flow = flow(from, to);
            assert_eq!(flow.hash(&KEY, false), Some(of_addresses), "{flow:?}");
            assert_eq!(flow.hash(&KEY, true), Some(of_all), "{flow:?}");
            // The low bits name the bucket.
            assert_eq!(flow.bucket(&KEY, 128), Some(of_all & 127), "{flow:?}");
        }
    }

    #[test]
    fn what_cannot_be_hashed_has_no_bucket() {
        let one = flow("10.0.0.1:1", "10.0.0.2:2");
        assert_eq!(one.bucket(&KEY[..15], 128), None);
        assert!(one.bucket(&KEY[..16], 128).is_some());
        assert_eq!(one.bucket(&KEY, 0), None);
        assert_eq!(flow("10.0.0.1:1", "[::1]:2").bucket(&KEY, 128), None);
    }

    proptest! {
        #[test]
        fn the_hash_is_linear(one in any::<[u8; 12]>(), other in any::<[u8; 12]>()) {
            let mut both = one;
            both.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
            let of = |input: &[u8]| hash(&KEY, input).unwrap();
            prop_assert_eq!(of(&both), of(&one) ^ of(&other));
        }
    }
}
