//! The command `noise`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use evenkeel::cli::{time, whole_number};

/// `evenkeel-lab noise`.
#[derive(Debug, Args)]
pub struct NoiseArgs {
    /// Make this kind of noise: softirq, fifo, udp or hog; with --verify also all.
    // Completion takes the argument out of the command and puts it in again, so places are given.
    #[arg(index = 1)]
    pub kind: String,
    /// Take time of this CPU.
    #[arg(long, default_value_t = 0, value_parser = whole_number::<u32>(0..=u64::from(u32::MAX)))]
    pub cpu: u32,
    /// Take so much of each period, in microseconds [default: 4000; with --verify several].
    #[arg(long, value_parser = whole_number::<u64>(1..=u64::MAX))]
    pub busy_us: Option<u64>,
    /// Set the period, in microseconds; at most half of it may be taken [default: 10000].
    #[arg(long, value_parser = whole_number::<u64>(1..=u64::MAX))]
    pub period_us: Option<u64>,
    /// End after this time at the latest, like 30s [default: 10s, with a command 1h].
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub limit: Option<humantime::Duration>,
    /// Compare what cbinfo and /proc/stat account with what the generator took (some seconds a kind).
    #[arg(long)]
    pub verify: bool,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Make the noise while this command runs, and end as it ends; standard output is the command's
    /// alone.
    #[arg(index = 2, last = true, value_name = "CMD", conflicts_with = "verify")]
    pub command: Vec<OsString>,
}
