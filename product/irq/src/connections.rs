//! The TCP connections of this network namespace, by /proc/net/tcp and tcp6: which buckets of an
//! indirection table have traffic of this host at all. How much each connection brings is not known.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::toeplitz::Flow;

/// The files. That of the process that asks: /proc/net is the calling thread's.
const FILES: [&str; 2] = ["proc/net/tcp", "proc/net/tcp6"];
/// Not more than this is read of each: some ten thousand connections.
const MOST_BYTES: u64 = 2 << 20;
/// A connection over which data may come, in hexadecimal (net/tcp_states.h).
const ESTABLISHED: &str = "01";

/// The established connections with other hosts, as their packets arrive.
pub(crate) fn established(root: &Path) -> Vec<Flow> {
    let mut flows = Vec::new();
    for file in FILES {
        let mut bytes = Vec::new();
        let read = File::open(root.join(file))
            .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
        if let Err(why) = read {
            tracing::debug!("{file}: {why}");
            continue;
        }
        flows.extend(String::from_utf8_lossy(&bytes).lines().skip(1).filter_map(flow));
    }
    flows
}

/// The connection of a line; `None`: it is no established one with another host.
fn flow(line: &str) -> Option<Flow> {
    let mut words = line.split_whitespace().skip(1);
    let (to, from) = (address(words.next()?)?, address(words.next()?)?);
    let is_meant = words.next()? == ESTABLISHED && !to.ip().is_loopback();
    is_meant.then_some(Flow { from, to })
}

/// An address as the kernel prints it: each four bytes as a number of this machine, and the port.
fn address(word: &str) -> Option<SocketAddr> {
    let (address, port) = word.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let number = |place: usize| {
        let digits = address.get(8 * place..8 * place + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let ip = match address.len() {
        8 => IpAddr::from(Ipv4Addr::from(number(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (place, four) in octets.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&number(place)?);
            }
            // Packets of a mapped address are of IPv4.
            Ipv6Addr::from(octets).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word as this machine's kernel prints it.
    fn word(octets: &[u8], port: u16) -> String {
        let numbers = octets.chunks_exact(4).map(|four| {
            let number = u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
            format!("{number:08X}")
        });
        format!("{}:{port:04X}", numbers.collect::<String>())
    }

    #[test]
    fn established_connections_with_other_hosts_are_found() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/net")).unwrap();
        let put = |file: &str, lines: &[(String, String, &str)]| {
            let mut text = "  sl  local_address rem_address   st\n".to_owned();
            for (place, (to, from, state)) in lines.iter().enumerate() {
                text += &format!("{place:4}: {to} {from} {state} 00000000:00000000 00:00000000\n");
            }
            std::fs::write(root.path().join(file), text).unwrap();
        };
        let v4 = |last, port| word(&[10, 0, 0, last], port);
        let mapped = |last| {
            let mut octets = [0; 16];
            octets[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
            word(&octets, 80)
        };
        let loopback = || word(&[127, 0, 0, 1], 5);
        let v4_lines = [
            (v4(1, 22), v4(2, 40000), "01"),
            (v4(1, 22), v4(3, 40000), "06"),
            (loopback(), loopback(), "01"),
        ];
        put("proc/net/tcp", &v4_lines);
        put("proc/net/tcp6", &[(mapped(1), mapped(9), "01")]);
        let wanted = [("10.0.0.2:40000", "10.0.0.1:22"), ("10.0.0.9:80", "10.0.0.1:80")];
        let wanted =
            wanted.map(|(from, to)| Flow { from: from.parse().unwrap(), to: to.parse().unwrap() });
        assert_eq!(established(root.path()), wanted);
    }

    #[test]
    fn other_lines_are_none() {
        for line in ["", "0:", "0: 00:1 00:2 01", "0: 0100007F:zz 0100007F:0 01"] {
            assert_eq!(flow(line), None, "{line}");
        }
        // Without either file there are none.
        assert!(established(Path::new("/nosuch")).is_empty());
    }
}
