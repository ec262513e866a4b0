//! The contestants: what steers packets to CPUs, and how each begins.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use evenkeel_experiment::command::{Helper, end_with_us};
use evenkeel_machine::CpuSet;

use super::network::{DEVICE, FLOW_ENTRIES, FlowTable, Network};
use super::scatter::Scatter;
use crate::namespace::Namespace;

/// How packets are steered, or how strips in memory are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// In memory: combined on another CPU than read.
    Apart,
    /// In memory: combined on the same CPU.
    Together,
    /// Packets are processed where they arrive.
    None,
    /// The kernel, by the hash of a connection (RPS).
    Rps,
    /// The kernel, to the CPU that received last (RFS).
    Rfs,
    /// Each packet to the next CPU.
    RoundRobin,
    /// `sais attach` with this policy.
    Flow(&'static str),
    /// The same in hint mode, with `sais serve` at the other end.
    Hint(&'static str),
}

/// The untouched kernel, the baseline.
pub const NONE: Method = Method::None;
/// The kernel's flow steering by consumer.
pub const RFS: Method = Method::Rfs;
/// All packets on CPU 0.
pub const DEDICATED: Method = Method::Flow("dedicated:0");
/// The idlest core when a request is sent.
pub const BALANCED: Method = Method::Flow("least-loaded");
/// The core that sent the last request.
pub const ISSUER: Method = Method::Flow("issuer");
/// The core where the consumer runs.
pub const RUNNER: Method = Method::Flow("runner");
/// The policy `auto`.
pub const AUTO: Method = Method::Flow("auto");
/// `issuer` in hint mode.
pub const HINTED_ISSUER: Method = Method::Hint("issuer");

impl Method {
    /// In memory, the baseline first.
    pub const IN_MEMORY: [Self; 2] = [Self::Apart, Self::Together];
    /// All over a network, the baseline first.
    pub const ALL: [Self; 13] = [
        NONE,
        Self::Rps,
        RFS,
        Self::RoundRobin,
        DEDICATED,
        BALANCED,
        ISSUER,
        RUNNER,
        AUTO,
        HINTED_ISSUER,
        Self::Hint("runner"),
        Self::Hint("least-loaded"),
        Self::Hint("auto"),
    ];
    /// `auto`, and what it is compared with in every case.
    pub const FEWEST: [Self; 4] = [NONE, RFS, BALANCED, AUTO];
    /// The same with `runner`, and what that is compared with.
    pub const FEW: [Self; 6] = [NONE, RFS, DEDICATED, BALANCED, RUNNER, AUTO];
    /// Where the link is the bound, so that nothing can be better than balanced.
    pub const SHAPED: [Self; 4] = [NONE, RFS, RUNNER, AUTO];
    /// With real programs.
    pub const PROGRAMS: [Self; 7] = [NONE, RFS, DEDICATED, BALANCED, RUNNER, AUTO, HINTED_ISSUER];

    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Apart => "si-irqbalance",
            Self::Together => "si-sais",
            Self::None => "none",
            Self::Rps => "rps",
            Self::Rfs => "rfs",
            Self::RoundRobin => "round robin",
            Self::Flow(policy) => policy,
            Self::Hint("issuer") => "issuer, hint",
            Self::Hint("runner") => "runner, hint",
            Self::Hint("least-loaded") => "least-loaded, hint",
            Self::Hint(_) => "auto, hint",
        }
    }

    /// What it is, for the reader of a report.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Apart => "strips are combined on another CPU than the one that read them",
            Self::Together => "strips are combined on the CPU that read them",
            Self::None => "packets are processed where they arrive",
            Self::Rps => "the kernel's receive packet steering: by the hash of the connection",
            Self::Rfs => "the kernel's receive flow steering: to the CPU that received last",
            Self::RoundRobin => "each packet to the next CPU",
            Self::Flow(_) => "`sais attach` with this policy",
            Self::Hint(_) => "the same in hint mode, with `sais serve` at the other end",
        }
    }

    /// Puts it in charge of a new network.
    ///
    /// # Errors
    /// It refuses, or the kernel does.
    pub fn begin(self, executable: &Path, network: &Network, cpus: &CpuSet) -> Result<InCharge> {
        let attach = |flags: &[&str]| {
            let words = [&["sais", "attach", DEVICE], flags].concat();
            start_part(executable, &words, &network.client)
        };
        let mut in_charge = InCharge::default();
        match self {
            Self::Apart | Self::Together | Self::None => {}
            Self::Rps => network.spread(cpus)?,
            Self::Rfs => {
                in_charge._table = Some(FlowTable::enlarge().context("cannot turn RFS on")?);
                network.follow_flows(FLOW_ENTRIES)?;
            }
            Self::RoundRobin => {
                in_charge._scatter = Some(network.client.within(|| Scatter::start(cpus))?);
            }
            Self::Flow(policy) => in_charge._parts.push(attach(&["--policy", policy])?),
            Self::Hint(policy) => {
                let peers = "198.18.1.0/24";
                in_charge._parts.push(start_part(
                    executable,
                    &["sais", "serve", "/", "--peers", peers],
                    &network.server,
                )?);
                let flags = ["--mode", "hint", "--peers", peers, "--policy", policy];
                in_charge._parts.push(attach(&flags)?);
            }
        }
        Ok(in_charge)
    }
}

/// Until this is dropped.
#[derive(Default)]
pub struct InCharge {
    _parts: Vec<Helper>,
    _table: Option<FlowTable>,
    _scatter: Option<Scatter>,
}

/// Starts a process of `evenkeel sais`, and waits until it says that it has begun.
fn start_part(executable: &Path, words: &[&str], namespace: &Namespace) -> Result<Helper> {
    let mut command = Command::new(executable);
    namespace.place(&mut command);
    end_with_us(&mut command);
    command.args(["--config", "/dev/null"]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut part = Helper(command.spawn().context("cannot start evenkeel")?);
    let said = part.0.stdout.take().context("no output")?;
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line)?;
    if line.is_empty() {
        bail!("`evenkeel {}` does not begin: run it by hand", words.join(" "));
    }
    Ok(part)
}
