//! In hint mode: the peers that send no hints back, each to be said once.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::statistics::Flow;
use crate::steering::Steering;
use crate::steering_error::SteeringError;

/// So many are named: the process that asks so many peers is known by then.
const MOST: usize = 16;
/// The time between two looks at least: each reads all connections.
const LOOK: Duration = Duration::from_secs(1);

/// Peers that were found, and what it takes to find more.
#[derive(Debug)]
pub(crate) struct SilentPeers {
    peers: Vec<IpNet>,
    found: BTreeSet<IpAddr>,
    look_at: Instant,
}

impl SilentPeers {
    /// None yet, of these networks.
    pub fn new(peers: &[IpNet]) -> Self {
        Self { peers: peers.to_vec(), found: BTreeSet::new(), look_at: Instant::now() }
    }

    /// Those that were not found before.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn look(&mut self, steering: &mut Steering) -> Result<Vec<IpAddr>, SteeringError> {
        let now = Instant::now();
        if self.found.len() >= MOST || now < self.look_at || !steering.lacks_hints()? {
            return Ok(Vec::new());
        }
        self.look_at = now + LOOK;
        Ok(self.add(&steering.flows()?))
    }

    fn add(&mut self, flows: &[Flow]) -> Vec<IpAddr> {
        let silent =
            flows.iter().filter(|flow| flow.echoes == Some(false) && flow.received_bytes > 0);
        let silent: BTreeSet<IpAddr> = silent.map(|flow| flow.remote.ip()).collect();
        // Hints are sent to peers alone: no other host has anything to send back.
        let is_peer = |address: &IpAddr| self.peers.iter().any(|peer| peer.contains(address));
        let mut new: Vec<IpAddr> = silent.into_iter().filter(is_peer).collect();
        new.retain(|address| self.found.len() < MOST && self.found.insert(*address));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{NO_CORE, RawFlow, RawKey};
    use crate::options::{Mode, Policy};
    use bytemuck::Zeroable;

    /// A connection with the host 10.0.X.Y or 192.0.2.Y on which data came.
    fn flow(address: [u8; 4], echoed: u8) -> Flow {
        let mut key = RawKey { remote_port: [0, 80], local_port: [9, 9], ..RawKey::default() };
        key.remote = std::net::Ipv4Addr::from(address).to_ipv6_mapped().octets();
        let raw = RawFlow {
            core: NO_CORE,
            path: NO_CORE,
            echoed: echoed.into(),
            received_bytes: 9,
            ..RawFlow::zeroed()
        };
        Flow::new(Mode::Hint, Policy::Runner, None, &key, &raw)
    }

    #[test]
    fn peers_are_found_once_and_other_hosts_never() {
        let mut silent = SilentPeers::new(&["10.0.0.0/8".parse().unwrap()]);
        let flows = [flow([10, 0, 0, 1], 0), flow([192, 0, 2, 1], 0), flow([10, 0, 0, 2], 1)];
        assert_eq!(silent.add(&flows), [IpAddr::from([10, 0, 0, 1])]);
        assert!(silent.add(&flows).is_empty());
    }

    #[test]
    fn some_are_named_and_no_more() {
        let mut silent = SilentPeers::new(&["10.0.0.0/8".parse().unwrap()]);
        let flows: Vec<Flow> = (0..100).map(|number| flow([10, 0, 1, number], 0)).collect();
        assert_eq!(silent.add(&flows).len(), MOST);
    }
}
