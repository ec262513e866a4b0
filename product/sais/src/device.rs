//! A network device, and what native XDP would lose on it.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;

/// Why there is no such device, or nothing to be learnt of it.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The name is no device of this network namespace.
    #[error("{name}: no such network device in this network namespace; `ip link` lists them")]
    NotFound {
        /// What was asked for.
        name: String,
    },
    /// The kernel refused.
    #[error("{name}: {what}: {source}")]
    System {
        /// The device.
        name: String,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// A device of the network namespace that the process is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: i32,
    /// The kernel's name of the namespace, which no other namespace has until the next boot.
    pub netns_cookie: u64,
    /// Its driver; empty where it tells none.
    pub driver: String,
    /// The longest packet that it sends, in bytes.
    pub mtu: u32,
    /// Whether it takes VLAN tags out of packets and passes them on beside them.
    pub strips_vlan: bool,
}

/// Where sysfs has devices, those of one network namespace.
const DEVICES: &str = "/sys/class/net";

/// linux/ethtool.h: what is asked by `SIOCETHTOOL`.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

impl Device {
    /// Finds a device by its name.
    ///
    /// # Errors
    /// All of [`DeviceError`].
    pub fn find(name: &str) -> Result<Self, DeviceError> {
        let index =
            if_nametoindex(name).map_err(|_| DeviceError::NotFound { name: name.to_owned() })?;
        let system =
            |what| move |source| DeviceError::System { name: name.to_owned(), what, source };
        let socket = UdpSocket::bind(("0.0.0.0", 0)).map_err(system("opening a socket"))?;
        let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        let mut flags = Value { command: ETHTOOL_GFLAGS, data: 0 };
        // Devices need not know either: then there is nothing to be careful of.
        let has_driver = ethtool(&socket, name, &mut info).is_ok();
        let has_flags = ethtool(&socket, name, &mut flags).is_ok();
        let length = info.driver.iter().position(|byte| *byte == 0).unwrap_or(info.driver.len());
        let driver = String::from_utf8_lossy(&info.driver[..length]).into_owned();
        Ok(Self {
            name: name.to_owned(),
            index: index as i32,
            mtu: mtu(&socket, name).map_err(|why| system("asking for its MTU")(why.into()))?,
            netns_cookie: netns_cookie(&socket).map_err(system("asking for its namespace"))?,
            driver: if has_driver { driver } else { String::new() },
            strips_vlan: has_flags && flags.data & ETH_FLAG_RXVLAN != 0,
        })
    }

    /// Whether it still is there, by the same name.
    pub fn is_there(&self) -> bool {
        if_nametoindex(self.name.as_str()).is_ok_and(|index| index as i32 == self.index)
    }

    /// The receive queues of which the kernel hands packets on to CPUs of its own choice (RPS), as
    /// files of sysfs: also those that were steered. Empty where that cannot be told, because /sys
    /// shows another network namespace.
    pub fn queues_with_rps(&self) -> Vec<PathBuf> {
        self.queues_with_rps_below(Path::new(DEVICES))
    }

    fn queues_with_rps_below(&self, devices: &Path) -> Vec<PathBuf> {
        let mut queues = self.queue_knobs_below(devices, "rps_cpus");
        queues.retain(|file| {
            // A mask in hexadecimal, with commas: any digit but 0 is a CPU.
            let mask = fs::read_to_string(file).unwrap_or_default();
            mask.trim().chars().any(|digit| digit != '0' && digit != ',')
        });
        queues
    }

    /// The knob of this name of each receive queue, as files of sysfs. Empty where there is none, or
    /// where /sys shows another network namespace.
    pub fn queue_knobs(&self, knob: &str) -> Vec<PathBuf> {
        self.queue_knobs_below(Path::new(DEVICES), knob)
    }

    fn queue_knobs_below(&self, devices: &Path, knob: &str) -> Vec<PathBuf> {
        let Some(device) = self.directory(devices) else { return Vec::new() };
        let queues = fs::read_dir(device.join("queues")).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> =
            queues.map(|queue| queue.path().join(knob)).filter(|file| file.exists()).collect();
        files.sort();
        files
    }

    /// What packets would lose in native mode, where they are sent on as plain bytes; `None`:
    /// nothing. Nearly every card takes VLAN tags out of packets; they are missed only where a device
    /// above the card reads them.
    pub fn native_loss(&self) -> Option<String> {
        self.native_loss_below(Path::new(DEVICES))
    }

    fn native_loss_below(&self, devices: &Path) -> Option<String> {
        if self.driver == "veth" {
            return Some(
                "its peer leaves checksums to be made later, and native XDP would forget that \
                 (`ethtool -K PEER tx off` makes them at once)"
                    .to_owned(),
            );
        }
        if !self.strips_vlan {
            return None;
        }
        let missed_by = match self.devices_above(devices) {
            Some(above) if above.is_empty() => return None,
            Some(above) => above.join(", "),
            None => {
                "a device above it, if there is one: /sys shows another network namespace".into()
            }
        };
        Some(format!(
            "it takes VLAN tags out of packets, and native XDP would lose them to {missed_by} (`ethtool \
             -K {} rxvlan off` leaves them in)",
            self.name
        ))
    }

