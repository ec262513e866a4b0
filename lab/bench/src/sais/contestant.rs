//! Who directs packets to cores, and how.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use evenkeel_machine::CpuSet;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::network::{DEVICE, FLOW_ENTRIES, FlowTable, Namespace, Network};
use super::scatter::Scatter;
use evenkeel_experiment::command::end_with_us;

/// A contestant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contestant {
    /// Nobody: packets are processed where they arrive.
    None,
    /// The kernel, by the hash of a connection (RPS).
    Rps,
    /// The kernel, to the core that received last (RFS).
    Rfs,
    /// Each packet to the next core.
    RoundRobin,
    /// `sais attach` with this policy.
    Flow(&'static str),
    /// The same in hint mode, with `sais serve` at the other end.
    Hint(&'static str),
}

impl Contestant {
    /// All, the baseline first.
    pub const ALL: [Self; 13] = [
        Self::None,
        Self::Rps,
        Self::Rfs,
        Self::RoundRobin,
        Self::Flow("dedicated:0"),
        Self::Flow("least-loaded"),
        Self::Flow("issuer"),
        Self::Flow("runner"),
        Self::Flow("auto"),
        Self::Hint("issuer"),
        Self::Hint("runner"),
        Self::Hint("least-loaded"),
        Self::Hint("auto"),
    ];
    /// Those with whom `auto` is compared in every case, ...
    pub const FEWEST: [Self; 4] =
        [Self::None, Self::Rfs, Self::Flow("least-loaded"), Self::Flow("auto")];
    /// ... with the runner and who he is compared with ...
    pub const FEW: [Self; 6] = [
        Self::None,
        Self::Rfs,
        Self::Flow("dedicated:0"),
        Self::Flow("least-loaded"),
        Self::Flow("runner"),
        Self::Flow("auto"),
    ];
    /// ... and where the link is the bound, so that nobody can be better than balanced.
    pub const SHAPED: [Self; 4] = [Self::None, Self::Rfs, Self::Flow("runner"), Self::Flow("auto")];

    /// Those of real programs.
    pub const PROGRAMS: [Self; 7] = [
        Self::None,
        Self::Rfs,
        Self::Flow("dedicated:0"),
        Self::Flow("least-loaded"),
        Self::Flow("runner"),
        Self::Flow("auto"),
        Self::Hint("issuer"),
    ];

    /// Its name in the report.
    pub fn name(self) -> String {
        match self {
            Self::None => "none".into(),
            Self::Rps => "rps".into(),
            Self::Rfs => "rfs".into(),
            Self::RoundRobin => "round robin".into(),
            Self::Flow(policy) => policy.into(),
            Self::Hint(policy) => format!("{policy}, hint"),
        }
    }

    /// Puts it in charge of a network that nobody was in charge of.
    ///
    /// # Errors
    /// It refuses, or the kernel does.
    pub fn begin(self, executable: &Path, network: &Network, cpus: &CpuSet) -> Result<InCharge> {
        let attach = |flags: &[&str]| {
            let words = [&["sais", "attach", DEVICE], flags].concat();
            Part::start(executable, &words, &network.client)
        };
        let mut in_charge = InCharge::default();
        match self {
            Self::None => {}
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
                in_charge._parts.push(Part::start(
                    executable,
                    &["sais", "serve", "/"],
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
    _parts: Vec<Part>,
    _table: Option<FlowTable>,
    _scatter: Option<Scatter>,
}

/// A process of `evenkeel sais`.
struct Part(Child);

impl Part {
    /// Waits until it says that it has begun.
    fn start(executable: &Path, words: &[&str], namespace: &Namespace) -> Result<Self> {
        let mut command = Command::new(executable);
        namespace.place(&mut command);
        end_with_us(&mut command);
        command.args(["--config", "/dev/null"]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().context("cannot start evenkeel")?;
        // From here on it is ended whatever happens.
        let mut part = Self(child);
        let said = part.0.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        if line.is_empty() {
            bail!("`evenkeel {}` does not begin: run it by hand", words.join(" "));
        }
        Ok(part)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}
