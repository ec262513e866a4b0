//! On which CPUs packets are processed, and whether these are their consumer's: by the kernel's own
//! word for a socket (`SO_INCOMING_CPU`, the CPU of the packet that arrived last), whatever steers them.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Looks at sockets, each after something was received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arrivals {
    /// Those that found the last packet processed on the core that received it ...
    pub home: u64,
    /// ... and on another.
    pub away: u64,
    /// All of them, by the core where the packet was processed.
    pub by_core: BTreeMap<u32, u64>,
}

impl Arrivals {
    /// Looks at a socket of which something was received on core `here`.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn look(&mut self, stream: &TcpStream, here: u32) -> Result<()> {
        let core = incoming_cpu(stream)?;
        *(if core == here { &mut self.home } else { &mut self.away }) += 1;
        *self.by_core.entry(core).or_default() += 1;
        Ok(())
    }

    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.home += other.home;
        self.away += other.away;
        for (core, looks) in &other.by_core {
            *self.by_core.entry(*core).or_default() += looks;
        }
    }

    /// The share at home, in %; `None`: without a look.
    pub fn home_pct(&self) -> Option<f64> {
        share_pct(self.home, self.away).ok()
    }

    /// The share of each core, in %.
    pub fn by_core_pct(&self) -> BTreeMap<u32, f64> {
        let all = (self.home + self.away) as f64;
        self.by_core.iter().map(|(core, looks)| (*core, 100.0 * *looks as f64 / all)).collect()
    }
}

/// The first of two, in % of both.
pub(super) fn share_pct(yes: u64, no: u64) -> Result<f64> {
    if yes + no == 0 {
        bail!("no packets were seen");
    }
    Ok(100.0 * yes as f64 / (yes + no) as f64)
}

/// Where the last packet of a socket was processed.
fn incoming_cpu(stream: &TcpStream) -> Result<u32> {
    let mut cpu: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `cpu` has room for `length` bytes.
    let failed = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_INCOMING_CPU,
            (&raw mut cpu).cast(),
            &mut length,
        )
    };
    if failed != 0 {
        return Err(std::io::Error::last_os_error()).context("where packets arrive is not told");
    }
    Ok(cpu as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_something() {
        assert_eq!(share_pct(999, 1).unwrap(), 99.9);
        assert!(share_pct(0, 0).is_err());
        assert_eq!(Arrivals::default().home_pct(), None);
    }

    #[test]
    fn looks_are_added_by_core() {
        let one = Arrivals { home: 3, away: 1, by_core: [(0, 3), (1, 1)].into() };
        let mut both = Arrivals { home: 0, away: 4, by_core: [(1, 2), (9, 2)].into() };
        both.add(&one);
        assert_eq!((both.home_pct(), both.by_core_pct()[&1]), (Some(37.5), 37.5));
        assert_eq!(both.by_core, [(0, 3), (1, 3), (9, 2)].into());
    }
}
