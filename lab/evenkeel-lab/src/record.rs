//! `evenkeel-lab record`: runs the keel with the options of `evenkeel sched`, and writes a tape of it.
//! The recorder itself is in `lab/tape`.

use std::path::Path;

use anyhow::Result;
use evenkeel::config::Config;
use evenkeel::sched;
use evenkeel_machine::Machine;
use evenkeel_tape::record;

use crate::cli::RecordArgs;

/// Runs the keel until SIGINT or SIGTERM. Returns the exit code.
///
/// # Errors
/// A flag makes no sense, the keel cannot be recorded on this machine, or the tape cannot be written.
pub fn main(args: &RecordArgs) -> Result<i32> {
    let options = sched::options(&args.options, &Config::default())?;
    let machine = Machine::from_sysfs(Path::new("/"))?;
    let ended_early = record(&machine, &options, &args.tape)?;
    Ok(ended_early.map_or(0, |exit| sched::report(&exit).max(1)))
}
