//! The command line: all commands, options and help texts. Man pages and shell completions are
//! generated from this definition. The commands of the keel are in `keel`, those for packets in `sais`,
//! for interrupts in `irq`, `cluster`, `compare` and `top` in files of their names, and arguments of
//! several commands in `shared`. What help and man pages show beside them is in `help` and `examples`,
//! what the shell offers in `completion`.

mod cluster;
mod compare;
pub mod completion;
mod examples;
mod help;
mod irq;
mod keel;
mod sais;
mod shared;
mod top;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use evenkeel_host::daemon::MetricsAddress;
use schemars::JsonSchema;
use serde::Deserialize;

pub use cluster::{
    ClusterArgs, ClusterLineArgs, ClusterOptions, ClusterPart, ClusterReportArgs, JobId,
};
pub use compare::{CompareArgs, PLAIN_CONTESTANTS};
pub use examples::{Example, examples, with_examples};
pub use irq::{
    IrqArgs, IrqMode, IrqOnceArgs, IrqOptions, IrqPart, IrqPlanArgs, IrqRunArgs, IrqStatusArgs,
    RoundTime,
};
pub use keel::{IasArgs, IasCommand, SchedArgs, SchedOptions, ZoneArgs, ZoneCommand, ZoneOptions};
pub use sais::{AttachArgs, ModelArgs, SaisArgs, SaisPart, ServeArgs};
pub use shared::{CgroupPath, CommandName, FaultArgs, Interval, JsonArgs};
pub use shared::{number, time, whole_number};
pub use top::TopArgs;

use shared::process_number;
use top::reading_time;

/// Parallel programs at the pace of the average CPU, not of the worst.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Log more: -v moves, -vv details; beside --version, say which commit it is and what works here.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// Read this configuration file instead of /etc/evenkeel/config.toml and
    /// $XDG_CONFIG_HOME/evenkeel/config.toml.
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

/// Names of the executable from the papers, each with the words that it stands for: `chcb CMD` is
/// `evenkeel run CMD`, `capability-balancer` is `evenkeel daemon` (paper 000, section 3.3), and
/// `set_ias_agg` and `set_ias_alloc` are `evenkeel ias set-agg` and `alloc` (paper 003, section 3).
pub const OTHER_NAMES: [(&str, &[&str]); 4] = [
    ("chcb", &["run"]),
    ("capability-balancer", &["daemon"]),
    ("set_ias_agg", &["ias", "set-agg"]),
    ("set_ias_alloc", &["ias", "alloc"]),
];

/// The whole command line, with its commands in groups, with examples, and with what the shell offers.
pub fn command() -> clap::Command {
    completion::with_candidates(help::with_groups_and_examples(Cli::command()))
}

