//! The commands that measure: `bench`, `noise` and `repro`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_bench::sais::{Part as SaisPart, Reader};
use evenkeel_experiment::guest::Clock;

/// `evenkeel-lab bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Which part.
    #[command(subcommand)]
    pub part: BenchPart,
}

/// The parts of `bench`.
#[derive(Debug, Subcommand)]
pub enum BenchPart {
    /// The capability balancer against the kernel and pinning, under noise.
    Capability(CapabilityArgs),
    /// What deciding costs: instructions of a plan, and the time of a whole interval.
    Plan(PlanArgs),
    /// What the daemon costs with 50 programs of 2,000 threads, and whether anything grows while
    /// they join and leave (about two minutes).
    Daemon(DaemonCostArgs),
    /// The keel against the kernel's own scheduler and its peers, in virtual machines.
    Keel(KeelArgs),
    /// Sibling aggregation (the keel's order `ias`) in a virtual machine: what it costs, what it brings
    /// together, how long others wait for it (about twenty minutes with --rounds 6).
    Ias(TurnArgs),
    /// Programs on unequal CPUs under the keel, with and without capability, and under the user-level
    /// balancer, in virtual machines.
    Balance(BalanceArgs),
    /// What the keel's gate does to urgent tasks, over how busy the machine is, in a virtual machine.
    Zone(ZoneBenchArgs),
    /// The same programs run freely under the keel on a real kernel, in virtual machines, and in the
    /// simulator: what each thread got, compared.
    Free(TurnArgs),
    /// What it costs to fill a core's caches again after another address space or on another CPU,
    /// on this machine, and what the simulator's machine has for that (some minutes).
    Refill(RefillArgs),
    /// Packets processed where their data is wanted, against the kernel's ways: in memory and between
    /// network namespaces.
    Sais(SaisBenchArgs),
}

/// `evenkeel-lab bench refill`.
#[derive(Debug, Args)]
pub struct RefillArgs {
    /// In some seconds: few sizes, few turns, no certainty.
    #[arg(long, conflicts_with = "from")]
    pub quick: bool,
    /// Measure nothing: fit and show what an earlier --json wrote.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Write points and fits as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write this machine with the costs that were fitted as a machine file (the simulator's preset
    /// `measured` is product/machine/presets/measured.toml).
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Write everything as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Only be a process on this CPU that walks over so many KiB when told to (run by the command
    /// itself).
    #[arg(long, value_name = "CPU:KIB", hide = true)]
    pub stranger: Option<Stranger>,
}

/// `1:4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stranger {
    /// Where it runs.
    pub cpu: u32,
    /// What it walks over.
    pub kib: usize,
}

impl std::str::FromStr for Stranger {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text
            .split_once(':')
            .and_then(|(cpu, kib)| Some(Self { cpu: cpu.parse().ok()?, kib: kib.parse().ok()? }));
        numbers.ok_or_else(|| "expected a CPU and KiB, like 1:4096".to_owned())
    }
}

/// `evenkeel-lab bench sais`.
#[derive(Debug, Args)]
pub struct SaisBenchArgs {
    /// Only measure P and M of the paper's analysis, for `evenkeel sais model`.
    #[arg(long)]
    pub measure_pm: bool,
    /// Only these parts: memory (strips in memory), network (parallel reads), placement (where and
    /// in which order one connection's packets are processed, and whether hints come back; in seconds),
    /// programs (nginx and iperf3, which `scripts/programs` fetches), packets (what a packet costs, in a
    /// virtual machine).
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "measure_pm")]
    pub parts: Vec<SaisPart>,
    /// In the virtual machine: measure what a packet costs.
    #[arg(long, hide = true)]
    pub inside: bool,
    /// Be a client of a parallel read, told by standard input when to count and when to end.
    #[arg(long, value_name = "SERVERS:BYTES", hide = true)]
    pub reader: Option<Reader>,
    /// In a minute or two: few rows, few runs, no certainty.
    #[arg(long, conflicts_with = "measure_pm")]
    pub quick: bool,
    /// Measure nothing: show what an earlier --json wrote (with --markdown, as a page).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["measure_pm", "parts", "quick"])]
    pub from: Option<PathBuf>,
    /// Write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write everything as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
}

/// `evenkeel-lab bench capability`.
#[derive(Debug, Args)]
pub struct CapabilityArgs {
    /// Only these cases: none, softirq, softirq-fine, fifo-spin, fifo-sleep, hog, udp.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cases: Vec<String>,
    /// Only these contestants, beside `default`, the kernel alone: pinned (each thread bound to a
    /// CPU), fast-only (all threads on the CPUs without noise), paper (the paper's policy at 1s,
    /// placement hard), paper-100ms, lag (`evenkeel run` with all defaults), lag-hard and lag-soft
    /// (the same with that placement; one of the two is what `lag` does anyway).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub contestants: Vec<String>,
    /// Only these programs: static-loop, ep.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub programs: Vec<String>,
    /// Runs of each contestant to begin with; undecided rows get more [default: 7, with --demo 5].
    #[arg(long, value_name = "N")]
    pub runs: Option<usize>,
    /// Undecided rows get no more runs than this [default: 15].
    #[arg(long, value_name = "N", conflicts_with = "demo")]
    pub max_runs: Option<usize>,
    /// Write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the rows as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// The short form that `make demo` runs: two cases, five runs, under three minutes.
    #[arg(long, conflicts_with_all = ["cases", "contestants", "programs"])]
    pub demo: bool,
    /// Measure nothing: show the report that an earlier --json wrote (with --markdown, as a page).
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["cases", "contestants", "programs", "runs", "max_runs", "demo"]
    )]
    pub from: Option<PathBuf>,
}

