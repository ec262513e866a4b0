//! How `evenkeel irq status` shows by which queues network cards receive.

use evenkeel_irq::Device;
use evenkeel_journal::buckets_by_queue;

use crate::wrap::wrapped;

/// Width of the lines, in columns.
const WIDTH: usize = 80;
/// Devices without a table that are named: there may be one for each container.
const NAMED: usize = 12;

/// The queues of each device, how many buckets lead to each, and the hash function; and which devices
/// have no indirection table. Without devices, no line.
pub fn lines(devices: &[Device]) -> Vec<String> {
    if devices.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["Receive queues of network cards (RSS):".to_owned()];
    let (with, without): (Vec<&Device>, Vec<&Device>) =
        devices.iter().partition(|device| !device.table.is_empty());
    for device in with {
        let queues = match device.queues {
            Some(1) => "1 queue".to_owned(),
            Some(queues) => format!("{queues} queues"),
            None => "an unknown number of queues".to_owned(),
        };
        let hash = device.hash.as_deref().unwrap_or("unknown");
        let (name, buckets) = (&device.name, device.table.len());
        let text = format!(
            "    {name}: {queues}, hash {hash}, {buckets} buckets, by queue: {}",
            buckets_by_queue(&device.table)
        );
        lines.extend(wrapped(&text, WIDTH));
    }
    if !without.is_empty() {
        let names = without.iter().take(NAMED).map(|device| device.name.as_str());
        let mut names = names.collect::<Vec<_>>().join(", ");
        if without.len() > NAMED {
            names += &format!(" and {} more", without.len() - NAMED);
        }
        lines.extend(wrapped(&format!("    without an indirection table: {names}"), WIDTH));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, table: &[u32]) -> Device {
        Device {
            name: name.to_owned(),
            queues: (!table.is_empty()).then_some(2),
            hash: (!table.is_empty()).then(|| "toeplitz".to_owned()),
            table: table.to_vec(),
            ..Device::default()
        }
    }

    #[test]
    fn each_card_has_its_queues_and_a_device_without_a_table_is_no_error() {
        let shown =
            lines(&[device("eth0", &[0, 1, 0, 0]), device("lo", &[]), device("veth0", &[])]);
        let wanted = [
            "Receive queues of network cards (RSS):",
            "    eth0: 2 queues, hash toeplitz, 4 buckets, by queue: 0: 3, 1: 1",
            "    without an indirection table: lo, veth0",
        ];
        assert_eq!(shown, wanted);
        assert!(lines(&[]).is_empty());
    }

    #[test]
    fn a_machine_with_many_containers_has_few_lines() {
        let devices: Vec<Device> =
            (0..100).map(|number| device(&format!("veth{number}"), &[])).collect();
        let shown = lines(&devices);
        assert!(shown.len() < 5 && shown.last().unwrap().ends_with("and 88 more"), "{shown:#?}");
        assert!(shown.iter().all(|line| line.chars().count() <= WIDTH), "{shown:#?}");
    }
}
