//! The command `bench`: one benchmark each, with its options.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel::cli::{number, whole_number};
use evenkeel_bench::irq::Part as IrqPart;
use evenkeel_bench::levers;
use evenkeel_bench::sais::{Part as SaisPart, Reader};
use evenkeel_experiment::guest::Clock;

/// `evenkeel-lab bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The benchmark.
    #[command(subcommand)]
    pub part: BenchPart,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum BenchPart {
    /// Compare the capability balancer with the kernel and with pinning, under noise.
    Capability(CapabilityArgs),
    /// Compare jobs of Slurm on this node with and without `srun --evenkeel`: ranks of MPI that wait for
    /// each other, one CPU noisy, and none (root, MPICH, about twenty minutes; `make bench-cluster` sets
    /// a Slurm up).
    Cluster(ClusterArgs),
    /// Compare the levers of `evenkeel run` on parallel programs with the kernel, pinning and a split by
    /// hand, under noise; goes on where an earlier run stopped (three hours for what is claimed).
    Programs(ProgramsArgs),
    /// Measure what deciding costs: the instructions of a plan and the time of a whole interval.
    Plan(PlanArgs),
    /// Calculate what `evenkeel run` and `run --shares` do on machines of 16 to 128 CPUs of two speeds,
    /// for barriers every 1 ms to 1 s (less than a minute).
    Large(LargeArgs),
    /// Measure what the daemon costs with 50 programs of 2,000 threads, and whether its memory or
    /// descriptors grow while they join and leave (about two minutes).
    Daemon(DaemonCostArgs),
    /// Measure what it costs to see how programs wait: system calls of other tasks, samples, and
    /// wake-ups at barriers (about a minute).
    Waiting(WaitingCostArgs),
    /// Measure what `evenkeel run` adds to a program that ends at once, and to one of 1.2 s (about a
    /// minute).
    Startup(StartupCostArgs),
    /// Compare the keel with the kernel's own scheduler and with peers, in virtual machines.
    Keel(KeelArgs),
    /// Measure sibling aggregation (the keel's order `ias`) in a virtual machine: its cost, how many
    /// siblings run together, how long other tasks wait (about twenty minutes with --rounds 6).
    Ias(TurnArgs),
    /// Compare the keel with and without capability, and the user-level balancer, on unequal CPUs in
    /// virtual machines.
    Balance(BalanceArgs),
    /// Measure what the keel's gate does to urgent tasks at several utilisations, in a virtual machine.
    Zone(TurnArgs),
    /// Compare what each thread gets under the keel on a real kernel, in virtual machines, and in the
    /// simulator.
    Free(TurnArgs),
    /// Measure what refilling a core's caches costs after another address space or on another CPU of
    /// this machine, and show what the simulator's machine assumes (some minutes).
    Refill(RefillArgs),
    /// Calculate and simulate what noise costs a job on 1 to 10,000 nodes, with and without evenkeel,
    /// and measure what evenkeel says on each node (a few minutes).
    Scale(ScaleArgs),
    /// Compare packets processed on the consumer's CPU with the kernel's ways, in memory and between
    /// network namespaces.
    Sais(SaisBenchArgs),
    /// Compare `evenkeel irq run` with the kernel's ways and irqbalance on a virtual card with many
    /// queues: packets brought to their consumers, and a program beside a hot queue (root, about an
    /// hour).
    Irq(IrqBenchArgs),
}

/// `evenkeel-lab bench irq`.
#[derive(Debug, Args)]
pub struct IrqBenchArgs {
    /// Measure only these parts: queues (packets received by many queues), noise (a program beside a
    /// hot queue) [default: both].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub parts: Vec<IrqPart>,
    /// Measure few rows in few runs, which decides nothing (about two minutes).
    #[arg(long, conflicts_with = "from")]
    pub quick: bool,
    /// Measure nothing: show the file of an earlier --json (with --markdown or --html, as a page).
    #[arg(long, value_name = "FILE", conflicts_with = "parts")]
    pub from: Option<PathBuf>,
    /// Where the figures go.
    #[command(flatten)]
    pub pages: PageArgs,
}

/// `evenkeel-lab bench refill`.
#[derive(Debug, Args)]
pub struct RefillArgs {
    /// Measure few sizes in few turns, which decides nothing (some seconds).
    #[arg(long, conflicts_with = "from")]
    pub quick: bool,
    /// Measure nothing: fit and show the file of an earlier --json.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Write points and fits as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write this machine with the fitted costs as a machine file, like the simulator's preset
    /// `measured` (product/machine/presets/measured.toml).
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Write everything as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write everything as an HTML page with charts, which needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Be a process on this CPU that walks over so many KiB when told to (the command starts it itself).
    #[arg(long, value_name = "CPU:KIB", hide = true)]
    pub stranger: Option<Stranger>,
}

/// A process that disturbs the caches of a CPU, written like `1:4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stranger {
    /// The CPU that it runs on.
    pub cpu: u32,
    /// The memory that it walks over, in KiB.
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

