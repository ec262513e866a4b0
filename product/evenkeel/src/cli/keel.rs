//! The commands of the keel: running it, and turning its knobs while it runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_keel::{
    Balance, Bonus, Capacities, Gate, IdleWait, Kick, Level, MAX_ROLE, Order, Parts, Program,
    Shield, Slice, Window,
};
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
    /// Write down all that it is told and does, for `evenkeel-lab replay`: on Linux 6.18, with at
    /// most 64 CPUs, for some seconds.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["monitor", "load_only"])]
    pub tape: Option<PathBuf>,
}

/// Options of `sched` that a configuration file may set too, by the same names, in table `[sched]`.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SchedOptions {
    /// Which task runs next: `fair` the smallest vruntime, `ias` siblings first, within a bonus
    /// (`evenkeel ias`) [default: fair].
    #[arg(long, value_name = "POLICY")]
    pub order: Option<Order>,
    /// When load may be balanced: `always`, or only above the utilisation of a `zone` [default:
    /// always].
    #[arg(long, value_name = "POLICY")]
    pub gate: Option<Gate>,
    /// What load is and where it goes: `count` takes CPUs for equal, as classic Linux does,
    /// `capability` goes by what each can do [default: count].
    #[arg(long, value_name = "POLICY")]
    pub balance: Option<Balance>,
    /// With --balance capability: what it does besides: home (memory's distance counts), cost (no pull
    /// that costs more than it gains), plain (new tasks are placed as by count), bare (pulls at any
    /// difference), active (who runs alone leaves for a faster CPU that idles), turns (threads of a
    /// program that run alone take turns on unequal CPUs), similar (those of two programs change places
    /// until each program has similar CPUs) [default: none].
    #[arg(long, value_name = "LIST")]
    pub parts: Option<Parts>,
    /// How long a task runs before others get their turn, in microseconds [default: 4000].
    #[arg(long, value_name = "N")]
    pub slice_us: Option<Slice>,
    /// What CPUs can do, 1 to 1024 each, for example 0-3=1024,4-7=512 [default: what the kernel
    /// says].
    #[arg(long, value_name = "LIST")]
    pub capacity: Option<Capacities>,
    /// With --balance capability: what CPUs can do stays what it is, whatever interrupts, real-time
    /// tasks and a hypervisor take of them [default: it is less by that].
    #[arg(long)]
    pub static_capacity: bool,
    /// With --order ias: how many waiting tasks of an address space are kept in order on each CPU, and how
    /// many of another CPU's queue are looked at by who fetches one [default: 128, the most].
    #[arg(long, value_name = "N")]
    pub ias_window: Option<Window>,
    /// With --order ias: which slaves are told at once what their master aggregates: none, idle (those
    /// that idle while a sibling waits), busy (and those that run something else) [default: idle].
    #[arg(long, value_name = "WHO")]
    pub ias_kick: Option<Kick>,
    /// With --order ias: find by itself how strongly the threads of each program aggregate, from what
    /// they get done for their time; `evenkeel ias show` tells what was found and why.
    #[arg(long)]
    pub ias_auto: bool,
    /// With --gate zone: above which utilisation load is balanced: cold and warm-low 30 %, warm-mid
    /// 50 %, warm-high and hot 80 % (`evenkeel zone` has the other knobs) [default: cold].
    #[arg(long, value_name = "LEVEL")]
    pub zone: Option<Level>,
    /// How long the gate may keep a task waiting while a CPU that it may use idles, or never
    /// [default: 10ms].
    #[arg(long, value_name = "TIME", conflicts_with = "strict")]
    pub max_idle_wait: Option<IdleWait>,
    /// Nothing moves in the quiet zone, whoever waits or is new: the same as --max-idle-wait never.
    #[arg(long)]
    pub strict: bool,
    /// CPUs that take only who may run nowhere else: what is pinned there, above all real-time tasks,
    /// has them for itself (`evenkeel zone shield` changes it) [default: none].
    #[arg(long, value_name = "CPUS")]
    pub shield: Option<Shield>,
}

/// `evenkeel zone`.
#[derive(Debug, Args)]
pub struct ZoneArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ZoneCommand,
}

/// What can be done with the zones and the shield of a running keel.
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
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Keep these CPUs free of all work that may run elsewhere, at once, until the keel ends or others
    /// are named (`shield` in table `[sched]` of the configuration file keeps it).
    Shield {
        /// A list like 2-3, or none; without it, show which are shielded now.
        cpus: Option<Shield>,
    },
}

/// Table `[zone]` of a configuration file: knobs by the paper's names.
pub type ZoneOptions = BTreeMap<String, toml::Value>;

/// `evenkeel ias`.
#[derive(Debug, Args)]
pub struct IasArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: IasCommand,
}

/// What can be told to the order policy `ias` while the keel runs.
#[derive(Debug, Subcommand)]
pub enum IasCommand {
    /// Run the threads of a process in a row, and on several CPUs at the same time.
    Agg {
        /// The process. What is set holds for its address space, until it ends or runs another
        /// program.
        #[arg(required_unless_present = "programs", allow_negative_numbers = true)]
        pid: Option<String>,
        /// All of one's own processes (root: all) that run this program now, by the name of its command
        /// or the path of its file; may be given several times.
        #[arg(long = "program", value_name = "NAME", conflicts_with = "pid")]
        programs: Vec<Program>,
        /// Not any more.
        #[arg(long)]
        off: bool,
        /// How far they may run ahead of others: so many times what ran last, like 3x, or a time,
        /// like 10ms.
        #[arg(long, value_name = "BONUS", default_value = "3x")]
        bonus: Bonus,
        /// So often in a row on a CPU at most [default: no limit].
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        limit: u64,
    },
    /// The same with the paper's five numbers (`set_ias_agg`).
    SetAgg {
        /// The process.
        #[arg(allow_negative_numbers = true)]
        pid: String,
        /// 1: its threads are aggregated; 0: not.
        #[arg(allow_negative_numbers = true)]
        agg: String,
        /// 0: BONUS_VALUE is in ns of vruntime; 1: it multiplies what ran last on the CPU, in vruntime.
        #[arg(allow_negative_numbers = true)]
        bonus_type: String,
        /// How far they may run ahead of others.
        #[arg(allow_negative_numbers = true)]
        bonus_value: String,
        /// So often in a row on a CPU at most; 0: no limit.
        #[arg(allow_negative_numbers = true)]
        limit: String,
    },
    /// Say which CPUs aggregate together (`set_ias_alloc`): one number for each CPU, 2k for the
    /// master of group k, 2k+1 for its slaves.
    Alloc {
        /// The numbers, in the order of the CPUs.
        #[arg(required_unless_present = "groups", value_name = "ROLE", allow_negative_numbers = true,
              value_parser = clap::value_parser!(u16).range(..=i64::from(MAX_ROLE)))]
        roles: Vec<u16>,
        /// Groups instead: those that share a last-level cache (llc), a level-2 cache (l2), a node, or
        /// CPUs like 0-3/4-7; the first CPU of each is the master.
        #[arg(long, value_name = "GROUPS", conflicts_with = "roles")]
        groups: Option<String>,
    },
    /// Show what is set.
    Show {
        /// As JSON, on standard output.
        #[arg(long)]
        json: bool,
    },
}
