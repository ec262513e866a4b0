//! A client and a server with a cable between them, each in a network namespace of its own.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::Result;
use evenkeel_journal::{Session, SessionOptions, SupervisedSession, runtime_dir, undo_earlier};
use evenkeel_machine::CpuSet;

use crate::namespace::Namespace;

/// The client's end of the cable.
pub const DEVICE: &str = "client0";
/// The server's.
const SERVER_DEVICE: &str = "server0";
/// The server's address.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);

/// A client and a server, and what joins them.
pub struct Network {
    /// Where data is wanted.
    pub client: Namespace,
    /// Where it comes from.
    pub server: Namespace,
}

impl Network {
    /// One cable, in both directions shaped to so many Gb/s if that is given.
    ///
    /// # Errors
    /// No privilege, or no `ip`.
    pub fn new(gbit_per_s: Option<u32>) -> Result<Self> {
        let (client, server) = (Namespace::new()?, Namespace::new()?);
        let path = server.path();
        client
            .ip(&format!("link add {DEVICE} type veth peer name {SERVER_DEVICE} netns {path}"))?;
        for (namespace, device, end) in [(&client, DEVICE, 1), (&server, SERVER_DEVICE, 2)] {
            namespace.ip(&format!("address add 198.18.1.{end}/24 dev {device}"))?;
            namespace.ip(&format!("link set {device} up"))?;
            if let Some(rate) = gbit_per_s {
                let words = format!(
                    "qdisc add dev {device} root tbf rate {rate}gbit burst 1mb latency 20ms"
                );
                namespace.run("tc", &words)?;
            }
        }
        Ok(Self { client, server })
    }

    /// Receive packet steering to these CPUs; none: off.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn spread(&self, cpus: &CpuSet) -> Result<()> {
        self.client.write_queue_knob(DEVICE, 0, "rps_cpus", &mask(cpus))
    }

    /// Has all packets leave the server on one CPU, if its program runs there: as if they arrived by a
    /// card with one queue, in the order in which they were sent. (What comes over such a cable is
    /// processed where it was sent, and a server also sends where it is told of the ends of earlier
    /// packets: on any CPU.)
    ///
    /// # Errors
    /// The kernel refused.
    pub fn keep_order(&self, sending: u32) -> Result<()> {
        let sending = mask(&[sending].into_iter().collect());
        self.server.write_queue_knob(SERVER_DEVICE, 0, "rps_cpus", &sending)
    }

    /// Receive flow steering with so many entries; 0: off.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn follow_flows(&self, entries: u32) -> Result<()> {
        self.client.write_queue_knob(DEVICE, 0, "rps_flow_cnt", &entries.to_string())
    }
}

/// As knobs have it, of the first 64 CPUs.
pub(crate) fn mask(cpus: &CpuSet) -> String {
    format!("{:x}", cpus.as_words().first().copied().unwrap_or(0))
}

/// The table of receive flow steering, which is the whole machine's: what it was is written to the
/// journal, and back when this is dropped, or by the supervisor when we are killed, unless another
/// process has changed it.
pub struct FlowTable(Option<SupervisedSession>);

const FLOW_TABLE: &str = "/proc/sys/net/core/rps_sock_flow_entries";
/// Its size while receive flow steering is measured.
pub const FLOW_ENTRIES: u32 = 32_768;

impl FlowTable {
    /// Makes it large enough.
    ///
    /// # Errors
    /// There is no journal or no supervisor, or the kernel refused.
    pub fn enlarge() -> Result<Self> {
        let directory = runtime_dir()?;
        undo_earlier(&directory);
        let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let options = SessionOptions { command: command.collect(), ..SessionOptions::default() };
        let session = SupervisedSession::new(
            Session::open(&directory, options)?,
            evenkeel_experiment::executable::supervisor,
        );
        // From here on it is closed whatever happens.
        let mut table = Self(Some(session));
        if let Some(session) = &mut table.0 {
            session
                .supervised()?
                .change_setting(Path::new(FLOW_TABLE), &FLOW_ENTRIES.to_string())?;
        }
        Ok(table)
    }
}

impl Drop for FlowTable {
    fn drop(&mut self) {
        let errors = self.0.take().map(|session| session.close().errors).unwrap_or_default();
        for why in errors {
            tracing::warn!("{why}");
        }
    }
}
