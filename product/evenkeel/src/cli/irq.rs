//! `evenkeel irq`: shows where interrupt work runs, and plans what would be moved.

use clap::{Args, Subcommand};
use evenkeel_irq::Program;

use super::shared::Interval;

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