/// `evenkeel-lab bench scale`.
#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// Simulate few cells and phases, which decides nothing (less than a minute).
    #[arg(long, conflicts_with = "from")]
    pub quick: bool,
    /// Simulate and measure nothing: show the file of an earlier --json.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Where the figures go.
    #[command(flatten)]
    pub pages: PageArgs,
}

/// `evenkeel-lab bench sais`.
#[derive(Debug, Args)]
pub struct SaisBenchArgs {
    /// Measure only P and M of the paper's analysis, for `evenkeel sais model`.
    #[arg(long)]
    pub measure_pm: bool,
    /// Measure only these parts: memory (strips in memory), network (parallel reads), placement (the
    /// CPU and the order in which one connection's packets are processed, and whether hints come back;
    /// some seconds), programs (nginx and iperf3, which `scripts/programs` fetches), packets (what a
    /// packet costs, in a virtual machine) [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "measure_pm")]
    pub parts: Vec<SaisPart>,
    /// Measure what a packet costs (the command runs it in the guest itself).
    #[arg(long, hide = true)]
    pub inside: bool,
    /// Be a client of a parallel read; standard input says when to count and when to end.
    #[arg(long, value_name = "SERVERS:BYTES", hide = true)]
    pub reader: Option<Reader>,
    /// Measure few rows in few runs, which decides nothing (one or two minutes).
    #[arg(long, conflicts_with = "measure_pm")]
    pub quick: bool,
    /// Measure nothing: show the file of an earlier --json (with --markdown or --html, as a page).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["measure_pm", "parts", "quick"])]
    pub from: Option<PathBuf>,
    /// Where the figures go.
    #[command(flatten)]
    pub pages: PageArgs,
}

/// `evenkeel-lab bench capability`.
#[derive(Debug, Args)]
pub struct CapabilityArgs {
    /// Measure only these cases: none, softirq, softirq-fine, fifo-spin, fifo-sleep, hog, udp [default:
    /// all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cases: Vec<String>,
    /// Measure only these contestants beside `default`, the kernel alone: pinned (each thread on one
    /// CPU), fast-only (all threads on the CPUs without noise), paper (the paper's policy at 1s,
    /// placement hard), paper-100ms, lag (`evenkeel run` with all defaults), lag-hard and lag-soft (the
    /// same with that placement; `lag` is the same as one of the two) [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub contestants: Vec<String>,
    /// Measure only these programs: static-loop, ep [default: both].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub programs: Vec<String>,
    /// Run each contestant so often at first; undecided rows get more runs [default: 7].
    #[arg(long, value_name = "N",
          value_parser = whole_number::<usize>(0..=u64::MAX))]
    pub runs: Option<usize>,
    /// Stop after so many runs of undecided rows [default: 15].
    #[arg(long, value_name = "N",
          value_parser = whole_number::<usize>(0..=u64::MAX))]
    pub max_runs: Option<usize>,
    /// Write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the rows as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write everything as an HTML page with charts, which needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Measure nothing: show the file of an earlier --json (with --markdown or --html, as a page).
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["cases", "contestants", "programs", "runs", "max_runs"]
    )]
    pub from: Option<PathBuf>,
}

/// `evenkeel-lab bench cluster`.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// The name of this host as a node of Slurm [default: the host's name].
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Run each contestant so often at first; undecided rows get more runs [default: 7].
    #[arg(long, value_name = "N", conflicts_with = "quick",
          value_parser = whole_number::<usize>(0..=u64::MAX))]
    pub runs: Option<usize>,
    /// Measure one program in two rounds, which decides nothing (less than a minute).
    #[arg(long, conflicts_with = "from")]
    pub quick: bool,
    /// Measure nothing: show the file of an earlier --json (with --markdown or --html, as a page).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["node", "runs"])]
    pub from: Option<PathBuf>,
    /// Write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the rows as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write everything as an HTML page with charts, which needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `evenkeel-lab bench programs`.
#[derive(Debug, Args)]
pub struct ProgramsArgs {
    /// Measure only this part, for example lu.W-gcc/softirq-fine/run or lu/udp; * and what is left out
    /// stand for all; may be given several times [default: all, the claimed cells first].
    #[arg(long, value_name = "PROGRAM/NOISE/CONTESTANT", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Measure only the cells that something is claimed of, and in them no other contestants than the
    /// claims need.
    #[arg(long)]
    pub claims: bool,
    /// Measure one program under two noises in three rounds, which decides nothing (some seconds).
    #[arg(long, conflicts_with_all = ["only", "claims"])]
    pub quick: bool,
    /// Measure what `make demo` shows: three programs, each with the lever that fits it (under three
    /// minutes).
    #[arg(long, conflicts_with_all = ["only", "claims", "quick", "hours"])]
    pub demo: bool,
    /// Run each contestant of --demo so often [default: 6].
    #[arg(long, value_name = "N", requires = "demo",
          value_parser = whole_number::<usize>(0..=u64::MAX))]
    pub runs: Option<usize>,
    /// Begin no cell after so many hours.
    #[arg(long, value_name = "H", default_value_t = levers::HOURS, value_parser = number)]
    pub hours: f64,
    /// Write everything as JSON, after each cell; cells that are there already are not measured again.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write everything as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write everything as an HTML page with charts, which needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Measure nothing: show the file of an earlier --json (with --markdown or --html, as a page).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "claims", "quick", "demo", "json"])]
    pub from: Option<PathBuf>,
}