    /// The devices that see the packets of this one: VLANs, bridges, bonds. `None` where that cannot be
    /// told, because /sys shows another network namespace.
    fn devices_above(&self, devices: &Path) -> Option<Vec<String>> {
        let entries = fs::read_dir(self.directory(devices)?).ok()?;
        let above = entries.flatten().filter_map(|entry| {
            entry.file_name().to_str()?.strip_prefix("upper_").map(str::to_owned)
        });
        let mut above: Vec<String> = above.collect();
        above.sort();
        Some(above)
    }

    /// Its directory, if /sys shows its network namespace.
    fn directory(&self, devices: &Path) -> Option<PathBuf> {
        let directory = devices.join(&self.name);
        let index = fs::read_to_string(directory.join("ifindex")).ok()?;
        (index.trim().parse() == Ok(self.index)).then_some(directory)
    }
}

/// A request about a device; its name was found, so that it fits with its terminating zero.
fn request_about(name: &str) -> libc::ifreq {
    // SAFETY: all of its fields may be zero.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in asked.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    asked
}

fn mtu(socket: &UdpSocket, name: &str) -> Result<u32, Errno> {
    let mut asked = request_about(name);
    // SAFETY: the request outlives the call.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &mut asked) })?;
    // SAFETY: this request fills in this member.
    Ok(unsafe { asked.ifr_ifru.ifru_mtu }.try_into().unwrap_or(0))
}

/// linux/ethtool.h: switches off what has packets leave in one piece, to be cut later.
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;

/// Has a device pass on each packet by itself, as a wire does.
pub(crate) fn send_single_segments(socket: &UdpSocket, name: &str) -> Result<(), Errno> {
    for command in [ETHTOOL_STSO, ETHTOOL_SGSO] {
        ethtool(socket, name, &mut Value { command, data: 0 })?;
    }
    Ok(())
}

/// Sets the longest packet of a device, in bytes.
pub(crate) fn set_mtu(socket: &UdpSocket, name: &str, bytes: u32) -> Result<(), Errno> {
    let mut asked = request_about(name);
    asked.ifr_ifru.ifru_mtu = bytes as libc::c_int;
    // SAFETY: the request outlives the call.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFMTU, &mut asked) })
        .map(drop)
}

/// Sets a device up.
pub(crate) fn bring_up(socket: &UdpSocket, name: &str) -> Result<(), Errno> {
    let mut asked = request_about(name);
    asked.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the request outlives the call.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &mut asked) })
        .map(drop)
}

fn ethtool<T>(socket: &UdpSocket, name: &str, request: &mut T) -> Result<(), Errno> {
    let mut asked = request_about(name);
    asked.ifr_ifru.ifru_data = std::ptr::from_mut(request).cast();
    // SAFETY: the request outlives the call, and is laid out as its command says.
    Errno::result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut asked) })
        .map(drop)
}

fn netns_cookie(socket: &UdpSocket) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` has room for `length` bytes.
    Errno::result(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut length,
        )
    })?;
    Ok(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_found() {
        let device = Device::find("lo").unwrap();
        assert!(device.index > 0 && device.netns_cookie > 0 && device.mtu > 0, "{device:?}");
        assert_eq!(device.native_loss(), None);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let why = Device::find("nosuch0").unwrap_err().to_string();
        let wanted =
            "nosuch0: no such network device in this network namespace; `ip link` lists them";
        assert_eq!(why, wanted);
    }

    #[test]
    fn queues_with_rps_are_found() {
        let root = tempfile::tempdir().unwrap();
        let device = Device {
            name: "eth0".into(),
            index: 7,
            netns_cookie: 1,
            driver: String::new(),
            mtu: 1500,
            strips_vlan: false,
        };
        for (queue, mask) in [("rx-0", "0\n"), ("rx-1", "00000000,00000010\n"), ("rx-2", "0,0\n")] {
            let queue = root.path().join("eth0/queues").join(queue);
            fs::create_dir_all(&queue).unwrap();
            fs::write(queue.join("rps_cpus"), mask).unwrap();
        }
        // Queues for sending have no such file.
        fs::create_dir_all(root.path().join("eth0/queues/tx-0")).unwrap();
        let found = |index: &str| {
            fs::write(root.path().join("eth0/ifindex"), index).unwrap();
            device.queues_with_rps_below(root.path())
        };
        assert_eq!(found("7\n"), [root.path().join("eth0/queues/rx-1/rps_cpus")]);
        // A device of this name in another namespace.
        assert!(found("8\n").is_empty());
    }

    #[test]
    fn native_mode_is_avoided_where_packets_would_lose_something() {
        let device = |driver: &str, strips_vlan| Device {
            name: "eth0".into(),
            index: 1,
            netns_cookie: 1,
            driver: driver.into(),
            mtu: 1500,
            strips_vlan,
        };
        let root = tempfile::tempdir().unwrap();
        let eth0 = root.path().join("eth0");
        let loss =
            |driver: &str, strips_vlan| device(driver, strips_vlan).native_loss_below(root.path());
        // Whether a device above misses the tags cannot be seen.
        assert!(loss("ice", true).unwrap().contains("another network namespace"));
        fs::create_dir(&eth0).unwrap();
        fs::write(eth0.join("ifindex"), "1\n").unwrap();
        assert!(loss("veth", false).unwrap().contains("tx off"));
        assert_eq!((loss("ice", false), loss("ice", true)), (None, None));
        fs::create_dir(eth0.join("upper_eth0.7")).unwrap();
        let why = loss("ice", true).unwrap();
        assert!(why.contains("lose them to eth0.7 (`ethtool -K eth0 rxvlan off`"), "{why}");
        assert_eq!(loss("ice", false), None);
    }
}
