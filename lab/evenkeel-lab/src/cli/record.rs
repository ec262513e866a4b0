//! The command `record`.

use std::path::PathBuf;

use clap::Args;
use evenkeel::cli::SchedOptions;

/// `evenkeel-lab record`.
#[derive(Debug, Args)]
#[command(
    after_help = "Needs root, Linux 6.18 and at most 64 CPUs. The tape is written at SIGINT or \
                  SIGTERM; record for some seconds. Configuration files are not read."
)]
pub struct RecordArgs {
    /// Write the tape to this file, for `evenkeel-lab replay`.
    #[arg(value_name = "FILE")]
    pub tape: PathBuf,
    /// The keel's options, as for `evenkeel sched`.
    #[command(flatten)]
    pub options: SchedOptions,
}
