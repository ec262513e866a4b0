//! `evenkeel irq`: shows where interrupt work runs, plans what would be moved, and moves it.

use clap::{Args, Subcommand};
use evenkeel_irq::Program;

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
    /// Show each interrupt line and NAPI instance: its CPUs, interrupts, packets and time.
    Status(IrqStatusArgs),
    /// Show which interrupts would be moved, where to and why; change nothing.
    Plan(IrqPlanArgs),
    /// Move interrupts to level them until a signal comes; take all moves back then.
    Run(IrqRunArgs),
    /// Move interrupts once; the moves stand until `evenkeel undo` or a reboot.
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
    /// For fault tests.
    #[command(flatten)]
    pub faults: FaultArgs,
}

/// `evenkeel irq once`.
#[derive(Debug, Args)]
pub struct IrqOnceArgs {
    /// Watch the interrupts for this long before they are moved, 1ms to 60s.
    #[arg(long, value_name = "TIME", default_value = "3s")]
    pub watch: Interval,
    /// Keep interrupts away from the CPUs of this process or cgroup, where other CPUs exist.
    #[arg(long = "for", value_name = "PID|CGROUP")]
    pub program: Option<Program>,
    /// Have a running irqbalance leave the moved lines alone, until `evenkeel undo`.
    #[arg(long)]
    pub take_over: bool,
    /// For fault tests.
    #[command(flatten)]
    pub faults: FaultArgs,
}

fn round_time(text: &str) -> Result<Interval, String> {
    match text.parse() {
        Ok(Interval { ns: ..1_000_000_000 }) => Err("out of range: give 1s to 60s".to_owned()),
        parsed => parsed,
    }
}
