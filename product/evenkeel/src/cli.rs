//! The command line: every command, flag and help text. Man pages and shell completions are made
//! from this definition. The keel's commands are in `keel`, those of packets in `sais`.

mod keel;
mod sais;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Deserialize;

pub use keel::{IasArgs, IasCommand, SchedArgs, SchedOptions, ZoneArgs, ZoneCommand, ZoneOptions};
pub use sais::{AttachArgs, ModelArgs, SaisArgs, SaisPart, ServeArgs};

/// Parallel programs at the pace of the average CPU, not of the worst.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Log more: -v decisions, -vv details.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// Read this configuration file instead of /etc/evenkeel/config.toml and
    /// $XDG_CONFIG_HOME/evenkeel/config.toml.
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

/// The commands, one name each.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a parallel program at the average capability of its CPUs.
    Run(RunArgs),
    /// Balance many programs: the service that they join by launch, number, name or cgroup.
    Daemon(DaemonArgs),
    /// Have a running program balanced by the daemon.
    Join(JoinArgs),
    /// Let a program that joined the daemon go.
    Leave(LeaveArgs),
    /// Say what works on this machine and what not, why, and what a program could gain now.
    Doctor(DoctorArgs),
    /// Show the programs that are being balanced.
    Status(JsonArgs),
    /// Say why the last decisions went as they did.
    Explain(ExplainArgs),
    /// Take back what a killed evenkeel left.
    Undo(UndoArgs),
    /// Run the whole machine under the keel, a scheduler of exchangeable policies (sched_ext).
    Sched(SchedArgs),
    /// Say which threads run in a row and which CPUs follow each other (paper 003).
    Ias(IasArgs),
    /// Look at and turn the knobs of a running keel's gate (paper 004).
    Zone(ZoneArgs),
    /// Have packets processed on the core of the program that waits for them.
    Sais(SaisArgs),
    /// Write man pages or shell completions into a directory (used by `make install`).
    #[command(hide = true)]
    Generate(GenerateArgs),
    /// Watch over a journal on behalf of `run` (started by it).
    #[command(hide = true)]
    Supervise(SuperviseArgs),
    /// Now a command of evenkeel-lab.
    #[command(hide = true, disable_help_flag = true)]
    Sim(MovedArgs),
    /// Now a command of evenkeel-lab.
    #[command(hide = true, disable_help_flag = true)]
    Bench(MovedArgs),
    /// Now a command of evenkeel-lab.
    #[command(hide = true, disable_help_flag = true)]
    Repro(MovedArgs),
}

/// The rest of a command line that belongs to another executable.
#[derive(Debug, Args)]
pub struct MovedArgs {
    /// Options and arguments, not looked at.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

/// `evenkeel run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// How to balance.
    #[command(flatten)]
    pub options: RunOptions,
    /// Observe, and say what would be done; change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// No summary line at the end.
    #[arg(short, long)]
    pub quiet: bool,
    /// Write the summary as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print every decision with its reason to standard error.
    #[arg(long)]
    pub explain: bool,
    /// Let the daemon balance it, together with the others that joined; without a daemon, or where
    /// that refuses, it is balanced here.
    #[arg(long)]
    pub join: bool,
    /// For fault tests.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Faults on purpose.
#[derive(Debug, Args)]
pub struct FaultArgs {
    /// Kill evenkeel at its n-th journal write or affinity call (fault tests).
    #[arg(long, value_name = "N", hide = true, default_value_t = 0)]
    pub abort_at: u64,
    /// No supervisor process (fault tests).
    #[arg(long, hide = true)]
    pub no_supervisor: bool,
}

/// `evenkeel daemon`.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// How to balance (in a configuration file: table `[run]`).
    #[command(flatten)]
    pub options: RunOptions,
    /// Which programs join by themselves.
    #[command(flatten)]
    pub daemon: DaemonOptions,
    /// Observe, and say what would be done; change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Listen there for the processes of one job, and end with it (started by `run` under an MPI
    /// launcher).
    #[arg(long, value_name = "SOCKET", hide = true)]
    pub job: Option<PathBuf>,
    /// For fault tests.
    #[command(flatten)]
    pub faults: FaultArgs,
}

/// Options of `daemon` alone; in a configuration file by the same names in table `[daemon]`.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DaemonOptions {
    /// Programs whose command has this name join by themselves; may be given several times.
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,
    /// Whatever is in this cgroup joins by itself; may be given several times.
    #[arg(long = "cgroup", value_name = "PATH")]
    pub cgroups: Vec<String>,
    /// Serve OpenMetrics at this loopback address, for example 127.0.0.1:9469 [default: nowhere].
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<std::net::SocketAddr>,
}

/// `evenkeel join`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct JoinArgs {
    /// This process, its descendants, and all that they will start.
    pub pid: Option<u32>,
    /// All programs whose command has this name.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// All that is in this cgroup, now and later, as one program.
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,
}

/// `evenkeel leave`.
#[derive(Debug, Args)]
pub struct LeaveArgs {
    /// A process of the program.
    pub pid: u32,
}

