//! The commands of the keel: running it, and turning its knobs while it runs.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use evenkeel_keel::{Balance, Capacities, Gate, IdleWait, Level, Order, Slice};
use serde::Deserialize;

/// `evenkeel sched`.
#[derive(Debug, Args)]
pub struct SchedArgs {
    /// How it schedules.
    #[command(flatten)]
    pub options: SchedOptions,
    /// Print a line of statistics every SEC seconds.
    #[arg(long, value_name = "SEC", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub stats: Option<u64>,
    /// Only print such lines of a keel that runs already.
    #[arg(long, value_name = "SEC", conflicts_with_all = ["stats", "load_only"],
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub monitor: Option<u64>,
    /// Have the kernel check the scheduler, and do not run it.
    #[arg(long)]
    pub load_only: bool,
}

/// Options of `sched` that a configuration file may set too, by the same names, in table `[sched]`.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SchedOptions {
    /// Which task runs next: `fair` the smallest vruntime [default: fair].
    #[arg(long, value_name = "POLICY")]
    pub order: Option<Order>,
    /// When load may be balanced: `always`, or only above the utilisation of a `zone` [default:
    /// always].
    #[arg(long, value_name = "POLICY")]
    pub gate: Option<Gate>,
    /// What load is and where it goes: `count` takes CPUs for equal, as classic Linux does
    /// [default: count].
    #[arg(long, value_name = "POLICY")]
    pub balance: Option<Balance>,
    /// How long a task runs before others get their turn, in microseconds [default: 4000].
    #[arg(long, value_name = "N")]
    pub slice_us: Option<Slice>,
    /// What CPUs can do, 1 to 1024 each, for example 0-3=1024,4-7=512 [default: what the kernel
    /// says].
    #[arg(long, value_name = "LIST")]
    pub capacity: Option<Capacities>,
    /// With --gate zone: above which utilisation load is balanced: cold and warm-low 30 %, warm-mid
    /// 50 %, warm-high and hot 80 % (`evenkeel zone` has the other knobs) [default: cold].
    #[arg(long, value_name = "LEVEL")]
    pub zone: Option<Level>,
    /// How long the gate may keep a task waiting while a CPU that it may use idles, or never
    /// [default: 10ms].
    #[arg(long, value_name = "TIME", conflicts_with = "strict")]
    pub max_idle_wait: Option<IdleWait>,
    /// Nothing moves in the quiet zone, whoever waits: the same as --max-idle-wait never.
    #[arg(long)]
    pub strict: bool,
}

/// `evenkeel zone`.
#[derive(Debug, Args)]
pub struct ZoneArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ZoneCommand,
}

/// What can be done with the zones of a running keel.
#[derive(Debug, Subcommand)]
pub enum ZoneCommand {
    /// Show one knob, or all.
    Get {
        /// The paper's name of the knob, in any of its spellings.
        knob: Option<String>,
        /// As JSON, on standard output.
        #[arg(long)]
        json: bool,
    },
    /// Turn a knob at once, until the keel ends (table `[zone]` of the configuration file keeps it).
    Set {
        /// The paper's name of the knob, in any of its spellings.
        knob: String,
        /// A whole number; of balance_level also a name: cold, warm-low, warm-mid, warm-high, hot.
        value: String,
    },
}

/// Table `[zone]` of a configuration file: knobs by the paper's names.
pub type ZoneOptions = BTreeMap<String, toml::Value>;
