//! `evenkeel sais`: steering packets, and looking at who does.

use clap::{Args, Subcommand};
use evenkeel_machine::CpuSet;
use evenkeel_sais::{Policy, XdpMode};

use super::JsonArgs;

/// `evenkeel sais`.
#[derive(Debug, Args)]
pub struct SaisArgs {
    /// What to do.
    #[command(subcommand)]
    pub part: SaisPart,
}

/// Its parts.
#[derive(Debug, Subcommand)]
pub enum SaisPart {
    /// Steer the packets that arrive at a network device; runs until it is ended, and leaves nothing.
    Attach(AttachArgs),
    /// Show how many packets went where.
    Status(JsonArgs),
    /// Show for each connection which core its packets are sent to, and why.
    Explain(JsonArgs),
}

/// `evenkeel sais attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The network device, in this network namespace.
    pub device: String,
    /// Which core a packet is sent to: `issuer` where the last request was sent, `runner` where the
    /// consumer runs now, `least-loaded` the least loaded when the request was sent,
    /// `dedicated:CPU` always the same.
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: Policy,
    /// Send packets to these CPUs only, for example 0-3,8 [default: all].
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuSet>,
    /// Where the kernel hands packets over: `native` in the driver, `generic` behind it, `auto` in
    /// the driver where that loses nothing.
    #[arg(long, value_name = "MODE", default_value_t)]
    pub xdp: XdpMode,
}