/// The commands, one name each.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a parallel program at the average capability of its CPUs.
    #[command(override_usage = "evenkeel run [OPTIONS] -- <CMD>...")]
    Run(RunArgs),
    /// Run a program with and without evenkeel, and say which is faster.
    #[command(override_usage = "evenkeel compare [OPTIONS] -- <CMD>...")]
    Compare(CompareArgs),
    /// Balance many programs, which join by process number, name or cgroup.
    Daemon(DaemonArgs),
    /// Let a running program join the daemon.
    Join(JoinArgs),
    /// End the balancing of a program by the daemon.
    ///
    /// The daemon gives back what was done to its threads, and has nothing to do with it any more. To
    /// leave it there and only count its moves, as the key l of evenkeel top does: evenkeel watch.
    Leave(LeaveArgs),
    /// Only watch a program, or balance it again.
    ///
    /// Does what the key l of evenkeel top does: what was done to the threads and loops of the program
    /// is taken back, and from then on its moves are decided and only counted. It stays with its
    /// balancer, the daemon or evenkeel run. evenkeel leave takes it out of the daemon.
    Watch(WatchArgs),
    /// Let a container join the daemon, as a hook of its OCI runtime.
    ///
    /// Reads the container's state from standard input. The container's annotation evenkeel.io/mode says
    /// what is done: run, watch (moves are only counted) or off. Never fails a container: the exit code
    /// is 0, and one line on standard error says what went wrong.
    OciHook(OciHookArgs),
    /// Check what works on this machine, and how unequal its CPUs are now.
    Doctor(DoctorArgs),
    /// Show which services run, and the programs that are balanced.
    Status(StatusArgs),
    /// Explain the last decisions.
    Explain(ExplainArgs),
    /// Watch CPUs, programs, decisions and interrupts on one screen.
    ///
    /// It changes nothing by itself. The key l has the chosen program, if it is one of your own, only
    /// watched, and balanced again, as evenkeel watch does.
    Top(TopArgs),
    /// Show what a job of Slurm gained, node by node.
    Cluster(ClusterArgs),
    /// Undo what a killed evenkeel left.
    Undo(UndoArgs),
    /// Check the configuration files, and show which values come from them.
    Config(ConfigArgs),
    /// Print what a maintainer asks for first, without names.
    Bugreport(BugreportArgs),
    /// Schedule the whole machine by the keel, in sched_ext.
    Sched(SchedArgs),
    /// Set which threads run in a row, and which CPUs follow (paper 003).
    Ias(IasArgs),
    /// Show and set the knobs of the keel's gate, and its shield.
    Zone(ZoneArgs),
    /// Steer packets to the core of the program that waits (paper 001).
    Sais(SaisArgs),
    /// Show where interrupts run and what they cost, and level them.
    Irq(IrqArgs),
    /// Write man pages or shell completions into a directory (used by `make install`).
    #[command(hide = true)]
    Generate(GenerateArgs),
    /// Undo a journal when its balancer is killed (`run` and `daemon` start this).
    #[command(hide = true)]
    Supervise(SuperviseArgs),
    /// Moved to evenkeel-lab.
    #[command(hide = true, disable_help_flag = true)]
    Sim(MovedArgs),
    /// Moved to evenkeel-lab.
    #[command(hide = true, disable_help_flag = true)]
    Bench(MovedArgs),
    /// Moved to evenkeel-lab.
    #[command(hide = true, disable_help_flag = true)]
    Repro(MovedArgs),
}

/// `evenkeel config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do with the files.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// The parts of `evenkeel config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check the system's file and the user's, or these; exit with 1 if one is wrong.
    Check(ConfigCheckArgs),
    /// Show all values that are set, as one file that has the same effect, and which file each comes
    /// from.
    Show(ConfigShowArgs),
}

/// `evenkeel config show`.
#[derive(Debug, Args)]
pub struct ConfigShowArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel config check`.
#[derive(Debug, Args)]
pub struct ConfigCheckArgs {
    /// Check these files instead.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// The words of a command that moved to another executable.
#[derive(Debug, Args)]
pub struct MovedArgs {
    /// Options and arguments, not parsed.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

/// `evenkeel run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// How to balance.
    #[command(flatten)]
    pub options: RunOptions,
    /// Only observe, and report the moves; make none.
    #[arg(long)]
    pub dry_run: bool,
    /// Print no summary at the end; in a job of Slurm also keep no record for evenkeel cluster report.
    #[arg(short, long)]
    pub quiet: bool,
    /// Write the summary as JSON to this file; - is standard output, where it follows what the command
    /// prints: a file keeps both apart. Of several ranks each has its own file, with %r in the name for
    /// the rank's number.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write where each thread ran, what took each CPU's time, the decisions and the gain to this file
    /// (%r as for --json), as a trace for ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Print every decision with its reasons to standard error.
    #[arg(long)]
    pub explain: bool,
    /// Let the daemon balance the command, by the daemon's options; without a daemon, or if it refuses,
    /// balance it here. The summary at the end has the daemon's figures (each of several ranks prints
    /// its own); evenkeel status shows them while the command runs.
    #[arg(long, conflicts_with_all = ["dry_run", "json", "perfetto", "explain"])]
    pub join: bool,
    /// Divide the iterations of OpenMP loops (clang, flang) by capability, instead of moving threads
    /// [default: off].
    #[arg(long, conflicts_with_all = ["join", "dry_run", "threads"])]
    pub shares: bool,
    /// Start K OpenMP threads for each CPU, 2 to 16, that sleep while they wait, and spread them by
    /// capability [default: as many as the program starts].
    #[arg(long, value_name = "K", value_parser = whole_number::<u8>(2..=16))]
    pub threads: Option<u8>,
    /// Also move the interrupts: away from the command's CPUs, or level over them; take that back at its
    /// end (root) [default: off].
    #[arg(long, conflicts_with = "dry_run")]
    pub move_noise: bool,
    /// For fault tests.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `evenkeel daemon`.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// How to balance (in a configuration file: table `[run]`).
    #[command(flatten)]
    pub options: RunOptions,
    /// Standing rules and metrics.
    #[command(flatten)]
    pub daemon: DaemonOptions,
    /// Only observe, and report the moves; make none.
    #[arg(long)]
    pub dry_run: bool,
    /// Serve one MPI job at this socket and end with it (`run` under an MPI launcher starts this).
    #[arg(long, value_name = "SOCKET", hide = true)]
    pub job: Option<PathBuf>,
    /// For fault tests.
    #[command(flatten)]
    pub faults: FaultArgs,
}