/// Where the figures of a cost go.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write everything as an HTML page, which needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Where the figures of a benchmark with a page go.
#[derive(Debug, Args)]
pub struct PageArgs {
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write everything as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write everything as an HTML page with charts, which needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `evenkeel-lab bench plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Where the figures go.
    #[command(flatten)]
    pub files: FileArgs,
    /// Plan for a machine of this size (the command runs it under callgrind itself).
    #[arg(long, value_name = "CPUSxTASKS", hide = true)]
    pub size: Option<MachineSize>,
    /// Be a process of so many sleeping threads (the command starts and observes it itself).
    #[arg(long, value_name = "N", hide = true,
          value_parser = whole_number::<u32>(0..=u64::from(u32::MAX)))]
    pub crowd: Option<u32>,
}

/// `evenkeel-lab bench large`.
#[derive(Debug, Args)]
pub struct LargeArgs {
    /// Calculate the smallest machine and short programs only, which decides nothing (some seconds).
    #[arg(long)]
    pub quick: bool,
    /// Where the figures go.
    #[command(flatten)]
    pub files: FileArgs,
}

/// `evenkeel-lab bench daemon`.
#[derive(Debug, Args)]
pub struct DaemonCostArgs {
    /// Where the figures go.
    #[command(flatten)]
    pub files: FileArgs,
}

/// `evenkeel-lab bench waiting`.
#[derive(Debug, Args)]
pub struct WaitingCostArgs {
    /// Measure in few turns, which decides nothing (some seconds).
    #[arg(long)]
    pub quick: bool,
    /// Where the figures go.
    #[command(flatten)]
    pub files: FileArgs,
}

/// `evenkeel-lab bench startup`.
#[derive(Debug, Args)]
pub struct StartupCostArgs {
    /// Measure in few rounds, which decides nothing (some seconds).
    #[arg(long)]
    pub quick: bool,
    /// Where the figures go.
    #[command(flatten)]
    pub files: FileArgs,
}

/// `evenkeel-lab bench keel`.
#[derive(Debug, Args)]
pub struct KeelArgs {
    /// Measure only these peers beside the kernel's own scheduler and the keel [default: those of
    /// scx_flash, scx_bpfland, scx_cosmos, scx_lavd that scripts/peers has built].
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "from")]
    pub peers: Vec<String>,
    /// How the contestants take turns.
    #[command(flatten)]
    pub turns: TurnArgs,
}

/// `evenkeel-lab bench balance`.
#[derive(Debug, Args)]
pub struct BalanceArgs {
    /// How the contestants take turns.
    #[command(flatten)]
    pub turns: TurnArgs,
    /// Be busy threads, one for each CPU: the first with so many computations, the second with twice as
    /// many (the command runs it in the guest itself).
    #[arg(long, value_name = "N", hide = true, value_parser = whole_number::<u64>(0..=u64::MAX))]
    pub hogs: Option<u64>,
}

/// The options of all benchmarks in which schedulers take turns in virtual machines.
#[derive(Debug, Args)]
pub struct TurnArgs {
    /// Measure only in these guests: counted (4 CPUs, its clock counts instructions), timed (2 CPUs,
    /// its clock is the host's) [default: those that the benchmark needs].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub clocks: Vec<Clock>,
    /// Give each contestant so many turns [default: 10].
    #[arg(long, value_name = "N",
          value_parser = whole_number::<usize>(0..=u64::MAX))]
    pub rounds: Option<usize>,
    /// Measure only these contestants and the baseline [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub contestants: Vec<String>,
    /// Measure only figures with names that begin so; programs that no figure needs are not run, as far
    /// as that is known [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub figures: Vec<String>,
    /// Write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the rows as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write everything as an HTML page with charts, which needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Measure nothing: show the file of an earlier --json (with --markdown or --html, as a page).
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["clocks", "rounds", "contestants", "figures"])]
    pub from: Option<PathBuf>,
    /// Measure one round under this contestant (the command runs it in the guest itself).
    #[arg(long, value_name = "CONTESTANT", hide = true)]
    pub inside: Option<String>,
    /// Measure in that round also what the callbacks cost.
    #[arg(long, hide = true, requires = "inside")]
    pub costs: bool,
}

/// The size of a machine and its load, written like `1024x10000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineSize {
    /// The number of CPUs, 1..=1024.
    pub cpus: u32,
    /// The number of tasks.
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
