//! The commands that simulate: `sim` and `replay`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_keel::{Balance, Bonus, Gate, Order, Parts, Slice};
use evenkeel_sim::{Shard, program};

/// `evenkeel-lab sim`.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// What to do.
    #[command(subcommand)]
    pub part: SimPart,
}

/// The parts of `sim`.
#[derive(Debug, Subcommand)]
pub enum SimPart {
    /// Simulate a workload on a machine, and say how it went.
    Run(SimRunArgs),
    /// Simulate a grid of workloads, machines and policies with many seeds; one row of JSON a run.
    Sweep(SimSweepArgs),
    /// Compare two sweeps, run by run: better, worse or undecided.
    Compare(SimCompareArgs),
    /// Measure how fast the simulator is, and what it needs.
    Bench(SimBenchArgs),
}

/// Which scheduler; each may be given several times where a grid is swept.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// Which task runs next [default: fair].
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    pub order: Vec<Order>,
    /// When load may be balanced [default: always].
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    pub gate: Vec<Gate>,
    /// What load is and where it goes [default: count].
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    pub balance: Vec<Balance>,
    /// With --balance capability: what it does besides, like home,cost (`evenkeel sched --help` says
    /// what there is); each one given is another scheduler of a sweep [default: nothing].
    #[arg(long, value_name = "LIST")]
    pub parts: Vec<Parts>,
    /// How long a task runs before others get their turn, in microseconds [default: 4000].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub slice_us: Vec<Slice>,
    /// Turn a knob, like zone=warm-high, bal_cpus_avg_enable=1 or max_idle_wait=never (those of
    /// `evenkeel zone`); may be given several times.
    #[arg(long = "knob", value_name = "NAME=VALUE")]
    pub knobs: Vec<String>,
    /// With --order ias: the threads of every program aggregate, with this bonus, like 3x or 10ms.
    #[arg(long, value_name = "BONUS")]
    pub bonus: Option<Bonus>,
    /// With --order ias: the bonus of each program is found while it runs, as `evenkeel sched
    /// --ias-auto` does it.
    #[arg(long, conflicts_with = "bonus")]
    pub ias_auto: bool,
    /// With --order ias: CPUs that aggregate together, each group led by its first: llc, node, or
    /// CPUs like 0-3/4-7 [default: llc].
    #[arg(long, value_name = "GROUPS", requires = "bonus")]
    pub groups: Option<String>,
    /// Not the keel, but a single queue, first come, first served.
    #[arg(long, conflicts_with_all = [
        "order", "gate", "balance", "parts", "slice_us", "knobs", "bonus", "ias_auto",
    ])]
    pub fifo: bool,
}

/// What a machine costs, where that is not to be as its file says.
#[derive(Debug, Args)]
pub struct CostArgs {
    /// Set a cost, like switch_ns=0; may be given several times.
    #[arg(long = "cost", value_name = "NAME=VALUE")]
    pub costs: Vec<String>,
    /// No costs but those given by --cost.
    #[arg(long)]
    pub no_costs: bool,
}

/// `evenkeel-lab sim run`.
#[derive(Debug, Args)]
pub struct SimRunArgs {
    /// A file in rt-app's format, or a shape with its numbers: hogs, barrier, pool, arrivals, groups,
    /// background, paper002, memory, spawn, tiers; for example barrier:tasks=8,work=10ms.
    pub workload: String,
    /// A preset (amc1, amc2, amc3, small, hybrid, server, measured), a machine file, hwloc's XML, or
    /// `host`.
    #[arg(long, value_name = "MACHINE", default_value = "small")]
    pub machine: String,
    /// The scheduler.
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// Have the user-level balancer (`evenkeel run`) move the tasks on top, all as one program.
    #[arg(long)]
    pub balancer: bool,
    /// What things cost.
    #[command(flatten)]
    pub costs: CostArgs,
    /// All that is random depends on it.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// A real-time task takes a CPU now and then, like 0:3ms/10ms; may be given several times.
    #[arg(long = "thief", value_name = "CPU:TIME/PERIOD")]
    pub thieves: Vec<Theft>,
    /// Interrupts take a CPU, in the same form.
    #[arg(long = "interrupts", value_name = "CPU:TIME/PERIOD")]
    pub interrupts: Vec<Theft>,
    /// Have everything go wrong that can: calls fail, timers are late, CPUs come and go, tasks are
    /// changed and killed. Rules that such a world cannot keep are not looked at.
    #[arg(long)]
    pub faults: bool,
    /// More events end it.
    #[arg(long, value_name = "N", default_value_t = evenkeel_sim::MAX_EVENTS)]
    pub max_events: u64,
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a trace for Perfetto's viewer.
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Write a picture as SVG: which task ran where.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write down all that the keel is told and does, for `sim replay`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["faults", "fifo"])]
    pub tape: Option<PathBuf>,
    /// The keel as a shared object of its own (for mutation tests).
    #[arg(long, value_name = "FILE", hide = true)]
    pub keel: Option<PathBuf>,
}

/// What a CPU loses now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theft {
    /// The CPU.
    pub cpu: u32,
    /// Each time for so long.
    pub run_ns: u64,
    /// So often.
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
    /// Workloads, as for `sim run`.
    #[arg(required = true)]
    pub workloads: Vec<String>,
    /// Machines, as for `sim run`, like amc2,server; may be given several times.
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
    /// What things cost.
    #[command(flatten)]
    pub costs: CostArgs,
    /// Seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub seeds: u64,
    /// Append the rows to this file; what is in it already is not done again.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Only this part of all runs, like 2/8.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    pub shard: Shard,
    /// Runs at once, each in a process of its own [default: as many as there are CPUs].
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Be such a process.
    #[arg(long, hide = true)]
    pub worker: bool,
    /// The keel as a shared object of its own (for mutation tests).
    #[arg(long, value_name = "FILE", hide = true)]
    pub keel: Option<PathBuf>,
}

/// `evenkeel-lab sim compare`.
#[derive(Debug, Args)]
pub struct SimCompareArgs {
    /// Rows of `sim sweep`.
    pub before: PathBuf,
    /// Rows that they are compared with.
    pub after: PathBuf,
    /// By which figure; less is better.
    #[arg(long, value_enum, default_value_t = FigureName::Tat)]
    pub by: FigureName,
}

/// What runs are compared by.
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
    /// A tape: of `sim run --tape`, or of a keel that ran on a real kernel.
    pub tape: PathBuf,
    /// Not to this keel, but to another build of it: a shared object against
    /// lab/sim/native/kernel.h.
    #[arg(long, value_name = "FILE")]
    pub keel: Option<PathBuf>,
}

/// `evenkeel-lab sim bench`.
#[derive(Debug, Args)]
pub struct SimBenchArgs {
    /// Write the figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write them as a Markdown page.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Print nothing.
    #[arg(short, long)]
    pub quiet: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thefts_are_read_or_refused() {
        let theft: Theft = "3:2ms/10ms".parse().unwrap();
        assert_eq!(theft, Theft { cpu: 3, run_ns: 2_000_000, period_ns: 10_000_000 });
        for nonsense in ["", "3", "3:2ms", "3:2ms/2ms", "3:0ms/2ms", "x:1ms/2ms", "3:1/2"] {
            let why = nonsense.parse::<Theft>().unwrap_err();
            assert!(why.contains("expected CPU:TIME/PERIOD"), "{why}");
        }
    }
}
