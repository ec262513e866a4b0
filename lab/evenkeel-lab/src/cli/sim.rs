//! The commands `sim` and `replay`: simulations, and tapes told to the keel again.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use evenkeel::cli::whole_number;
use evenkeel_keel::{Balance, Bonus, Gate, Mode, Order, Parts, Slice};
use evenkeel_sim::{Shard, program};

/// `evenkeel-lab sim`.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// The part of the command.
    #[command(subcommand)]
    pub part: SimPart,
}

/// The parts of `sim`.
#[derive(Debug, Subcommand)]
pub enum SimPart {
    /// List the shapes of workloads with their numbers, and the machines that have a name.
    List,
    /// Simulate a workload on a machine, and show its figures.
    Run(SimRunArgs),
    /// Simulate a grid of workloads, machines and policies with many seeds; each run gives a row of
    /// JSON.
    Sweep(SimSweepArgs),
    /// Compare two sweeps, run by run: better, worse or undecided.
    Compare(SimCompareArgs),
    /// Measure the simulator's speed and memory.
    Bench(SimBenchArgs),
}

/// The scheduler. Where a grid is swept, each option may be given several times.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// Pick the next task by this order policy: fair, ias [default: fair].
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    pub order: Vec<Order>,
    /// Allow balancing by this gate policy: always, zone [default: always].
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    pub gate: Vec<Gate>,
    /// Balance load by this policy: count, capability [default: count].
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    pub balance: Vec<Balance>,
    /// Switch on parts of --balance capability, like home,cost (`evenkeel sched --help` lists them); a
    /// sweep has a scheduler for each time that this is given [default: none].
    #[arg(long, value_name = "LIST")]
    pub parts: Vec<Parts>,
    /// Set the slice, in microseconds [default: 4000].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub slice_us: Vec<Slice>,
    /// Set a knob of `evenkeel zone`, like zone=warm-high, bal_cpus_avg_enable=1 or
    /// max_idle_wait=never; may be given several times.
    #[arg(long = "knob", value_name = "NAME=VALUE")]
    pub knobs: Vec<String>,
    /// Gather work on few CPUs while there is little (with --gate zone).
    #[arg(long)]
    pub compact: bool,
    /// Aggregate the threads of every program with this bonus, like 3x or 10ms (with --order ias).
    #[arg(long, value_name = "BONUS")]
    pub bonus: Option<Bonus>,
    /// Aggregate in this mode of `evenkeel sched`: rounds, paper (with --order ias) [default: rounds].
    #[arg(long, value_name = "MODE")]
    pub ias_mode: Option<Mode>,
    /// Find the bonus of each program while it runs, as `evenkeel sched --ias-auto` does (with --order
    /// ias).
    #[arg(long, conflicts_with = "bonus")]
    pub ias_auto: bool,
    /// Aggregate on these groups of CPUs together: llc, node, or CPUs like 0-3/4-7; the first CPU of a
    /// group is its master (with --order ias) [default: an L2 cache of several cores, or four CPUs of a
    /// last-level cache; with --ias-mode paper: llc].
    #[arg(long, value_name = "GROUPS", requires = "bonus")]
    pub groups: Option<String>,
    /// Simulate a single first-in, first-out queue instead of the keel.
    #[arg(long, conflicts_with_all = ["order", "gate", "balance", "parts", "slice_us", "knobs",
          "compact", "bonus", "ias_mode", "ias_auto"])]
    pub fifo: bool,
}

/// Costs of the machine that replace those of its file.
#[derive(Debug, Args)]
pub struct CostArgs {
    /// Set a cost, like switch_ns=0; may be given several times.
    #[arg(long = "cost", value_name = "NAME=VALUE")]
    pub costs: Vec<String>,
    /// Set all costs to 0 but those of --cost.
    #[arg(long)]
    pub no_costs: bool,
}

/// `evenkeel-lab sim run`.
#[derive(Debug, Args)]
pub struct SimRunArgs {
    /// Simulate this file in rt-app's format, or this shape: hogs, barrier, pool, arrivals, groups,
    /// background, paper002, memory, spawn, tiers, with its numbers, like barrier:tasks=8,work=10ms.
    pub workload: String,
    /// Simulate this machine: a preset (amc1, amc2, amc3, small, hybrid, server, measured), a machine
    /// file, hwloc's XML, an archive of `evenkeel-lab report`, or `host`.
    #[arg(long, value_name = "MACHINE", default_value = "small")]
    pub machine: String,
    /// The scheduler.
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// Let the user-level balancer (`evenkeel run`) also move the tasks, all as one program.
    #[arg(long)]
    pub balancer: bool,
    /// The costs.
    #[command(flatten)]
    pub costs: CostArgs,
    /// Set the seed of all that is random.
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = whole_number::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Let a real-time task take a CPU, like 0:3ms/10ms; may be given several times.
    #[arg(long = "thief", value_name = "CPU:TIME/PERIOD")]
    pub thieves: Vec<Theft>,
    /// Let interrupts take a CPU, in the same form; may be given several times.
    #[arg(long = "interrupts", value_name = "CPU:TIME/PERIOD")]
    pub interrupts: Vec<Theft>,
    /// Inject all faults: failing calls, late timers, hotplug, tasks that are changed and killed. Rules
    /// that no scheduler can keep then are not checked.
    #[arg(long)]
    pub faults: bool,
    /// End the simulation after so many events.
    #[arg(long, value_name = "N", default_value_t = evenkeel_sim::MAX_EVENTS,
          value_parser = whole_number::<u64>(0..=u64::MAX))]
    pub max_events: u64,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a trace for Perfetto's viewer.
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Write a picture of which task ran on which CPU, as SVG.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write a tape for `evenkeel-lab replay`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["faults", "fifo"])]
    pub tape: Option<PathBuf>,
    /// Load the keel from this shared object (for mutation tests).
    #[arg(long, value_name = "FILE", hide = true)]
    pub keel: Option<PathBuf>,
}

