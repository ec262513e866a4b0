//! What it did.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hold::HoldCounts;
use crate::layout::{COUNTERS, NO_CORE, PACKET_COUNTERS, RawCpu, RawFlow, RawKey};
use crate::measure::StripTimes;
use crate::options::{Mode, Policy};

/// What a core did, by the names of [`Statistics::meaning`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Core {
    /// Whether packets may be sent to it.
    pub allowed: bool,
    /// How many packets, by what became of them; and what else is counted.
    pub counters: BTreeMap<String, u64>,
}

/// A process that consumes connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Consumer {
    /// Its number.
    pub pid: u32,
    /// When it was started: tells it from a later process with its number.
    #[serde(skip)]
    pub(crate) start_boottime_ns: u64,
    /// Its command.
    pub name: String,
    /// Connections that it received from or sent to last.
    pub flows: u64,
    /// What was received of these.
    pub received_bytes: u64,
}

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// The other end.
    pub remote: SocketAddr,
    /// This end.
    pub local: SocketAddr,
    /// The thread that consumes it.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// When that was started: tells it from a later process with its number.
    #[serde(skip)]
    pub(crate) process_start_boottime_ns: u64,
    /// What was received of it.
    pub received_bytes: u64,
    /// The core that the policy chose last; `None` before it could.
    pub core: Option<u32>,
    /// The core of the steering thread that its packets go through; `None`: they go up where they
    /// arrive, which may well be the right core.
    pub path: Option<u32>,
    /// In hint mode, whether its server sends hints back.
    pub echoes: Option<bool>,
    /// Each packet goes to the core that its own hint names, without a table of connections.
    #[serde(default)]
    pub is_stateless: bool,
    /// Why this core.
    pub reason: String,
}

/// All figures since it was attached.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Statistics {
    /// The device.
    pub device: String,
    /// From where it is known which core waits for a packet: `flow` or `hint`.
    pub mode: String,
    /// Which core packets are sent to.
    pub policy: String,
    /// Native or generic XDP, or none while `auto` has no use for it.
    pub xdp: String,
    /// Why that.
    pub reason: String,
    /// What `auto` measured when it began.
    pub strip_times: Option<StripTimes>,
    /// With `--hold`, what came of it.
    pub hold: Option<HoldCounts>,
    /// By number of the core on which it was counted.
    pub cores: BTreeMap<u32, Core>,
    /// Connections with a known consumer.
    pub flows: u64,
    /// The consumers, the one with most packets first: of the user that asks, and for root all.
    pub consumers: Vec<Consumer>,
}

impl Statistics {
    /// What a counter means; `None`: there is none of this name.
    pub fn meaning(counter: &str) -> Option<&'static str> {
        COUNTERS.iter().find(|(name, _)| *name == counter).map(|(_, meaning)| *meaning)
    }

    /// A counter of all cores together.
    pub fn total(&self, counter: &str) -> u64 {
        self.cores.values().filter_map(|core| core.counters.get(counter)).sum()
    }

    /// All packets that arrived at the device.
    pub fn packets(&self) -> u64 {
        COUNTERS.iter().take(PACKET_COUNTERS).map(|(name, _)| self.total(name)).sum()
    }

    /// Of the packets with a known consumer, the share that was processed on its core, 0 to 1;
    /// `None` without any.
    pub fn share_at_home(&self) -> Option<f64> {
        let right = self.total("steered") + self.total("home");
        let all = right
            + ["kept", "refused", "distrusted"].map(|name| self.total(name)).iter().sum::<u64>();
        (all > 0).then(|| right as f64 / all as f64)
    }
}

impl Core {
    pub(crate) fn new(allowed: bool, raw: &RawCpu) -> Self {
        let counters = COUNTERS.iter().zip(raw.counters);
        Self {
            allowed,
            counters: counters.map(|((name, _), count)| ((*name).to_owned(), count)).collect(),
        }
    }
}

impl Flow {
    /// `auto` gives its reason where that policy decides.
    pub(crate) fn new(
        mode: Mode,
        policy: Policy,
        auto: Option<String>,
        key: &RawKey,
        flow: &RawFlow,
    ) -> Self {
        let core = (flow.core != NO_CORE).then_some(flow.core);
        let echoes = (mode == Mode::Hint).then_some(flow.echoed != 0);
        let source = match echoes {
            None => "",
            Some(true) => "; its server sends hints back",
            Some(false) => {
                "; its server has sent no hint back (does `evenkeel sais serve` run there, and for \
                 longer than the connection?), so this machine's own knowledge serves"
            }
        };
        Self {
            remote: address(key.remote, key.remote_port),
            local: address(key.local, key.local_port),
            tid: flow.tid,
            pid: flow.tgid,
            process_start_boottime_ns: flow.process_start_boottime_ns,
            received_bytes: flow.received_bytes,
            core,
            path: (flow.path != NO_CORE).then_some(flow.path),
            echoes,
            is_stateless: false,
            reason: auto.unwrap_or_else(|| reason(policy, core, flow)) + source,
        }
    }
}

fn reason(policy: Policy, core: Option<u32>, flow: &RawFlow) -> String {
    let Some(core) = core else { return "no core is chosen yet".to_owned() };
    let tid = flow.tid;
    match policy {
        Policy::Issuer => format!("the last request was sent on CPU {core}"),
        Policy::Runner | Policy::Auto if flow.has_reader != 0 => {
            format!("thread {tid} received on CPU {core} last, and is followed from there")
        }
        Policy::Runner | Policy::Auto => {
            format!("thread {tid} sent on CPU {core} last, and is followed from there")
        }
        Policy::LeastLoaded => {
            format!("CPU {core} was the least loaded that was left when it last asked")
        }
        Policy::Dedicated(_) => format!("all packets go to CPU {core}"),
    }
}

