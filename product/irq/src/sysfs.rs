//! What /proc and /sys say of interrupt lines: affinity, name, counts, and the network device that a
//! line belongs to.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use evenkeel_machine::CpuSet;

use crate::totals::{LineTotals, PerCpu};

/// How many directories above a network device its lines may be listed: virtio and USB devices hang
/// below the device that has them.
const MAX_PARENTS: usize = 3;

/// An interrupt line with a handler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// The names of its handlers.
    pub name: String,
    /// Its affinity.
    pub mask: CpuSet,
    pub effective: CpuSet,
    /// What its driver asked for; empty: nothing.
    pub hint: CpuSet,
    /// Not even root may set the affinity. Kernels until 6.13 show that only when it is tried.
    pub managed: bool,
}

impl Line {
    /// The online CPUs that the line may be moved to. A mask that is the driver's own hint restricts
    /// nothing, any other does: an administrator set it.
    pub fn allowed(&self, online: &CpuSet) -> CpuSet {
        if self.mask == self.hint { online.clone() } else { self.mask.intersection(online) }
    }
}

/// Of these lines, those that have a handler.
pub(crate) fn some_lines(
    root: &Path,
    numbers: impl IntoIterator<Item = u32>,
) -> BTreeMap<u32, Line> {
    numbers.into_iter().filter_map(|number| Some((number, line(root, number)?))).collect()
}

/// The lines that have a handler, by number.
pub(crate) fn lines(root: &Path) -> BTreeMap<u32, Line> {
    let entries = fs::read_dir(root.join("proc/irq")).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    some_lines(root, numbers)
}

fn line(root: &Path, number: u32) -> Option<Line> {
    let name = name(root, number)?;
    let directory = root.join(format!("proc/irq/{number}"));
    let list = |file: &str| -> CpuSet {
        text(&directory.join(file)).and_then(|list| list.parse().ok()).unwrap_or_default()
    };
    let mask_file = directory.join("smp_affinity_list");
    let mode = fs::metadata(&mask_file).ok()?.permissions().mode();
    Some(Line {
        name,
        mask: list("smp_affinity_list"),
        effective: list("effective_affinity_list"),
        hint: text(&directory.join("affinity_hint"))
            .and_then(|mask| from_hex(&mask))
            .unwrap_or_default(),
        managed: mode & 0o200 == 0,
    })
}

/// A mask as the kernel writes it: groups of 32 bits in hexadecimal, the last CPUs first.
pub(crate) fn from_hex(mask: &str) -> Option<CpuSet> {
    let mut cpus = CpuSet::new();
    for (group, digits) in (0..).zip(mask.split(',').rev()) {
        let bits = u32::from_str_radix(digits, 16).ok()?;
        (0..32).filter(|bit| bits & (1 << bit) != 0).for_each(|bit| cpus.insert(group * 32 + bit));
    }
    Some(cpus)
}

/// The CPUs that are online.
pub(crate) fn online(root: &Path) -> Option<CpuSet> {
    text(&root.join("sys/devices/system/cpu/online"))?.parse().ok()
}

/// How often each line interrupted each CPU, since boot: what is known without BPF.
pub(crate) fn counts(root: &Path) -> BTreeMap<u32, LineTotals> {
    let entries = fs::read_dir(root.join("sys/kernel/irq")).into_iter().flatten().flatten();
    let read = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let counts = text(&entry.path().join("per_cpu_count"))?;
        let interrupts = counts.split(',').map(|count| count.parse().unwrap_or(0)).collect();
        Some((number, LineTotals { interrupts, ns: PerCpu::default() }))
    };
    entries.filter_map(read).collect()
}

/// How often NET_RX ran on each CPU, since boot.
pub(crate) fn net_rx(root: &Path) -> PerCpu {
    let table = fs::read_to_string(root.join("proc/softirqs")).unwrap_or_default();
    let row = table.lines().find_map(|line| line.trim_start().strip_prefix("NET_RX:"));
    row.unwrap_or_default().split_whitespace().map(|count| count.parse().unwrap_or(0)).collect()
}

