//! The command line of the laboratory: every command, flag and help text. Man pages and shell
//! completions are made from this definition.

mod bench;
mod completion;
mod examples;
mod noise;
mod record;
mod report;
mod repro;
mod sim;

use clap::{CommandFactory, Parser, Subcommand};
use evenkeel::cli::{GenerateArgs, with_examples};

pub use bench::{
    BalanceArgs, BenchArgs, BenchPart, CapabilityArgs, ClusterArgs, FileArgs, IrqBenchArgs,
    PageArgs, PlanArgs, ProgramsArgs, RefillArgs, SaisBenchArgs, ScaleArgs, Stranger, TurnArgs,
};
pub use examples::SECTIONS;
pub use noise::NoiseArgs;
pub use record::RecordArgs;
pub use report::ReportArgs;
pub use repro::ReproArgs;
pub use sim::{
    CostArgs, EngineName, FigureName, PolicyArgs, SimArgs, SimBenchArgs, SimCompareArgs, SimPart,
    SimReplayArgs, SimRunArgs, SimSweepArgs,
};

/// The laboratory of evenkeel: simulates, measures, and repeats the papers' experiments.
#[derive(Debug, Parser)]
#[command(name = "evenkeel-lab", version, arg_required_else_help = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Log more: -v decisions, -vv details; beside --version, say which commit it is and what works
    /// here.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
}

/// The whole command line, with examples, and with what the shell offers.
pub fn command() -> clap::Command {
    let command = with_examples(Cli::command(), "evenkeel-lab", examples::examples);
    completion::with_candidates(command)
}

/// The commands, those that belong together beside each other.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Simulate: run the keel's own source on machines that are not at hand.
    Sim(Box<SimArgs>),
    /// Record a tape: run the keel on this machine, and write down all that it is told and does.
    Record(Box<RecordArgs>),
    /// Replay a tape: tell the keel again what it was told, and compare what it decides.
    Replay(SimReplayArgs),
    /// Measure evenkeel against the kernel and its peers.
    Bench(BenchArgs),
    /// Measure a paper's figures and tables again, and show which were reproduced.
    Repro(ReproArgs),
    /// Take time of a CPU for a while, or check the accounting against that.
    Noise(NoiseArgs),
    /// Describe this machine, and what evenkeel does on it, in an archive to send in (a quarter of an
    /// hour).
    Report(ReportArgs),
    /// Write man pages or shell completions into a directory (used by `make install`).
    #[command(hide = true)]
    Generate(GenerateArgs),
}
