//! The command `report`.

use std::path::PathBuf;

use clap::Args;
use evenkeel::cli::whole_number;

/// `evenkeel-lab report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Write the archive to this file.
    #[arg(value_name = "FILE", default_value = "evenkeel-machine.tar")]
    pub file: PathBuf,
    /// Take about this long, 1 to 120 minutes.
    #[arg(long, value_name = "N", default_value_t = 15,
          value_parser = whole_number::<u64>(1..=120))]
    pub minutes: u64,
    /// Write the archive without asking whether what was shown may be in it.
    #[arg(long)]
    pub yes: bool,
}