/// The network device of each line, in this network namespace.
pub fn devices(root: &Path) -> BTreeMap<u32, String> {
    let mut devices: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let entries = fs::read_dir(root.join("sys/class/net")).into_iter().flatten().flatten();
    for entry in entries {
        let Ok(device) = entry.path().join("device").canonicalize() else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        let places = device.ancestors().take(MAX_PARENTS).map(|place| place.join("msi_irqs"));
        let found: Option<PathBuf> = places.into_iter().find(|place| place.is_dir());
        let lines =
            found.and_then(|place| fs::read_dir(place).ok()).into_iter().flatten().flatten();
        for line in lines.filter_map(|line| line.file_name().to_str()?.parse::<u32>().ok()) {
            devices.entry(line).or_default().push(name.clone());
        }
    }
    let of_line = |(line, names)| Some((line, device_of(root, line, names)?));
    devices.into_iter().filter_map(of_line).collect()
}

/// The device of a line that these list. Devices of one card list the same lines: then it is the one in
/// the line's name, and without that it is not known.
fn device_of(root: &Path, line: u32, mut names: Vec<String>) -> Option<String> {
    if names.len() > 1 {
        let line = format!("-{}", name(root, line)?);
        names.retain(|device| line.contains(&format!("-{device}-")));
    }
    names.pop().filter(|_| names.is_empty())
}

/// The queue that a handler's name ends with: 3 for `eth0-TxRx-3`, `virtio2-input.3` and
/// `mlx5_comp3@pci:0000:01:00.0`. A handler by which the driver programs the card, as
/// `i40e-0000:3b:00.0:fdir-TxRx-0` and `ice-0000:3b:00.0:ctrl-TxRx-0` are, has none, though its name
/// ends with the number of one.
pub fn queue(name: &str) -> Option<u32> {
    if [":fdir-", ":ctrl-"].iter().any(|part| name.contains(part)) {
        return None;
    }
    let name = name.split('@').next()?;
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (before, number) = name.split_at(name.len() - digits);
    // The number of `eth0` is the device's.
    let is_of_queue = before.ends_with(['-', '.']) || before.ends_with("comp");
    number.parse().ok().filter(|_| is_of_queue)
}

/// Whether a handler with this name is for a queue that receives: not for one that only sends, as
/// `virtio2-output.3` and `eth0-tx-3` are. `ens5-Tx-Rx-3` is for both.
pub(crate) fn is_for_receiving(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_for_sending =
        name.contains("output") || (name.contains("-tx-") && !name.contains("-rx"));
    queue(&name).is_some() && !is_for_sending
}

/// The names of the handlers of a line; `None`: it has none.
pub(crate) fn name(root: &Path, number: u32) -> Option<String> {
    text(&root.join(format!("sys/kernel/irq/{number}/actions"))).filter(|name| !name.is_empty())
}

