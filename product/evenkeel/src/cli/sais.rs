//! `evenkeel sais`: steering packets, and looking at who does.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_machine::CpuSet;
use evenkeel_sais::{IpNet, Mode, Policy, StripTimes, Wire, XdpMode};

use super::{FaultArgs, JsonArgs};

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
    /// On a server: send clients' hints back, for `attach --mode hint`; runs until it is ended, and
    /// leaves nothing.
    Serve(ServeArgs),
    /// Show how many packets went where.
    Status(JsonArgs),
    /// Show for each connection which core its packets are sent to, and why.
    Explain(JsonArgs),
    /// What the paper's equations (1) to (9) say of a parallel read.
    Model(ModelArgs),
}

/// `evenkeel sais attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The network device, in this network namespace.
    pub device: String,
    /// From where it is known which core waits for a packet: `flow` from this machine's sockets,
    /// `hint` from the packet, to which the server gave back what it was sent (the paper's way; it
    /// needs `evenkeel sais serve` there).
    #[arg(long, value_name = "MODE", default_value_t)]
    pub mode: Mode,
    /// How servers give hints back: `tcp` in a TCP option, `paper` in a byte of IPv4 options, for
    /// networks that nobody else uses.
    #[arg(long, value_name = "FORMAT", default_value_t)]
    pub wire: Wire,
    /// Networks that hints may be sent to: they tell this machine's CPUs, and some networks drop
    /// packets with options that they do not know.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub peers: Vec<IpNet>,
    /// Which core a packet is sent to: `issuer` where the last request was sent, `runner` where the
    /// consumer runs now, `least-loaded` the least loaded when the request was sent,
    /// `dedicated:CPU` always the same, `auto` as `runner` where that saves more than it costs.
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: Policy,
    /// For `--policy auto`: the microseconds that fetching a strip of 64 KiB from another core's cache
    /// takes and those that handing it over takes, instead of what is measured at the start.
    #[arg(long, value_name = "FETCH,HAND_OVER")]
    pub strip_us: Option<StripTimes>,
    /// Send packets to these CPUs only, for example 0-3,8 [default: all].
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuSet>,
    /// Where the kernel hands packets over: `native` in the driver, `generic` behind it, `auto` in
    /// the driver where that loses nothing.
    #[arg(long, value_name = "MODE", default_value_t)]
    pub xdp: XdpMode,
    /// Keep a thread that waits for data on the core where it asked, for no longer than so many
    /// seconds without an answer (1 if none are given); with `--policy issuer`, `runner` or `auto`.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub hold: Option<u64>,
    /// With `--policy auto`: where steering pays, turn the kernel's receive flow steering on instead
    /// (net.core.rps_sock_flow_entries and the device's rps_flow_cnt), and back when it does not.
    #[arg(long)]
    pub manage_rfs: bool,
    /// For fault tests.
    #[command(flatten)]
    pub faults: FaultArgs,
}

/// `evenkeel sais serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The cgroup (version 2) of the servers: its directory, or its name below the root; `/` is all
    /// processes. It goes for connections that they accept from now on.
    pub cgroup: PathBuf,
    /// Only for clients in these networks [default: all].
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub peers: Vec<IpNet>,
    /// How hints are given back, as the clients were told: `tcp` in a TCP option, `paper` in a byte of
    /// IPv4 options.
    #[arg(long, value_name = "FORMAT", default_value_t)]
    pub wire: Wire,
    /// For `--wire paper`: the network device by which packets leave to the clients.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

/// `evenkeel sais model`.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Cores of the client (N_C).
    #[arg(long, value_name = "N")]
    pub cores: u32,
    /// Servers, which return a strip each: a multiple of the cores (N_S).
    #[arg(long, value_name = "N")]
    pub servers: u32,
    /// Reads in all (N_R).
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub requests: u32,
    /// Programs that make them (N_P).
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub programs: u32,
    /// Microseconds that processing a strip takes (P) [default: measured on this machine].
    #[arg(long, value_name = "US")]
    pub process_us: Option<f64>,
    /// Microseconds that moving a strip to another core takes (M) [default: measured on this machine,
    /// between cores without a common cache where there are such].
    #[arg(long, value_name = "US")]
    pub migrate_us: Option<f64>,
    /// Microseconds that all the rest takes (T_R).
    #[arg(long, value_name = "US", default_value_t = 0.0)]
    pub rest_us: f64,
    /// Bytes of a strip, for the reads a second that the link can carry, equation (7).
    #[arg(long, value_name = "N", requires = "gbit_per_s", value_parser = clap::value_parser!(u64).range(1..))]
    pub strip_bytes: Option<u64>,
    /// Bandwidth of the client's link.
    #[arg(long, value_name = "N", requires = "strip_bytes")]
    pub gbit_per_s: Option<f64>,
    /// As JSON, on standard output.
    #[arg(long)]
    pub json: bool,
}
