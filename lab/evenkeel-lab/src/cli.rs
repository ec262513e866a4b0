//! The laboratory's command line: every command, flag and help text. Man pages and shell completions are
//! made from this definition.

mod measure;
mod sim;

use clap::{Parser, Subcommand};
use evenkeel::cli::GenerateArgs;

pub use measure::{
    BalanceArgs, BenchArgs, BenchPart, CapabilityArgs, NoiseArgs, PlanArgs, RefillArgs, ReproArgs,
    SaisBenchArgs, Stranger, TurnArgs,
};
pub use sim::{
    CostArgs, FigureName, PolicyArgs, SimArgs, SimBenchArgs, SimCompareArgs, SimPart,
    SimReplayArgs, SimRunArgs, SimSweepArgs,
};

/// The laboratory of evenkeel: simulates, measures, and repeats the papers' experiments.
#[derive(Debug, Parser)]
#[command(name = "evenkeel-lab", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Log more: -v decisions, -vv details.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Simulate: the keel's own source on machines that need not exist.
    Sim(Box<SimArgs>),
    /// Play a tape back: tell the keel again what it was told, and compare what it decides.
    Replay(SimReplayArgs),
    /// Measure evenkeel against the kernel and its peers.
    Bench(BenchArgs),
    /// Make a CPU unequal for a while, or check the accounting against the noise.
    Noise(NoiseArgs),
    /// Measure a paper's figures and tables again, and say what was reproduced.
    Repro(ReproArgs),
    /// Write man pages or shell completions into a directory (used by `make install`).
    #[command(hide = true)]
    Generate(GenerateArgs),
}
