//! `evenkeel sais`: steers packets, and shows the steering.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_machine::CpuSet;
use evenkeel_sais::{IpNet, Mode, Policy, StripTimes, Wire, XdpMode};

use super::shared::{FaultArgs, JsonArgs, number, whole_number};

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
    /// Steer the packets that arrive at a network device, until a signal ends it.
    Attach(AttachArgs),
    /// On a server, send the hints of clients back, for `attach --mode hint`, until a signal ends it.
    Serve(ServeArgs),
    /// Show how many packets each core processed.
    Status(JsonArgs),
    /// Explain for each connection which core its packets go to.
    Explain(JsonArgs),
    /// Compute the paper's equations (1) to (9) for a parallel read.
    Model(ModelArgs),
}

/// `evenkeel sais attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The network device, in this network namespace.
    pub device: String,
    /// Choose how the core that waits for a packet is known: `flow` from this machine's sockets, `hint`
    /// from the packet (the paper's way; needs `evenkeel sais serve` on the server).
    #[arg(long, value_name = "MODE", default_value_t)]
    pub mode: Mode,
    /// Choose how servers send hints back: `tcp` in a TCP option, `paper` in a byte of IPv4 options (for
    /// private networks).
    #[arg(long, value_name = "FORMAT", default_value_t)]
    pub wire: Wire,
    /// In hint mode, believe each packet's hint by itself, as the paper does, without a table of
    /// connections: the tag and --cpus check it. Where a hint changes, packets of
    /// the connection may overtake each other.
    #[arg(long)]
    pub stateless: bool,
    /// Send hints only to these networks: hints reveal this machine's CPUs, and some networks drop
    /// packets with unknown options.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub peers: Vec<IpNet>,
    /// Choose the core of a packet: `issuer` sent the last request, `runner` runs the consumer now,
    /// `least-loaded` had the least load at the request, `dedicated:CPU` is always the same, `auto` is
    /// `runner` where that saves more than it costs.
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: Policy,
    /// For `--policy auto`, give the microseconds to fetch 64 KiB from another core's cache and to hand
    /// them over [default: measured at the start].
    #[arg(long, value_name = "FETCH,HAND_OVER")]
    pub strip_us: Option<StripTimes>,
    /// Steer packets to these CPUs only, for example 0-3,8 [default: all].
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuSet>,
    /// Choose where XDP runs: `native` in the driver, `generic` behind it, `auto` in the driver where
    /// that loses nothing.
    #[arg(long, value_name = "MODE", default_value_t)]
    pub xdp: XdpMode,
    /// Hold a thread that waits for data on the core where it asked, for at most this many seconds
    /// without an answer [default: off; 1 without a number]. With `--policy issuer`, `runner` or
    /// `auto`.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = whole_number::<u64>(1..=3600)
    )]
    pub hold: Option<u64>,
    /// With `--policy auto`, turn on the kernel's receive flow steering where that pays, instead of
    /// steering (net.core.rps_sock_flow_entries and the device's rps_flow_cnt), and off where it does
    /// not.
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
    /// processes. It counts for connections that they accept from now on.
    pub cgroup: PathBuf,
    /// Send hints back only to clients in these networks; required (all: 0.0.0.0/0,::/0).
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub peers: Vec<IpNet>,
    /// Choose how hints go back, the same as on the clients: `tcp` in a TCP option, `paper` in a byte of
    /// IPv4 options.
    #[arg(long, value_name = "FORMAT", default_value_t)]
    pub wire: Wire,
    /// For `--wire paper`, give the network device towards the clients.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

/// `evenkeel sais model`.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Set the cores of the client (N_C).
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(0..=u64::from(u32::MAX)))]
    pub cores: u32,
    /// Set the servers, a multiple of the cores; each returns one strip (N_S).
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(0..=u64::from(u32::MAX)))]
    pub servers: u32,
    /// Set the number of reads (N_R).
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = whole_number::<u32>(0..=u64::from(u32::MAX)))]
    pub requests: u32,
    /// Set the number of programs that read (N_P).
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = whole_number::<u32>(0..=u64::from(u32::MAX)))]
    pub programs: u32,
    /// Set the microseconds to process a strip's interrupts (P) [default: the softirqs of 64 KiB,
    /// measured on this machine, which needs root].
    #[arg(long, value_name = "US", value_parser = number)]
    pub process_us: Option<f64>,
    /// Set the microseconds to move a strip to another core (M) [default: measured on this machine,
    /// between cores without a common cache if possible].
    #[arg(long, value_name = "US", value_parser = number)]
    pub migrate_us: Option<f64>,
    /// Set the microseconds of all the rest (T_R).
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = number)]
    pub rest_us: f64,
    /// Set the bytes of a strip, for the reads per second that the link can carry (equation 7).
    #[arg(long, value_name = "N", requires = "gbit_per_s",
          value_parser = whole_number::<u64>(1..=u64::MAX))]
    pub strip_bytes: Option<u64>,
    /// Set the bandwidth of the client's link, in Gbit/s.
    #[arg(long, value_name = "N", requires = "strip_bytes", value_parser = number)]
    pub gbit_per_s: Option<f64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