/// Time that a CPU loses periodically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theft {
    /// The CPU.
    pub cpu: u32,
    /// How long it loses the time, in ns.
    pub run_ns: u64,
    /// The period, in ns.
    pub period_ns: u64,
}

impl FromStr for Theft {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (cpu, times) = text.split_once(':')?;
            let (run, period) = times.split_once('/')?;
            let (run_ns, period_ns) = (program::parse_time(run)?, program::parse_time(period)?);
            Some(Self { cpu: cpu.parse().ok()?, run_ns, period_ns })
        };
        parse()
            .filter(|theft| theft.run_ns > 0 && theft.run_ns < theft.period_ns)
            .ok_or_else(|| format!("\"{text}\": expected CPU:TIME/PERIOD, like 0:3ms/10ms"))
    }
}

/// `evenkeel-lab sim sweep`.
#[derive(Debug, Args)]
pub struct SimSweepArgs {
    /// Simulate these workloads, as for `sim run`.
    #[arg(required = true)]
    pub workloads: Vec<String>,
    /// Simulate these machines, as for `sim run`, like amc2,server; may be given several times.
    #[arg(
        long = "machine",
        value_name = "MACHINE",
        value_delimiter = ',',
        default_value = "small"
    )]
    pub machines: Vec<String>,
    /// The schedulers: all combinations.
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// The costs.
    #[command(flatten)]
    pub costs: CostArgs,
    /// Simulate the seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = whole_number::<u64>(1..=1_000_000))]
    pub seeds: u64,
    /// Write the rows to this file, beside those that it has; runs that it has already are not
    /// repeated. While it is made, rows are in the folder FILE.parts.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Simulate on this engine; the file is the same on all of them. An engine's machines must see
    /// the same files as this one.
    #[arg(long, value_enum, default_value_t = EngineName::Local)]
    pub on: EngineName,
    /// Simulate only this part of all runs, like 2/8.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    pub shard: Shard,
    /// Simulate so many runs at once, each in its own process [default: the number of CPUs]; with
    /// --on, so many parts [default: with dask the number of CPUs, with slurm as many as it has room
    /// for].
    #[arg(long, value_name = "N", value_parser = whole_number::<usize>(1..=u64::MAX))]
    pub jobs: Option<usize>,
    /// Give each job of the engine so many runs, one after the other [default: 25, or as many more as
    /// leave 1000 jobs].
    #[arg(long, value_name = "N", value_parser = whole_number::<usize>(1..=u64::MAX))]
    pub part_runs: Option<usize>,
    /// Let the engine try a job again so often that fails [default: 2].
    #[arg(long, value_name = "N", value_parser = whole_number::<u32>(0..=u64::from(u32::MAX)))]
    pub retries: Option<u32>,
    /// Be one of these processes.
    #[arg(long, hide = true)]
    pub worker: bool,
    /// Be a job of the engine, which makes this part.
    #[arg(long, value_name = "N", hide = true, value_parser = whole_number::<usize>(0..=u64::MAX))]
    pub part: Option<usize>,
    /// Load the keel from this shared object (for mutation tests).
    #[arg(long, value_name = "FILE", hide = true)]
    pub keel: Option<PathBuf>,
}

/// Where a sweep is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// This machine.
    Local,
    /// A job array of Slurm (SBATCH_PARTITION, SBATCH_ACCOUNT and the like say where).
    Slurm,
    /// Tasks of Dask: those of the scheduler that DASK_SCHEDULER_ADDRESS names, or of this machine.
    Dask,
}

/// `evenkeel-lab sim compare`.
#[derive(Debug, Args)]
pub struct SimCompareArgs {
    /// The rows of a `sim sweep`.
    pub before: PathBuf,
    /// The rows to compare with them.
    pub after: PathBuf,
    /// Compare this figure; less is better.
    #[arg(long, value_enum, default_value_t = FigureName::Tat)]
    pub by: FigureName,
}

/// The figures that runs can be compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FigureName {
    /// The mean turn-around time.
    Tat,
    /// The 99th percentile of the response times.
    Response,
    /// The time until all is done.
    Makespan,
    /// The mean slowdown.
    Slowdown,
}

/// `evenkeel-lab replay`.
#[derive(Debug, Args)]
pub struct SimReplayArgs {
    /// The tape, of `evenkeel-lab record` or `evenkeel-lab sim run --tape`.
    pub tape: PathBuf,
    /// Replay to another build of the keel: a shared object against lab/sim/native/kernel.h [default:
    /// this build].
    #[arg(long, value_name = "FILE")]
    pub keel: Option<PathBuf>,
}

/// `evenkeel-lab sim bench`.
#[derive(Debug, Args)]
pub struct SimBenchArgs {
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the figures as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write everything as an HTML page with charts, which needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print nothing.
    #[arg(short, long)]
    pub quiet: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thefts_are_parsed_or_refused() {
        let theft: Theft = "3:2ms/10ms".parse().unwrap();
        assert_eq!(theft, Theft { cpu: 3, run_ns: 2_000_000, period_ns: 10_000_000 });
        for nonsense in ["", "3", "3:2ms", "3:2ms/2ms", "3:0ms/2ms", "x:1ms/2ms", "3:1/2"] {
            let why = nonsense.parse::<Theft>().unwrap_err();
            assert!(why.contains("expected CPU:TIME/PERIOD"), "{why}");
        }
    }
}
