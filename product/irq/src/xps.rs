//! Which CPU sends by which queue (XPS): the send queue that belongs to a line follows that line to its
//! CPU. So what a CPU answers goes out by the queue of which the same CPU handles the interrupts.
//!
//! Left as they are: a queue that is assigned to no CPU, on a device that has not one send queue for
//! each queue that receives; a queue that the CPU uses already; a line that only sends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_journal::{JournalError, RestoredSetting, Session, SettingError};

use crate::decide::Move;
use crate::sysfs;

/// A send queue: the number of its device (`ifindex`), and its own. `ethtool -L` gives queues other
/// lines and lines other queues, and a device may get another name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Queue {
    device: String,
    number: u32,
}

/// The send queues that follow their lines.
#[derive(Debug, Default)]
pub(crate) struct SendQueues {
    /// Those that followed a line, by the line's number, with the file that was written.
    moved: BTreeMap<u32, (Queue, PathBuf)>,
    /// Those that another process has set since: they follow no more.
    left: BTreeSet<Queue>,
}

impl SendQueues {
    /// Has the send queue of a line that was moved follow it. That it cannot is no reason to move the
    /// line back.
    pub fn follow(
        &mut self,
        session: &mut Session,
        root: &Path,
        line: u32,
        step: &Move,
    ) -> Result<(), JournalError> {
        let following = following(root, line, &step.name, step.to);
        let following = following.filter(|(queue, ..)| !self.left.contains(queue));
        let Some((queue, file, mask)) = following else { return Ok(()) };
        match session.change_setting(&file, &mask) {
            Ok(true) => {
                // If another device had this name, the session has restored the queue of that device.
                self.moved.retain(|_, (_, known)| *known != file);
                self.moved.insert(line, (queue, file));
            }
            // It has that mask, as before the first move; or another process has set it since.
            Ok(false) => {
                self.moved.remove(&line);
                if sysfs::text(&file).is_some_and(|now| now != mask) {
                    self.left.insert(queue);
                }
            }
            Err(SettingError::Journal(why)) => return Err(why),
            Err(why) => tracing::debug!("{why}"),
        }
        Ok(())
    }

    /// Has the send queue of a line that is not moved any more be as it was before.
    pub fn restore(&mut self, session: &mut Session, line: u32) {
        let Some((queue, file)) = self.moved.remove(&line) else { return };
        match session.restore_setting(&file) {
            Ok(RestoredSetting::Kept { .. }) => {
                self.left.insert(queue);
            }
            Ok(_) => {}
            Err(why) => tracing::debug!("{why}"),
        }
    }
}

/// The send queue that belongs to a line, its file, and what is written to it to have this CPU use that
/// queue; `None`: it is left as it is.
fn following(root: &Path, line: u32, name: &str, cpu: u32) -> Option<(Queue, PathBuf, String)> {
    let devices = sysfs::devices(root);
    let device = devices.get(&line)?;
    let queue = sysfs::queue(name).filter(|_| sysfs::is_for_receiving(name))?;
    let directory = root.join("sys/class/net").join(device);
    let queues = directory.join("queues");
    let file = queues.join(format!("tx-{queue}/xps_cpus"));
    let queue = Queue { device: sysfs::text(&directory.join("ifindex"))?, number: queue };
    // A device with one send queue refuses to read it.
    let before = sysfs::text(&file)?;
    let now = sysfs::from_hex(&before)?;
    let of_device = devices.iter().filter(|(_, of_line)| *of_line == device);
    let receives =
        |line: u32| sysfs::name(root, line).is_some_and(|name| sysfs::is_for_receiving(&name));
    let is_paired =
        || of_device.filter(|(line, _)| receives(**line)).count() == send_queues(&queues);
    let is_left = now.contains(cpu) || (now.is_empty() && !is_paired());
    if is_left {
        return None;
    }
    Some((queue, file, mask_like(&before, cpu)?))
}