/// Options of `daemon` alone; in a configuration file by the same names in table `[daemon]`.
#[derive(Debug, Clone, Default, Args, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct DaemonOptions {
    /// Let programs with this command name join by themselves; may be given several times.
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<CommandName>,
    /// Let all processes of this cgroup join by themselves; may be given several times.
    #[arg(long = "cgroup", value_name = "PATH")]
    pub cgroups: Vec<CgroupPath>,
    /// Serve OpenMetrics at this loopback address, for example 127.0.0.1:9469, or for other machines at
    /// public:ADDRESS [default: off].
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<MetricsAddress>,
}

/// `evenkeel join`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct JoinArgs {
    /// A process: it joins with its descendants and all that they will start.
    #[arg(value_parser = process_number)]
    pub pid: Option<u32>,
    /// Let all programs with this command name join.
    #[arg(long, value_name = "NAME")]
    pub name: Option<CommandName>,
    /// Let all processes of this cgroup, now and later, join as one program.
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,
}

/// `evenkeel leave`.
#[derive(Debug, Args)]
pub struct LeaveArgs {
    /// A process of the program.
    #[arg(value_parser = process_number)]
    pub pid: u32,
}

/// `evenkeel watch`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// The program: its first process, or the evenkeel run that balances it.
    #[arg(value_parser = process_number)]
    pub pid: u32,
    /// Balance it again.
    #[arg(long)]
    pub off: bool,
}

/// `evenkeel oci-hook`: all that it needs is in the state of the container.
#[derive(Debug, Args)]
pub struct OciHookArgs {}

/// Options of `run` that a configuration file may set too, by the same names, in table `[run]`.
#[derive(Debug, Clone, Default, Args, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct RunOptions {
    /// Choose the policy that decides the moves [default: lag].
    #[arg(long, value_enum)]
    pub policy: Option<PolicyName>,
    /// Choose which task of a CPU the paper's policy moves [default: fifo].
    ///
    /// `cache` measures working sets, even with --dry-run: it clears the kernel's referenced bits of
    /// the program's pages, and under memory pressure the kernel may then reclaim pages in use.
    #[arg(long, value_enum)]
    pub selection: Option<SelectionName>,
    /// Set the balance interval, 1ms to 60s [default: lag adapts from 50ms to 1s, paper uses 1s].
    #[arg(long, value_name = "TIME")]
    pub interval: Option<Interval>,
    /// Choose which CPUs a program with fewer busy threads than CPUs gets [default: capable].
    #[arg(long, value_enum)]
    pub prefer: Option<PreferenceName>,
    /// Choose how a task is moved [default: soft].
    #[arg(long, value_enum)]
    pub placement: Option<PlacementName>,
    /// Choose the source of the figures [default: auto].
    #[arg(long, value_enum)]
    pub accounting: Option<AccountingName>,
    /// Count waiting in these files and functions, too, for example libmyspin.so,my_barrier; only where
    /// this process has cbinfo of its own [default: the usual OpenMP and MPI runtimes].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub runtimes: Option<Vec<String>>,
    /// Use only these CPUs, for example 0-3,8 [default: all that the cpuset allows].
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Choose the source of CPU speeds: auto, cpu-capacity, cppc, max-frequency, bogomips, calibrated
    /// (measured now), or values like 0-3=1.0,4-7=0.5 [default: auto].
    #[arg(long, value_name = "SOURCE")]
    pub speed: Option<String>,
    /// Also move tasks that their user pinned.
    #[arg(long = "override")]
    #[serde(rename = "override")]
    pub override_user: bool,
}

