//! The commands of the keel: to run it, and to set its knobs while it runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_keel::{
    Balance, Bonus, Capacities, Gate, IdleWait, Kick, Level, MAX_ROLE, Mode, Order, Parts, Program,
    Shield, Slice, Turn, Window,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::whole_number;

/// `evenkeel sched`.
#[derive(Debug, Args)]
pub struct SchedArgs {
    /// How it schedules.
    #[command(flatten)]
    pub options: SchedOptions,
    /// Print a line of statistics every SEC seconds [default: never].
    #[arg(long, value_name = "SEC", value_parser = whole_number::<u64>(1..=3600))]
    pub stats: Option<u64>,
    /// Only print such lines about the keel that runs.
    #[arg(long, value_name = "SEC", conflicts_with_all = ["stats", "load_only"],
          value_parser = whole_number::<u64>(1..=3600))]
    pub monitor: Option<u64>,
    /// Print each such line as JSON: all counters since the keel was loaded.
    #[arg(long, requires = "monitor")]
    pub json: bool,
    /// Only let the kernel verify the scheduler; do not run it.
    #[arg(long)]
    pub load_only: bool,
    /// Write what the keel publishes to this file once a second, as a trace for ui.perfetto.dev: each
    /// CPU's capability, utilisation and number of tasks, the counters, a sample of the gate's refusals
    /// with their figures, changes of parameters, loads and ends; not which task runs where.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["monitor", "load_only"])]
    pub perfetto: Option<PathBuf>,
    /// Moved to `evenkeel-lab record FILE`.
    #[arg(long, value_name = "FILE", hide = true)]
    pub tape: Option<PathBuf>,
}

/// Options of `sched` that a configuration file may set too, by the same names, in table `[sched]`.
#[derive(Debug, Clone, Default, Args, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SchedOptions {
    /// Choose which task runs next: `fair` picks the smallest vruntime, `ias` siblings first within a
    /// bonus (`evenkeel ias`) [default: fair].
    #[arg(long, value_name = "POLICY")]
    pub order: Option<Order>,
    /// Choose when load may be balanced: `always`, or only above the utilisation of a `zone` [default:
    /// always].
    #[arg(long, value_name = "POLICY")]
    pub gate: Option<Gate>,
    /// Choose what load is: `count` treats all CPUs as equal, as classic Linux does; `capability`
    /// divides load by the capability of each CPU [default: count].
    #[arg(long, value_name = "POLICY")]
    pub balance: Option<Balance>,
    /// With --balance capability, add parts: home (count the distance of memory), cost (no pull that
    /// costs more than it gains), plain (place new tasks as count does), bare (pull at any
    /// difference), active (migrate a running task to a faster CPU that idles), turns (threads of a
    /// program that each run alone take turns on unequal CPUs), similar (threads of two programs swap
    /// until both have similar CPUs) [default: none].
    #[arg(long, value_name = "LIST")]
    pub parts: Option<Parts>,
    /// Set the slice, the time between two picks, in microseconds [default: 4000].
    #[arg(long, value_name = "N")]
    pub slice_us: Option<Slice>,
    /// Set the capacity of CPUs, 1 to 1024, for example 0-3=1024,4-7=512 [default: from the kernel].
    #[arg(long, value_name = "LIST")]
    pub capacity: Option<Capacities>,
    /// With --balance capability, ignore the time that interrupts, real-time tasks and the hypervisor
    /// take [default: capability is less by that time].
    #[arg(long)]
    pub static_capacity: bool,
    /// With --order ias, let address spaces take turns of bounded length (`rounds`), or let siblings go
    /// first as far as the bonus allows (`paper`: paper 003 to the letter) [default: rounds].
    #[arg(long, value_name = "MODE")]
    pub ias_mode: Option<Mode>,
    /// With --ias-mode rounds, let an address space have a CPU for this long at a time, from 100us to
    /// 1s; within that, each of its threads runs for a slice at most [default: 20ms].
    #[arg(long, value_name = "TIME")]
    pub ias_turn: Option<Turn>,
    /// With --order ias, keep up to N waiting tasks of each address space in order on a CPU, and read
    /// up to N tasks of another CPU's queue to fetch one [default: 128, the most].
    #[arg(long, value_name = "N")]
    pub ias_window: Option<Window>,
    /// With --order ias, kick slaves at once when their master aggregates: none, idle (slaves that idle
    /// while a sibling waits), busy (also slaves that run another task) [default: idle].
    #[arg(long, value_name = "SLAVES")]
    pub ias_kick: Option<Kick>,
    /// With --order ias, find the bonus of each program by measuring its pace with and without
    /// (`evenkeel ias show` prints what was found) [default: off].
    #[arg(long)]
    pub ias_auto: bool,
    /// With --gate zone, balance load between caches freely only above this utilisation: cold and
    /// warm-low 30 %, warm-mid 50 %, warm-high and hot 80 %; below it only where waiting would cost more
    /// than refilling caches (`evenkeel zone` sets the other knobs) [default: cold].
    #[arg(long, value_name = "LEVEL")]
    pub zone: Option<Level>,
    /// Let a task that waits for this long migrate to an idle CPU, whatever the gate says: 1us to 20s,
    /// or never [default: 10ms].
    #[arg(long, value_name = "TIME", conflicts_with = "strict")]
    pub max_idle_wait: Option<IdleWait>,
    /// Follow paper 004 to the letter: migrate no task in the quiet zone, not even within a cache or a
    /// new one, and let no idle CPU pull: the same as --max-idle-wait never.
    #[arg(long)]
    pub strict: bool,
    /// With --gate zone, gather work on few CPUs while the machine is used to 30 % at most, so that the
    /// others idle for long at a time [default: work spreads].
    #[arg(long, conflicts_with = "strict")]
    pub compact: bool,
    /// Run only tasks on these CPUs that may run nowhere else, above all real-time tasks (`evenkeel zone
    /// shield` changes it) [default: none].
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