/// How many queues for sending are in this directory.
fn send_queues(queues: &Path) -> usize {
    let entries = fs::read_dir(queues).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("tx-")).count()
}

/// The mask of one CPU with as many digits as this mask has: the kernel prints it so, and what is read
/// later is compared with what was written. `None`: the mask has no place for the CPU.
fn mask_like(mask: &str, cpu: u32) -> Option<String> {
    let groups: Vec<&str> = mask.split(',').collect();
    let place = groups.len().checked_sub(1 + (cpu / 32) as usize)?;
    let group = |(number, digits): (usize, &&str)| {
        let bits = if number == place { 1_u32 << (cpu % 32) } else { 0 };
        let width = digits.len();
        Some(format!("{bits:0width$x}")).filter(|text| text.len() == width)
    };
    let groups: Option<Vec<String>> = groups.iter().enumerate().map(group).collect();
    groups.map(|groups| groups.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_the_digits_that_the_kernel_prints() {
        for (like, cpu, wanted) in [
            ("0", 1, Some("2")),
            ("f", 3, Some("8")),
            ("3", 4, None),
            ("00", 4, Some("10")),
            ("00000000,00000001", 33, Some("00000002,00000000")),
            ("00000000,00000001", 31, Some("00000000,80000000")),
            ("0,00000000", 35, Some("8,00000000")),
            ("00000000,00000001", 64, None),
        ] {
            assert_eq!(mask_like(like, cpu).as_deref(), wanted, "{like} {cpu}");
        }
    }

    /// A device with two queues, of which the lines are 30 and 31 for receiving, and 40 and 41 for
    /// sending; returns its directory.
    fn put_device(root: &Path, masks: [&str; 2]) -> PathBuf {
        let place = root.join("sys/devices/pci0/virtio0");
        let device = root.join("sys/class/net/eth0");
        fs::create_dir_all(&device).unwrap();
        for (line, name) in [(30, "input.0"), (31, "input.1"), (40, "output.0"), (41, "output.1")] {
            let about = root.join(format!("sys/kernel/irq/{line}"));
            fs::create_dir_all(&about).unwrap();
            fs::write(about.join("actions"), format!("virtio0-{name}\n")).unwrap();
            let listed = place.join("msi_irqs");
            fs::create_dir_all(&listed).unwrap();
            fs::write(listed.join(line.to_string()), "").unwrap();
        }
        std::os::unix::fs::symlink(&place, device.join("device")).unwrap();
        fs::write(device.join("ifindex"), "2\n").unwrap();
        for (queue, mask) in masks.iter().enumerate() {
            let queue = device.join(format!("queues/tx-{queue}"));
            fs::create_dir_all(&queue).unwrap();
            fs::write(queue.join("xps_cpus"), format!("{mask}\n")).unwrap();
        }
        device
    }

    #[test]
    fn the_send_queue_follows_the_line() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let device = put_device(root, ["0", "1"]);
        let file = |queue: u32| device.join(format!("queues/tx-{queue}/xps_cpus"));
        let of = |line, name: &str, cpu| {
            following(root, line, name, cpu).map(|(_, file, mask)| (file, mask))
        };
        // Assigned to another CPU, or to none on a device with a send queue for each line.
        assert_eq!(of(31, "virtio0-input.1", 1), Some((file(1), "2".to_owned())));
        assert_eq!(of(30, "virtio0-input.0", 2), Some((file(0), "4".to_owned())));
        // Its CPU uses it already; a line that only sends; one of no device; no such queue.
        assert_eq!(of(31, "virtio0-input.1", 0), None);
        assert_eq!(of(40, "virtio0-output.0", 1), None);
        assert_eq!(of(9, "ttyS0", 1), None);
        assert_eq!(of(30, "virtio0-input.7", 1), None);
        // More send queues than lines: only one that was assigned is.
        fs::create_dir_all(device.join("queues/tx-2")).unwrap();
        assert_eq!(of(30, "virtio0-input.0", 2), None);
        assert!(of(31, "virtio0-input.1", 1).is_some());
    }
}