impl RunOptions {
    /// The flags with the same meaning.
    pub fn flags(&self) -> Vec<OsString> {
        fn name(value: &impl ValueEnum) -> Option<String> {
            Some(value.to_possible_value()?.get_name().to_owned())
        }
        let values = [
            ("--policy", self.policy.as_ref().and_then(name)),
            ("--selection", self.selection.as_ref().and_then(name)),
            ("--interval", self.interval.map(|interval| format!("{}us", interval.ns / 1000))),
            ("--prefer", self.prefer.as_ref().and_then(name)),
            ("--placement", self.placement.as_ref().and_then(name)),
            ("--accounting", self.accounting.as_ref().and_then(name)),
            ("--runtimes", self.runtimes.as_ref().map(|names| names.join(","))),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// The thread that is furthest behind gets the fastest CPU.
    Lag,
    /// CPUs swap tasks in the eight published steps (paper 000).
    Paper,
}

/// `--selection`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SelectionName {
    /// The first task in the runqueue.
    Fifo,
    /// A task of the process that referenced the least memory lately.
    Cache,
}

/// `--prefer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PreferenceName {
    /// Those that have the most to give.
    Capable,
    /// Those that need the least energy for their work, by the kernel's energy model or the kinds of
    /// cores; the program runs at their pace.
    Efficient,
}

/// `--placement`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementName {
    /// Move the task, and give its own mask back at once.
    Soft,
    /// Pin the task until its next move.
    Hard,
}

/// `--accounting`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AccountingName {
    /// cbinfo where possible, else procfs; `run` begins once something tells that CPUs are unequal.
    Auto,
    /// Exact, by BPF, at once; needs privileges, or root's daemon.
    Cbinfo,
    /// Approximate, from /proc, at once.
    Procfs,
}

/// `evenkeel doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Watch the CPUs for this long, 1ms to 60s.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub watch: Interval,
    /// Also measure the speed of each CPU (20 ms each).
    #[arg(long)]
    pub calibrate: bool,
}

/// `evenkeel status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Show it again after each TIME, 100ms to 60s, until Ctrl-C; without TIME, each 2s.
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s",
          value_parser = reading_time, conflicts_with = "json")]
    pub watch: Option<Interval>,
    /// Only ask the daemon whether it answers, for at most 4s; the exit code is 0 only if it does.
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub daemon: bool,
}

/// `evenkeel explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Only this program: its first process, or its balancer; also a program that ended lately at the
    /// daemon.
    #[arg(value_parser = process_number)]
    pub pid: Option<u32>,
    /// Explain the last answers of the running keel's gate instead (users but root: about own tasks).
    #[arg(long, conflicts_with = "pid")]
    pub keel: bool,
    /// Explain only where packets go (as `evenkeel sais explain`).
    #[arg(long, conflicts_with_all = ["pid", "keel", "last"])]
    pub sais: bool,
    /// Print only the last N decisions.
    #[arg(short, long, value_name = "N", default_value_t = 10,
          value_parser = whole_number::<usize>(0..=u64::MAX))]
    pub last: usize,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel undo`.
#[derive(Debug, Args)]
pub struct UndoArgs {
    /// Also undo the changes of live balancers, which then leave these tasks alone.
    #[arg(long)]
    pub force: bool,
    /// Undo only what killed processes left: what `irq once` set stands, and live balancers are not
    /// named (for the epilog of a batch system).
    #[arg(long, conflicts_with = "force")]
    pub killed: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel bugreport`.
#[derive(Debug, Args)]
pub struct BugreportArgs {
    /// Write it to this file instead of standard output.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `evenkeel generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// What to generate.
    #[arg(value_enum)]
    pub what: Generated,
    /// The directory to write into.
    pub directory: PathBuf,
}

/// What can be generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Generated {
    /// One man page for each command.
    Man,
    /// Completions for bash, zsh and fish.
    Completions,
    /// A JSON schema for each command of `evenkeel` that prints JSON; written by `evenkeel-lab`.
    Schemas,
}

/// `evenkeel supervise`.
#[derive(Debug, Args)]
pub struct SuperviseArgs {
    /// The journal to undo when its balancer ends.
    pub journal: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_options_have_the_same_meaning() {
        let words = [
            "evenkeel",
            "run",
            "--policy",
            "paper",
            "--selection",
            "cache",
            "--interval",
            "20ms",
            "--prefer",
            "capable",
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
        assert_eq!(flags.len(), 17, "{flags:?}");
        let head = ["evenkeel", "run"].map(OsString::from).to_vec();
        let tail = ["--", "true"].map(OsString::from).to_vec();
        let again = options([head, flags, tail].concat());
        assert_eq!(format!("{first:?}"), format!("{again:?}"));
    }
}