/// `evenkeel-lab noise`.
#[derive(Debug, Args)]
pub struct NoiseArgs {
    /// softirq, fifo, udp or hog; with --verify also all.
    pub kind: String,
    /// The CPU to make unequal.
    #[arg(long, default_value_t = 0)]
    pub cpu: u32,
    /// Busy part of each period, in microseconds [default: 4000; with --verify several].
    #[arg(long)]
    pub busy_us: Option<u64>,
    /// Period in microseconds; at most half of it may be busy [default: 10000].
    #[arg(long)]
    pub period_us: Option<u64>,
    /// How long, at most.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub limit: humantime::Duration,
    /// Compare what cbinfo and /proc/stat see with what the generator did (a few seconds a kind).
    #[arg(long)]
    pub verify: bool,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `evenkeel-lab bench plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Only plan for a machine of this size (run under callgrind by the command itself).
    #[arg(long, value_name = "CPUSxTASKS", hide = true)]
    pub size: Option<MachineSize>,
    /// Only be a process of so many sleeping threads (observed by the command itself).
    #[arg(long, value_name = "N", hide = true)]
    pub crowd: Option<u32>,
}

/// `evenkeel-lab bench daemon`.
#[derive(Debug, Args)]
pub struct DaemonCostArgs {
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `evenkeel-lab bench keel`.
#[derive(Debug, Args)]
pub struct KeelArgs {
    /// Only these peers, beside the kernel's own scheduler and the keel [default: all of scx_flash,
    /// scx_bpfland, scx_cosmos that scripts/peers has built].
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "from")]
    pub peers: Vec<String>,
    /// How they take turns.
    #[command(flatten)]
    pub turns: TurnArgs,
}

/// `evenkeel-lab bench balance`.
#[derive(Debug, Args)]
pub struct BalanceArgs {
    /// How they take turns.
    #[command(flatten)]
    pub turns: TurnArgs,
    /// Only be busy threads, a CPU one, the first with so many computations, the second with twice as
    /// many (run in the guest by the command itself).
    #[arg(long, value_name = "N", hide = true)]
    pub hogs: Option<u64>,
}

/// `evenkeel-lab bench zone`.
#[derive(Debug, Args)]
pub struct ZoneBenchArgs {
    /// How they take turns.
    #[command(flatten)]
    pub turns: TurnArgs,
}

/// What all experiments share in which schedulers take turns in virtual machines.
#[derive(Debug, Args)]
pub struct TurnArgs {
    /// Only on these machines: counted (4 CPUs, time is instructions), timed (2 CPUs, time is the
    /// host's).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub clocks: Vec<Clock>,
    /// Rounds: how often each contestant has its turn [default: 10].
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Only these contestants, and the first one, with which all are compared.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub contestants: Vec<String>,
    /// Only these figures, or those with names that begin so: what no figure needs is not run,
    /// where that can be told.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub figures: Vec<String>,
    /// Write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the rows as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Measure nothing: show the report that an earlier --json wrote (with --markdown, as a page).
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["clocks", "rounds", "contestants", "figures"])]
    pub from: Option<PathBuf>,
    /// Only measure one round under this contestant (run in the guest by the command itself).
    #[arg(long, value_name = "CONTESTANT", hide = true)]
    pub inside: Option<String>,
    /// There, measure also what its callbacks cost.
    #[arg(long, hide = true, requires = "inside")]
    pub costs: bool,
}

/// `evenkeel-lab repro`.
#[derive(Debug, Args)]
pub struct ReproArgs {
    /// The paper's number: 000 (the capability balancer), 001 (source-aware interrupts), 002 (balancing
    /// by capability on NUMA machines, simulated), 003 (sibling aggregation, simulated), 004 (operation
    /// zones, simulated).
    pub paper: String,
    /// Only these parts, for example figure-8,table-3 [default: all; about an hour for 000, a quarter
    /// of one for 001, some minutes for each of the others].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub parts: Vec<String>,
    /// Runs of each contestant, from 002 on seeds of each case [default: 5, for 001 6, for 002 30, for
    /// 003 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=100))]
    pub runs: Option<u16>,
    /// One short run of everything: shows that it works, decides nothing (one or two minutes).
    #[arg(long, conflicts_with = "runs")]
    pub quick: bool,
    /// Fail (exit code 1) where an aim was missed, and name it. Not with --quick: so few runs prove
    /// nothing, and their findings are dropped.
    #[arg(long, conflicts_with = "quick")]
    pub check: bool,
    /// Take the parts that are not measured now from what an earlier --json wrote.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Write everything as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with all pictures in it, NNN.html, into this directory.
    #[arg(long, value_name = "DIR")]
    pub html: Option<PathBuf>,
    /// Write the page of docs/results, NNN.md, with the pictures that it shows (SVG) into this
    /// directory.
    #[arg(long, value_name = "DIR")]
    pub docs: Option<PathBuf>,
}

/// `1024x10000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineSize {
    /// CPUs, 1..=1024.
    pub cpus: u32,
    /// Tasks.
    pub tasks: u32,
}

impl std::str::FromStr for MachineSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('x').and_then(|(cpus, tasks)| {
            Some(Self { cpus: cpus.parse().ok()?, tasks: tasks.parse().ok()? })
        });
        numbers
            .filter(|size| (1..=1024).contains(&size.cpus))
            .ok_or_else(|| "expected CPUs (1 to 1024) and tasks, like 1024x10000".to_owned())
    }
}
