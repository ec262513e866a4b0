//! Where the files of a network device are: those below /sys/class/net. A device is known by its number
//! (`ifindex`): it may get another name, and another device its name. This file only looks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where sysfs has network devices, those of one network namespace: below `/`, or a test's own root.
const DEVICES: &str = "sys/class/net";

/// The directory of the device that this file belongs to; `None`: it belongs to none.
fn directory(file: &Path) -> Option<&Path> {
    let mut places = file.ancestors().skip(1);
    places.find(|place| place.parent().is_some_and(|devices| devices.ends_with(DEVICES)))
}

/// The number of the device that has this directory now.
fn number(directory: &Path) -> Option<u32> {
    fs::read_to_string(directory.join("ifindex")).ok()?.trim().parse().ok()
}

/// The number of the device that this file belongs to now; `None`: it belongs to none.
pub(crate) fn index_of(file: &Path) -> Option<u32> {
    number(directory(file)?)
}

/// A file without the name of its device: the directory of all devices, and the path below that of its
/// own. A file that belongs to no device stays as it is.
pub(crate) fn without_name(file: &Path) -> (&Path, &Path) {
    let parts = directory(file).and_then(|device| {
        let below = file.strip_prefix(device).ok()?;
        Some((device.parent()?, below))
    });
    parts.unwrap_or((file, Path::new("")))
}

/// This file by the name that the device of this number has now; `None`: there is no such device here.
///
/// # Errors
/// The devices cannot be listed, or a number cannot be read.
pub(crate) fn find_file(file: &Path, index: u32) -> io::Result<Option<PathBuf>> {
    if index_of(file) == Some(index) {
        return Ok(Some(file.to_owned()));
    }
    let (devices, below) = without_name(file);
    // Renamed while they were listed, it may be missed once.
    for _ in 0..2 {
        for entry in fs::read_dir(devices)? {
            let directory = entry?.path();
            match fs::read_to_string(directory.join("ifindex")) {
                Ok(text) if text.trim().parse() == Ok(index) => {
                    return Ok(Some(directory.join(below)));
                }
                Ok(_) => {}
                // It went meanwhile, or is no device.
                Err(why) if is_none(&why) => {}
                Err(why) => return Err(why),
            }
        }
    }
    Ok(None)
}

/// Whether reading a number failed because there is no device.
fn is_none(why: &io::Error) -> bool {
    matches!(why.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENODEV))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_the_number_of_its_device() {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("sys/class/net");
        for (name, index) in [("eth0", "2\n"), ("lan0", "3\n"), ("odd", "none\n")] {
            fs::create_dir_all(devices.join(name)).unwrap();
            fs::write(devices.join(name).join("ifindex"), index).unwrap();
        }
        // As of the bonding driver.
        fs::write(devices.join("bonding_masters"), "\n").unwrap();
        let knob = |name: &str| devices.join(name).join("queues/tx-0/xps_cpus");
        let index = |name: &str| index_of(&knob(name));
        assert_eq!((index("eth0"), index("lan0")), (Some(2), Some(3)));
        assert_eq!((index("odd"), index("gone"), index("bonding_masters")), (None, None, None));
        let find = |name: &str, index| find_file(&knob(name), index).unwrap();
        assert_eq!(find("eth0", 2), Some(knob("eth0")));
        assert_eq!(find("eth0", 3), Some(knob("lan0")));
        assert_eq!(find("gone", 3), Some(knob("lan0")));
        assert_eq!(find("eth0", 4), None);
        // That the devices cannot be listed does not tell that one is gone.
        let elsewhere = root.path().join("no/sys/class/net/eth0/queues/tx-0/xps_cpus");
        assert!(find_file(&elsewhere, 2).is_err());
    }

    #[test]
    fn a_file_of_no_device_has_no_number() {
        for file in ["/proc/sys/net/core/rps_sock_flow_entries", "/sys/class/net/eth0", "x", ""] {
            let file = Path::new(file);
            assert_eq!((index_of(file), without_name(file)), (None, (file, Path::new(""))));
        }
        let file = Path::new("/sys/class/net/eth0/queues/tx-0/xps_cpus");
        let parts = (Path::new("/sys/class/net"), Path::new("queues/tx-0/xps_cpus"));
        assert_eq!(without_name(file), parts);
    }
}
