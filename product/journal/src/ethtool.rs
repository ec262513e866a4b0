//! What the kernel says of a network card's receive queues by the ethtool ioctl (linux/ethtool.h): how
//! many there are, by which function and key packets are hashed, and which queue each hash leads to
//! (the RSS indirection table). The table can be set; whether the driver kept it is read again.
//!
//! Most virtual devices have no table: that is an answer, not an error. This file keeps no journal:
//! use [`crate::Session::change_table`] to change a table.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use nix::net::if_::{if_indextoname, if_nametoindex};

const ETHTOOL_GRXRINGS: u32 = 0x2d;
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
/// `hfunc` when a table is set: the hash function stays.
const ETH_RSS_HASH_NO_CHANGE: u8 = 0;

/// Tables with more buckets are left alone: an entry of the journal has three tables.
const MAX_BUCKETS: u32 = 8192;
/// The kernel's own limit is far below.
const MAX_KEY_BYTES: u32 = 1024;
/// Words of `struct ethtool_rxfh` before the table.
const HEAD_WORDS: usize = 6;

/// Why a table is not read or not set. It is as before then, but for [`EthtoolError::NotTaken`].
#[derive(Debug, thiserror::Error)]
pub enum EthtoolError {
    /// ENODEV: there is no such device.
    #[error("{device}: no such network device in this network namespace; `ip link` lists them")]
    Gone {
        /// The device.
        device: String,
    },
    /// EPERM: the caller has no CAP_NET_ADMIN.
    #[error(
        "{device}: only root may set its RSS indirection table: run it as root (CAP_NET_ADMIN)"
    )]
    Forbidden {
        /// The device.
        device: String,
    },
    /// EOPNOTSUPP, when a table is set.
    #[error(
        "{device}: its driver takes no RSS indirection table: move the interrupt lines of its queues \
         instead"
    )]
    Fixed {
        /// The device.
        device: String,
    },
    /// The driver accepted a table, and has another one.
    #[error(
        "{device}: its driver accepted an RSS indirection table without using it: move the interrupt \
         lines of its queues instead"
    )]
    NotTaken {
        /// The device.
        device: String,
    },
    /// Anything else.
    #[error("{device}: {what}: {source}; compare `ethtool -x {device}`")]
    Refused {
        /// The device.
        device: String,
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// The functions by which a card can hash packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashFunction {
    /// Toeplitz, with a key.
    Toeplitz,
    /// The exclusive or of the fields.
    Xor,
    /// CRC-32.
    Crc32,
    /// Another one, or none that the driver tells.
    Other,
}

impl HashFunction {
    /// Of `hfunc`, a bit each.
    fn of(bits: u8) -> Self {
        match bits {
            1 => Self::Toeplitz,
            2 => Self::Xor,
            4 => Self::Crc32,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for HashFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Toeplitz => "toeplitz",
            Self::Xor => "xor",
            Self::Crc32 => "crc32",
            Self::Other => "unknown",
        })
    }
}

/// How a card spreads packets over its receive queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rss {
    /// The function.
    pub hash: HashFunction,
    /// What is done to the fields before they are hashed (`RXH_XFRM_*`); 0: nothing.
    pub transformation: u8,
    /// The key of the function, in bytes; empty: the driver tells none.
    pub key: Vec<u8>,
    /// The queue of each bucket. A packet's bucket is its hash modulo the number of buckets.
    pub table: Vec<u32>,
}

/// The number of the device that has this name in this network namespace; `None`: there is none.
pub fn index(device: &str) -> Option<u32> {
    if_nametoindex(device).ok()
}

/// The name that the device of this number has in this network namespace now; `None`: there is none.
pub fn name(index: u32) -> Option<String> {
    let name = if_indextoname(index).ok()?.into_string().ok()?;
    // Of the number 0, which no device has, the name is empty.
    (!name.is_empty()).then_some(name)
}

/// How this device spreads packets; `None`: it has no indirection table that can be read.
///
/// # Errors
/// [`EthtoolError::Gone`], [`EthtoolError::Refused`].
pub fn rss(device: &str) -> Result<Option<Rss>, EthtoolError> {
    let refused = refusal(device, "its RSS indirection table cannot be read");
    let mut sizes = head(ETHTOOL_GRSSH, 0, 0, [0; 4]).to_vec();
    match ioctl(device, &mut sizes[..]) {
        Err(why) if why.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(None),
        result => result.map_err(&refused)?,
    }
    let (buckets, key_bytes) = (sizes[2], sizes[3]);
    if buckets == 0 || buckets > MAX_BUCKETS || key_bytes > MAX_KEY_BYTES {
        return Ok(None);
    }
    let (buckets, key_bytes) = (buckets as usize, key_bytes as usize);
    let mut words = head(ETHTOOL_GRSSH, sizes[2], sizes[3], [0; 4]).to_vec();
    words.resize(HEAD_WORDS + buckets + key_bytes.div_ceil(4), 0);
    ioctl(device, &mut words[..]).map_err(&refused)?;
    let [hash, transformation, ..] = words[4].to_ne_bytes();
    let (table, key) = words[HEAD_WORDS..].split_at(buckets);
    let key = key.iter().flat_map(|word| word.to_ne_bytes()).take(key_bytes);
    let hash = HashFunction::of(hash);
    Ok(Some(Rss { hash, transformation, key: key.collect(), table: table.to_vec() }))
}

/// `struct ethtool_rxnfc`, as far as a question about the number of queues needs it.
#[repr(C)]
struct QueuesRequest {
    command: u32,
    flow_type: u32,
    data: u64,
    rest: [u64; 22],
}