/// Options of `run` that a configuration file may set too, by the same names, in table `[run]`.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RunOptions {
    /// Who goes where: `lag` gives who is furthest behind the most capable CPU; `paper` swaps
    /// tasks in the published eight steps [default: lag].
    #[arg(long, value_enum)]
    pub policy: Option<PolicyName>,
    /// Which task the paper's policy moves: `fifo` the first in the runqueue; `cache` the one whose
    /// process referenced the least memory lately (threads of one process cannot be told apart).
    /// That is measured, even with --dry-run, by wiping the kernel's notes of which pages are in
    /// use: under memory pressure the kernel may then take the wrong ones [default: fifo].
    #[arg(long, value_enum)]
    pub selection: Option<SelectionName>,
    /// Balance interval, for example 100ms or 1s; without it, lag adapts between 50ms and 1s, and
    /// paper uses 1s.
    #[arg(long, value_name = "TIME")]
    pub interval: Option<Interval>,
    /// `soft` moves a task and gives its mask back at once; `hard` pins it until the next move
    /// [default: soft].
    #[arg(long, value_enum)]
    pub placement: Option<PlacementName>,
    /// Where figures come from: exact from BPF (cbinfo), approximate from /proc, or the best that
    /// is possible [default: auto].
    #[arg(long, value_enum)]
    pub accounting: Option<AccountingName>,
    /// Use only these CPUs, for example 0-3,8.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Relative speed of the CPUs: auto, cpu-capacity, cppc, max-frequency, bogomips, calibrated
    /// (measure now), or given like 0-3=1.0,4-7=0.5 [default: auto].
    #[arg(long, value_name = "SOURCE")]
    pub speed: Option<String>,
    /// Move also tasks that their user pinned.
    #[arg(long = "override")]
    #[serde(rename = "override")]
    pub override_user: bool,
}

impl RunOptions {
    /// The flags that say the same.
    pub fn flags(&self) -> Vec<OsString> {
        fn name(value: &impl ValueEnum) -> Option<String> {
            Some(value.to_possible_value()?.get_name().to_owned())
        }
        let values = [
            ("--policy", self.policy.as_ref().and_then(name)),
            ("--selection", self.selection.as_ref().and_then(name)),
            ("--interval", self.interval.map(|interval| format!("{}us", interval.ns / 1000))),
            ("--placement", self.placement.as_ref().and_then(name)),
            ("--accounting", self.accounting.as_ref().and_then(name)),
            ("--cpus", self.cpus.clone()),
            ("--speed", self.speed.clone()),
        ];
        let mut flags: Vec<OsString> = values
            .into_iter()
            .filter_map(|(flag, value)| Some([flag.into(), value?.into()]))
            .flatten()
            .collect();
        if self.override_user {
            flags.push("--override".into());
        }
        flags
    }
}

/// `--policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// Lag.
    Lag,
    /// The paper's steps.
    Paper,
}

/// `--selection`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectionName {
    /// Runqueue order.
    Fifo,
    /// Smallest working set.
    Cache,
}

/// `--placement`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementName {
    /// Move and let go.
    Soft,
    /// Pin.
    Hard,
}

/// `--accounting`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccountingName {
    /// The best that is possible.
    Auto,
    /// Exact, by BPF.
    Cbinfo,
    /// Approximate, from /proc.
    Procfs,
}

/// A balance interval, 1 ms to 60 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Interval {
    /// Nanoseconds.
    pub ns: u64,
}

impl std::str::FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit_ns = match unit {
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => return Err("expected a whole number with unit, like 100ms or 1s".to_owned()),
        };
        let ns = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ns));
        match ns {
            Some(ns @ 1_000_000..=60_000_000_000) => Ok(Self { ns }),
            Some(_) => Err("out of range: an interval is 1ms to 60s".to_owned()),
            None => Err("expected a whole number with unit, like 100ms or 1s".to_owned()),
        }
    }
}

impl TryFrom<String> for Interval {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|why| format!("interval \"{text}\": {why}"))
    }
}

/// `evenkeel doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// As JSON, on standard output.
    #[arg(long)]
    pub json: bool,
    /// How long to watch the CPUs.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub watch: Interval,
    /// Measure the speed of each CPU, too (20 ms each).
    #[arg(long)]
    pub calibrate: bool,
}

/// Commands that only report.
#[derive(Debug, Args)]
pub struct JsonArgs {
    /// As JSON, on standard output.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Only this program: its first process, or its balancer.
    pub pid: Option<u32>,
    /// What the running keel's gate answered last, and why.
    #[arg(long, conflicts_with = "pid")]
    pub keel: bool,
    /// Only where the packets of each connection go, and why (as `evenkeel sais explain`).
    #[arg(long, conflicts_with_all = ["pid", "keel", "last"])]
    pub sais: bool,
    /// Only the last N decisions.
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    pub last: usize,
    /// As JSON, on standard output.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel undo`.
#[derive(Debug, Args)]
pub struct UndoArgs {
    /// Also take back what living balancers did; they let go of these tasks.
    #[arg(long)]
    pub force: bool,
    /// As JSON, on standard output.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// What.
    #[arg(value_enum)]
    pub what: Generated,
    /// Where to.
    pub directory: PathBuf,
}

/// What can be generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Generated {
    /// One man page a command.
    Man,
    /// Completions for bash, zsh and fish.
    Completions,
}

/// `evenkeel supervise`.
#[derive(Debug, Args)]
pub struct SuperviseArgs {
    /// The journal to undo when the balancer dies.
    pub journal: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_what_the_options_say() {
        let words = [
            "evenkeel",
            "run",
            "--policy",
            "paper",
            "--selection",
            "cache",
            "--interval",
            "20ms",
            "--placement",
            "hard",
            "--accounting",
            "procfs",
            "--cpus",
            "0-1",
            "--speed",
            "auto",
            "--override",
            "--",
            "true",
        ];
        let options = |words: Vec<OsString>| match Cli::try_parse_from(words).unwrap().command {
            Command::Run(args) => args.options,
            other => panic!("{other:?}"),
        };
        let first = options(words.iter().map(OsString::from).collect());
        let flags = first.flags();
        assert_eq!(flags.len(), 15, "{flags:?}");
        let head = ["evenkeel", "run"].map(OsString::from).to_vec();
        let tail = ["--", "true"].map(OsString::from).to_vec();
        let again = options([head, flags, tail].concat());
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
    }
}