pub(crate) fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn a_hint_of_the_driver_restricts_nothing() {
        let line = |mask: &str, hint: CpuSet| Line { mask: cpus(mask), hint, ..Line::default() };
        let allowed = |line: Line| line.allowed(&cpus("0-3"));
        assert_eq!(allowed(line("2", cpus("2"))), cpus("0-3"));
        assert_eq!(allowed(line("2", cpus("0-3"))), cpus("2"));
        assert_eq!(allowed(line("2-5", CpuSet::new())), cpus("2-3"));
    }

    #[test]
    fn masks_are_read_from_their_end() {
        assert_eq!(from_hex("00000001,80000003"), Some(cpus("0-1,31-32")));
        assert_eq!(from_hex("0"), Some(CpuSet::new()));
        assert_eq!(from_hex("x"), None);
    }

    #[test]
    fn a_queue_is_what_a_name_ends_with() {
        for (name, number) in [
            ("virtio2-input.3", Some(3)),
            ("eth0-TxRx-12", Some(12)),
            ("eth0", None),
            ("x-config", None),
            ("i40e-0000:3b:00.0:fdir-TxRx-0", None),
            ("i40e-eth0-TxRx-0", Some(0)),
        ] {
            assert_eq!(queue(name), number, "{name}");
        }
        assert_eq!(queue("mlx5_comp3@pci:0000:01:00.0"), Some(3));
    }

    #[test]
    fn lines_for_sending_alone_are_told_by_their_names() {
        for name in
            ["virtio2-input.3", "eth0-TxRx-1", "ens5-Tx-Rx-0", "eth0-rx-2", "mlx5_comp3@pci:1"]
        {
            assert!(is_for_receiving(name), "{name}");
        }
        for name in ["virtio2-output.3", "eth0-tx-2", "virtio2-config", "eth0"] {
            assert!(!is_for_receiving(name), "{name}");
        }
        for name in ["i40e-0000:3b:00.0:fdir-TxRx-0", "ice-0000:3b:00.0:ctrl-TxRx-0"] {
            assert!(!is_for_receiving(name), "{name}");
        }
        assert!(is_for_receiving("i40e-eth0-TxRx-0"));
    }

    #[test]
    fn of_the_devices_of_one_card_a_line_has_that_which_its_name_says() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let card = root.join("sys/devices/pci0/0000:3b:00.0");
        fs::create_dir_all(card.join("msi_irqs")).unwrap();
        for (line, name) in [(30, "ice-eth1-TxRx-0"), (31, "mlx5_comp0@pci:1"), (32, "eth10-1")] {
            fs::write(card.join(format!("msi_irqs/{line}")), "").unwrap();
            fs::create_dir_all(root.join(format!("sys/kernel/irq/{line}"))).unwrap();
            fs::write(root.join(format!("sys/kernel/irq/{line}/actions")), name).unwrap();
        }
        let put_device = |name: &str| {
            let device = root.join("sys/class/net").join(name);
            fs::create_dir_all(&device).unwrap();
            std::os::unix::fs::symlink(&card, device.join("device")).unwrap();
        };
        put_device("eth1");
        let all = [30, 31, 32].map(|line| (line, "eth1".to_owned()));
        assert_eq!(devices(root), all.into());
        // Ports of one card, or representors of its virtual functions.
        put_device("eth0");
        put_device("eth10");
        let named = [(30, "eth1".to_owned()), (32, "eth10".to_owned())];
        assert_eq!(devices(root), named.into());
    }

    #[test]
    fn lines_are_read_with_what_the_kernel_refuses() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        };
        put("sys/kernel/irq/36/actions", "virtio1-req.0\n");
        put("sys/kernel/irq/36/per_cpu_count", "3,65\n");
        let managed = put("proc/irq/36/smp_affinity_list", "0-1\n");
        fs::set_permissions(&managed, fs::Permissions::from_mode(0o444)).unwrap();
        put("proc/irq/36/effective_affinity_list", "1\n");
        put("sys/devices/system/cpu/online", "0-2\n");
        // Without a handler it interrupts no CPU.
        put("sys/kernel/irq/37/actions", "\n");
        put("proc/irq/37/smp_affinity_list", "0-1\n");
        put("proc/softirqs", "        CPU0 CPU1\n  NET_TX:  4  0\n  NET_RX:  15  23\n");
        let lines = lines(root.path());
        assert_eq!(lines.len(), 1);
        let line = &lines[&36];
        assert!(line.managed && line.name == "virtio1-req.0", "{line:?}");
        assert_eq!((line.mask.clone(), line.effective.clone()), (cpus("0-1"), cpus("1")));
        assert_eq!(counts(root.path())[&36].interrupts, [3, 65].into_iter().collect());
        assert_eq!(online(root.path()), Some(cpus("0-2")));
        assert_eq!(net_rx(root.path()), [15, 23].into_iter().collect());
    }
}