/// The address of a key, which has IPv4 mapped into IPv6.
fn address(bytes: [u8; 16], port: [u8; 2]) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(bytes).to_canonical(), u16::from_be_bytes(port))
}

/// So many of these connections at most, those that received most first.
pub(crate) fn greediest(mut flows: Vec<Flow>, most: usize) -> Vec<Flow> {
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.received_bytes));
    flows.truncate(most);
    flows
}

/// The consumers of these connections, the greediest first, with names from `name_of`, by number and
/// start.
pub(crate) fn consumers(flows: &[Flow], name_of: impl Fn(u32) -> String) -> Vec<Consumer> {
    let mut by_process: BTreeMap<(u32, u64), Consumer> = BTreeMap::new();
    for flow in flows {
        let (pid, start_boottime_ns) = (flow.pid, flow.process_start_boottime_ns);
        let consumer = by_process.entry((pid, start_boottime_ns)).or_insert_with(|| Consumer {
            pid,
            start_boottime_ns,
            name: name_of(pid),
            ..Consumer::default()
        });
        consumer.flows += 1;
        consumer.received_bytes += flow.received_bytes;
    }
    let mut consumers: Vec<Consumer> = by_process.into_values().collect();
    consumers.sort_by_key(|consumer| std::cmp::Reverse(consumer.received_bytes));
    consumers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw_flow(tgid: u32, received_bytes: u64) -> RawFlow {
        RawFlow {
            core: 1,
            path: NO_CORE,
            tid: tgid + 1,
            tgid,
            has_reader: 1,
            arrived: NO_CORE,
            received_bytes,
            ..bytemuck::Zeroable::zeroed()
        }
    }

    #[test]
    fn packets_are_counted_once_and_their_share_is_of_those_with_a_consumer() {
        let counters = [6, 1, 1, 1, 50, 60, 70, 1, 0, 9, 9, 9, 8, 8, 8, 8, 8, 8, 8, 9];
        let raw = RawCpu { counters, pad: [0; 4] };
        let statistics = Statistics {
            cores: [(0, Core::new(true, &raw)), (5, Core::new(false, &raw))].into(),
            ..Statistics::default()
        };
        assert_eq!(statistics.packets(), 2 * 190);
        assert_eq!(statistics.share_at_home(), Some(0.7));
        assert_eq!(statistics.total("processed"), 18);
        assert_eq!(Statistics::default().share_at_home(), None);
        for name in statistics.cores[&0].counters.keys() {
            assert!(Statistics::meaning(name).is_some(), "{name}");
        }
    }

    #[test]
    fn addresses_are_shown_as_people_write_them() {
        let mut key =
            RawKey { remote_port: [0, 80], local_port: [0xff, 0xff], ..RawKey::default() };
        key.remote[10..].copy_from_slice(&[0xff, 0xff, 198, 18, 0, 2]);
        key.local[15] = 1;
        let flow = Flow::new(Mode::Flow, Policy::Runner, None, &key, &raw_flow(7, 0));
        assert_eq!(flow.remote.to_string(), "198.18.0.2:80");
        assert_eq!(flow.local.to_string(), "[::1]:65535");
        assert_eq!((flow.core, flow.path), (Some(1), None));
        assert_eq!(flow.reason, "thread 8 received on CPU 1 last, and is followed from there");
    }

    #[test]
    fn it_is_said_whether_hints_come_back() {
        let reason = |echoed| {
            let raw = RawFlow { echoed, ..raw_flow(7, 0) };
            Flow::new(Mode::Hint, Policy::Issuer, None, &RawKey::default(), &raw).reason
        };
        let sent = "the last request was sent on CPU 1";
        assert_eq!(reason(3), format!("{sent}; its server sends hints back"));
        assert!(reason(0).contains("has sent no hint back"));
    }

    fn flow(pid: u32, process_start_boottime_ns: u64, bytes: u64) -> Flow {
        let raw = RawFlow { process_start_boottime_ns, ..raw_flow(pid, bytes) };
        Flow::new(Mode::Flow, Policy::Issuer, None, &RawKey::default(), &raw)
    }

    #[test]
    fn consumers_have_their_flows_together() {
        let flows = [flow(1, 5, 10), flow(2, 5, 30), flow(1, 5, 15)];
        let greedy: Vec<u64> =
            greediest(flows.to_vec(), 2).iter().map(|f| f.received_bytes).collect();
        assert_eq!(greedy, [30, 15]);
        let consumers = consumers(&flows, |pid| format!("p{pid}"));
        let seen: Vec<_> =
            consumers.iter().map(|c| (c.pid, c.name.as_str(), c.flows, c.received_bytes)).collect();
        assert_eq!(seen, [(2, "p2", 1, 30), (1, "p1", 2, 25)]);
    }

    #[test]
    fn a_process_does_not_get_the_flows_of_the_one_that_had_its_number() {
        let consumers = consumers(&[flow(1, 5, 30), flow(1, 9, 10)], |_| String::new());
        let seen: Vec<_> = consumers.iter().map(|it| (it.start_boottime_ns, it.flows)).collect();
        assert_eq!(seen, [(5, 1), (9, 1)]);
    }
}
