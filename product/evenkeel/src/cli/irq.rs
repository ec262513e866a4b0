//! `evenkeel irq`: shows where interrupt work runs, plans what would be moved, and moves it.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_irq::{Aim, Program};
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::{FaultArgs, Interval};

/// `evenkeel irq`.
#[derive(Debug, Args)]
pub struct IrqArgs {
    /// What to do.
    #[command(subcommand)]
    pub part: IrqPart,
}

/// Its parts.
#[derive(Debug, Subcommand)]
pub enum IrqPart {
    /// Show each interrupt line and NAPI instance: its CPUs, interrupts, packets and time; and the
    /// queues of network cards.
    Status(IrqStatusArgs),
    /// Show which interrupts would be moved, where to and why; change nothing.
    Plan(IrqPlanArgs),
    /// Move interrupts to level them until a signal comes; take all moves back then.
    Run(IrqRunArgs),
    /// Move interrupts once; the moves stand until `evenkeel undo` or a reboot.
    ///
    /// What the moves bring is not measured afterwards. A change of an RSS indirection table is a guess
    /// at which buckets are busy: evenkeel irq run measures in its next round what the change brought,
    /// and takes it back where it did not level the CPUs.
    Once(IrqOnceArgs),
}

/// `evenkeel irq status`.
#[derive(Debug, Args)]
pub struct IrqStatusArgs {
    /// Watch the interrupts for this long, 1ms to 60s.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub watch: Interval,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel irq plan`.
#[derive(Debug, Args)]
pub struct IrqPlanArgs {
    /// Choose what moves are made for: `level` so that no CPU loses much more than others,
    /// `source-aware` so that packets are processed on the CPU where they are received.
    #[arg(long, value_name = "MODE", default_value_t)]
    pub mode: Aim,
    /// Watch the interrupts for this long, 1ms to 60s.
    #[arg(long, value_name = "TIME", default_value = "3s")]
    pub watch: Interval,
    /// Keep interrupts away from the CPUs of this process or cgroup, where other CPUs exist.
    #[arg(long = "for", value_name = "PID|CGROUP")]
    pub program: Option<Program>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `evenkeel irq run`.
#[derive(Debug, Args)]
pub struct IrqRunArgs {
    /// Choose what moves are made for: `level` so that no CPU loses much more than others,
    /// `source-aware` so that packets are processed on the CPU where they are received.
    #[arg(long, value_name = "MODE", default_value_t)]
    pub mode: Aim,
    /// Time of a round, 1s to 60s. A round makes at most one move, which the round before planned too.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = round_time)]
    pub interval: Interval,
    /// Keep interrupts away from the CPUs of this process or cgroup, where other CPUs exist; end with
    /// it.
    #[arg(long = "for", value_name = "PID|CGROUP")]
    pub program: Option<Program>,
    /// Have a running irqbalance leave the moved lines alone, until the end.
    #[arg(long)]
    pub take_over: bool,
    /// Print each event as a line of JSON, and at the end what was taken back.
    #[arg(long)]
    pub json: bool,
    /// Write what interrupts take of each CPU, where each source is that takes time, and the moves with
    /// their reasons to this file, as a trace for ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// For fault tests.
    #[command(flatten)]
    pub faults: FaultArgs,
}

/// `evenkeel irq once`.
#[derive(Debug, Args)]
pub struct IrqOnceArgs {
    /// Choose what moves are made for: `level` so that no CPU loses much more than others,
    /// `source-aware` so that packets are processed on the CPU where they are received.
    #[arg(long, value_name = "MODE", default_value_t)]
    pub mode: Aim,
    /// Watch the interrupts for this long before they are moved, 1ms to 60s.
    #[arg(long, value_name = "TIME", default_value = "3s")]
    pub watch: Interval,
    /// Keep interrupts away from the CPUs of this process or cgroup, where other CPUs exist.
    #[arg(long = "for", value_name = "PID|CGROUP")]
    pub program: Option<Program>,
    /// Have a running irqbalance leave the moved lines alone, until `evenkeel undo`.
    #[arg(long)]
    pub take_over: bool,
    /// Print each move as a line of JSON, and where none stands, what was taken back.
    #[arg(long)]
    pub json: bool,
    /// For fault tests.
    #[command(flatten)]
    pub faults: FaultArgs,
}

/// Table `[irq]`: what the daemon does about interrupts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct IrqOptions {
    /// Choose what the daemon moves interrupts for: `level` so that no CPU loses much more than others,
    /// `source-aware` so that packets are processed on the CPU where they are received, `off` for no
    /// moves [default: off].
    pub mode: Option<IrqMode>,
    /// Set the time of a round, 1s to 60s, as `irq run --interval` does [default: 3s].
    pub interval: Option<RoundTime>,
    /// Have a running irqbalance leave the moved lines alone, as `irq run --take-over` does.
    pub take_over: Option<bool>,
}

impl IrqOptions {
    /// Whether irqbalance is told to leave the moved lines alone.
    pub fn takes_over(&self) -> bool {
        self.take_over.unwrap_or_default()
    }

    /// What moves are made for; `None`: no interrupts are moved.
    pub fn aim(&self) -> Option<Aim> {
        match self.mode? {
            IrqMode::Off => None,
            IrqMode::Level => Some(Aim::Level),
            IrqMode::SourceAware => Some(Aim::SourceAware),
        }
    }
}

/// `mode` of table `[irq]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IrqMode {
    /// No interrupts are moved.
    Off,
    /// So that no CPU loses much more than others.
    Level,
    /// So that packets are processed on the CPU where they are received.
    SourceAware,
}

/// The time of a round of `irq run`, 1 s to 60 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
pub struct RoundTime(pub Interval);

impl TryFrom<String> for RoundTime {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        round_time(&text).map(Self).map_err(|why| format!("interval \"{text}\": {why}"))
    }
}

fn round_time(text: &str) -> Result<Interval, String> {
    match text.parse() {
        Ok(Interval { ns: ..1_000_000_000 }) => Err("out of range: give 1s to 60s".to_owned()),
        parsed => parsed,
    }
}