/// How many receive queues this device has; `None`: its driver does not tell.
///
/// # Errors
/// [`EthtoolError::Gone`], [`EthtoolError::Refused`].
pub fn receive_queues(device: &str) -> Result<Option<u32>, EthtoolError> {
    let command = ETHTOOL_GRXRINGS;
    let mut request = QueuesRequest { command, flow_type: 0, data: 0, rest: [0; 22] };
    match ioctl(device, &mut request) {
        Err(why) if why.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
        Err(why) => Err(refusal(device, "the number of its receive queues cannot be read")(why)),
        Ok(()) => Ok(u32::try_from(request.data).ok()),
    }
}

/// Sets the indirection table. Where it is the one that the kernel makes by itself for this number of
/// queues, the kernel is asked for that: the table then counts as set by no user, and follows a later
/// change of the number of queues.
///
/// # Errors
/// All of [`EthtoolError`].
pub(crate) fn set_table(device: &str, table: &[u32]) -> Result<(), EthtoolError> {
    // What the card does to fields before it hashes them is set together with the table: kept.
    let before = rss(device)?.ok_or_else(|| EthtoolError::Fixed { device: device.to_owned() })?;
    let queues = receive_queues(device)?.unwrap_or(0);
    let buckets = if is_default(table, queues) { 0 } else { table.len() as u32 };
    let change = [ETH_RSS_HASH_NO_CHANGE, before.transformation, 0, 0];
    let mut words = head(ETHTOOL_SRSSH, buckets, 0, change).to_vec();
    if buckets > 0 {
        words.extend(table);
    }
    let refused = refusal(device, "an RSS indirection table was refused");
    ioctl(device, &mut words[..]).map_err(refused)?;
    match rss(device)? {
        Some(now) if now.table == table => Ok(()),
        _ => Err(EthtoolError::NotTaken { device: device.to_owned() }),
    }
}

/// Whether the kernel gives a device with so many queues this table by itself
/// (`ethtool_rxfh_indir_default`).
fn is_default(table: &[u32], queues: u32) -> bool {
    queues > 0 && (0..).zip(table).all(|(bucket, queue): (u32, _)| *queue == bucket % queues)
}

/// `struct ethtool_rxfh` without its table: `bytes` are its hash function and what follows.
fn head(command: u32, buckets: u32, key_bytes: u32, bytes: [u8; 4]) -> [u32; HEAD_WORDS] {
    [command, 0, buckets, key_bytes, u32::from_ne_bytes(bytes), 0]
}

/// What an errno of the ioctl means.
fn refusal(device: &str, what: &'static str) -> impl Fn(io::Error) -> EthtoolError {
    let device = device.to_owned();
    move |source| match source.raw_os_error() {
        Some(libc::ENODEV) => EthtoolError::Gone { device: device.clone() },
        Some(libc::EPERM) => EthtoolError::Forbidden { device: device.clone() },
        Some(libc::EOPNOTSUPP) => EthtoolError::Fixed { device: device.clone() },
        _ => EthtoolError::Refused { device: device.clone(), what, source },
    }
}

/// Has the kernel answer a request, which is laid out as its command says.
fn ioctl<T: ?Sized>(device: &str, request: &mut T) -> io::Result<()> {
    // A socket of any family will do; services may open no other (confine.rs of the command line).
    let socket = UnixDatagram::unbound()?;
    // SAFETY: all of its fields may be zero.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    // With its terminating zero.
    if device.len() >= asked.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in asked.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    asked.ifr_ifru.ifru_data = std::ptr::from_mut(request).cast();
    // SAFETY: the request outlives the call, and has room for all that its command and sizes announce.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &mut asked) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_table_is_no_error() {
        assert_eq!(index("lo").and_then(name).as_deref(), Some("lo"));
        assert_eq!((index("nosuch0"), name(u32::MAX), name(0)), (None, None, None));
        assert_eq!(rss("lo").unwrap(), None);
        assert_eq!(receive_queues("lo").unwrap(), None);
        let why = set_table("lo", &[0, 0]).unwrap_err();
        assert!(matches!(why, EthtoolError::Fixed { .. }), "{why}");
        assert!(why.to_string().starts_with("lo: its driver takes no RSS"), "{why}");
    }

    #[test]
    fn a_device_that_is_not_there_is_named_with_the_remedy() {
        for name in ["nosuch0", "a-name-that-is-too-long-for-a-device", ""] {
            let why = rss(name).unwrap_err();
            assert!(matches!(why, EthtoolError::Gone { .. }), "{name}: {why}");
            assert!(why.to_string().ends_with("`ip link` lists them"), "{why}");
        }
    }

    #[test]
    fn errors_are_told_apart() {
        let of = |errno| refusal("eth0", "x")(io::Error::from_raw_os_error(errno));
        assert!(matches!(of(libc::EPERM), EthtoolError::Forbidden { .. }));
        assert!(matches!(of(libc::EOPNOTSUPP), EthtoolError::Fixed { .. }));
        let why = of(libc::EBUSY).to_string();
        assert!(why.starts_with("eth0: x: ") && why.ends_with("`ethtool -x eth0`"), "{why}");
    }

    #[test]
    fn the_kernels_own_table_is_recognised() {
        assert!(is_default(&[0, 1, 2, 0, 1], 3));
        assert!(!is_default(&[0, 1, 2, 0, 0], 3) && !is_default(&[0, 1, 2, 0, 1], 4));
        assert!(!is_default(&[0, 0], 0) && is_default(&[0, 0], 1));
    }

    #[test]
    fn hash_functions_have_the_names_that_ethtool_shows() {
        let names = [1, 2, 4, 0, 8].map(|bits| HashFunction::of(bits).to_string());
        assert_eq!(names, ["toeplitz", "xor", "crc32", "unknown", "unknown"]);
    }
}
