//! How the cards of network devices spread packets over their queues: what the kernel says of each
//! device. A device without an indirection table is a normal answer.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use evenkeel_journal::ethtool::{self, HashFunction, Rss};

use crate::connections;
use crate::snapshot::{Device, Snapshot};
use crate::sysfs;
use crate::toeplitz::Flow;

/// Where /sys has devices, those of one network namespace.
const DEVICES: &str = "/sys/class/net";
/// The kernel's own key.
const KEY: &str = "/proc/sys/net/core/netdev_rss_key";

/// All devices of this network namespace, by name.
pub(crate) fn all() -> Vec<Device> {
    let entries = fs::read_dir(DEVICES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    read(&names.filter(|name| is_here(name)).collect())
}

/// The devices that sources of a snapshot belong to.
pub(crate) fn of(snapshot: &Snapshot) -> Vec<Device> {
    let with_queue = snapshot.sources.iter().filter(|source| source.queue.is_some());
    let names = with_queue.filter_map(|source| source.device.clone());
    read(&names.filter(|name| is_here(name)).collect())
}

/// Whether /sys has this name for the device that the ioctl has it for: /sys may show another network
/// namespace.
fn is_here(name: &str) -> bool {
    let index = sysfs::text(&Path::new(DEVICES).join(name).join("ifindex"));
    index.is_some_and(|index| index.parse().ok() == ethtool::index(name))
}

fn read(names: &BTreeSet<String>) -> Vec<Device> {
    names.iter().map(|name| device(name, rss(name))).collect()
}

fn rss(name: &str) -> Option<Rss> {
    ethtool::rss(name).unwrap_or_else(|why| {
        tracing::debug!("{why}");
        None
    })
}

fn device(name: &str, rss: Option<Rss>) -> Device {
    Device {
        name: name.to_owned(),
        queues: ethtool::receive_queues(name).ok().flatten(),
        hash: rss.as_ref().map(|rss| rss.hash.to_string()),
        table: rss.map(|rss| rss.table).unwrap_or_default(),
        connections: Default::default(),
    }
}

/// Adds which buckets the TCP connections of this host are in, where the card hashes by Toeplitz.
pub(crate) fn add_connections(devices: &mut [Device]) {
    if devices.iter().all(|device| device.table.is_empty()) {
        return;
    }
    let flows = connections::established(Path::new("/"));
    for device in devices.iter_mut().filter(|device| !device.table.is_empty()) {
        if let Some(rss) = rss(&device.name).filter(|rss| rss.table.len() == device.table.len()) {
            count(device, &rss, &flows);
        }
    }
}

fn count(device: &mut Device, rss: &Rss, flows: &[Flow]) {
    if rss.hash != HashFunction::Toeplitz || rss.transformation != 0 {
        return;
    }
    // A driver that tells no key has that which the kernel gives to all that ask it for one.
    let of_kernel = if rss.key.is_empty() { key_of_kernel() } else { Vec::new() };
    let key = if rss.key.is_empty() { &of_kernel } else { &rss.key };
    for bucket in flows.iter().filter_map(|flow| flow.bucket(key, rss.table.len())) {
        *device.connections.entry(bucket).or_default() += 1;
    }
}

/// The key in hexadecimal with colons that the kernel has made for its drivers; empty: none.
fn key_of_kernel() -> Vec<u8> {
    let text = fs::read_to_string(KEY).unwrap_or_default();
    parse_key(text.trim())
}

fn parse_key(text: &str) -> Vec<u8> {
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let key: Vec<u8> = bytes.collect::<Result<_, _>>().unwrap_or_default();
    // Zeros: no driver has asked for it.
    if key.iter().all(|byte| *byte == 0) { Vec::new() } else { key }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_table_is_there_all_the_same() {
        let devices = read(&["lo".to_owned(), "nosuch0".to_owned()].into());
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["lo", "nosuch0"]);
        for device in devices {
            assert_eq!((device.queues, device.hash), (None, None));
            assert!(device.table.is_empty() && device.connections.is_empty());
        }
    }

    #[test]
    fn a_name_that_is_no_device_is_not_here() {
        assert!(is_here("lo") && !is_here("nosuch0") && !is_here("."));
        assert!(all().iter().any(|device| device.name == "lo"));
    }

    #[test]
    fn connections_are_counted_only_where_their_hash_is_known() {
        let address = |text: &str| text.parse().unwrap();
        let flow = Flow { from: address("10.0.0.2:40000"), to: address("10.0.0.1:22") };
        let known = Rss {
            hash: HashFunction::Toeplitz,
            transformation: 0,
            key: (0..40).collect(),
            table: vec![0, 1, 0, 1],
        };
        let counted = |rss: &Rss| {
            let mut device = device("nosuch0", Some(rss.clone()));
            count(&mut device, rss, &[flow, flow]);
            device.connections
        };
        let bucket = flow.bucket(&known.key, 4).unwrap();
        assert_eq!(counted(&known), [(bucket, 2)].into());
        assert!(counted(&Rss { hash: HashFunction::Xor, ..known.clone() }).is_empty());
        assert!(counted(&Rss { transformation: 1, ..known.clone() }).is_empty());
        assert!(counted(&Rss { key: vec![1; 15], ..known }).is_empty());
    }

    #[test]
    fn the_kernels_key_is_hexadecimal_with_colons() {
        assert_eq!(parse_key("0a:ff:00"), [10, 255, 0]);
        for none in ["", "00:00:00", "0a:x"] {
            assert!(parse_key(none).is_empty(), "{none}");
        }
    }
}