/// Commands for the gate and the shield of a running keel.
#[derive(Debug, Subcommand)]
pub enum ZoneCommand {
    /// Print one knob, or all.
    Get {
        /// The paper's name of the knob, in any spelling.
        knob: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Set a knob until the keel ends (to keep it, use table `[zone]` of the configuration file).
    Set {
        /// The paper's name of the knob, in any spelling.
        // Completion changes this argument, and clap then takes it for the last one.
        #[arg(index = 1)]
        knob: String,
        /// A whole number; for balance_level also cold, warm-low, warm-mid, warm-high or hot.
        #[arg(index = 2, allow_hyphen_values = true)]
        value: String,
    },
    /// Shield CPUs from all tasks that may run elsewhere, until the keel ends (to keep it, use
    /// `shield` in table `[sched]` of the configuration file).
    Shield {
        /// A list like 2-3, or none; without it, print the shielded CPUs.
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

/// Commands for the order policy `ias` of a running keel.
#[derive(Debug, Subcommand)]
pub enum IasCommand {
    /// Aggregate the threads of a process: run them in a row, and on several CPUs at the same time.
    Agg {
        /// The process. The setting holds for its address space, until it ends or calls exec.
        #[arg(required_unless_present = "programs", allow_negative_numbers = true)]
        pid: Option<String>,
        /// All processes of the user (root: of all users) that run this program now, by command name or
        /// file path; may be given several times.
        #[arg(long = "program", value_name = "NAME", conflicts_with = "pid")]
        programs: Vec<Program>,
        /// End the aggregation.
        #[arg(long)]
        off: bool,
        /// Set how far they may be behind in vruntime and still be preferred: a multiple of the last
        /// run, like 3x, or a time, like 10ms. At most 25x or 100ms, unless root asks.
        #[arg(long, value_name = "BONUS", default_value = "3x")]
        bonus: Bonus,
        /// Prefer them at most N times in a row on a CPU [default: no limit].
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true,
              value_parser = whole_number::<u64>(0..=u64::MAX))]
        limit: u64,
    },
    /// Aggregate by the paper's five numbers (`set_ias_agg`).
    SetAgg {
        /// The process.
        // Completion changes this argument, and clap then takes it for the last one.
        #[arg(index = 1, allow_negative_numbers = true)]
        pid: String,
        /// 1: aggregate its threads; 0: do not.
        #[arg(index = 2, allow_negative_numbers = true)]
        agg: String,
        /// 0: BONUS_VALUE is in ns of vruntime; 1: it multiplies the time of the last run on the CPU.
        #[arg(index = 3, allow_negative_numbers = true)]
        bonus_type: String,
        /// The bonus: how far they may be behind in vruntime and still be preferred.
        #[arg(index = 4, allow_negative_numbers = true)]
        bonus_value: String,
        /// How often in a row on a CPU they are preferred at most; 0: no limit.
        #[arg(index = 5, allow_negative_numbers = true)]
        limit: String,
    },
    /// Set which CPUs aggregate together (`set_ias_alloc`): one number for each CPU, 2k for the
    /// master of group k, 2k+1 for its slaves.
    Alloc {
        /// The numbers, in the order of the CPUs.
        #[arg(required_unless_present = "groups", value_name = "ROLE", allow_negative_numbers = true,
              value_parser = whole_number::<u16>(0..=u64::from(MAX_ROLE)))]
        roles: Vec<u16>,
        /// Set groups instead: llc (CPUs that share a last-level cache), l2 (a level-2 cache), node,
        /// or lists like 0-3/4-7; the first CPU of each group is the master.
        #[arg(long, value_name = "GROUPS", conflicts_with = "roles")]
        groups: Option<String>,
    },
    /// Print the aggregated processes and the groups of CPUs.
    Show {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}
