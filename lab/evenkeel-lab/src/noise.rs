//! `evenkeel-lab noise`: makes the options of a noise generator of the flags, and runs it. The
//! generators themselves are in `lab/bench`.

use anyhow::Result;
use evenkeel_bench::make_noise;

use crate::cli::NoiseArgs;

/// Runs `evenkeel-lab noise`. Returns the exit code.
///
/// # Errors
/// A flag makes no sense, or the noise cannot be made.
pub fn main(args: NoiseArgs) -> Result<i32> {
    make_noise::run(&make_noise::Options {
        kind: args.kind,
        cpu: args.cpu,
        busy_us: args.busy_us,
        period_us: args.period_us,
        limit: args.limit.map(Into::into),
        verify: args.verify,
        json: args.json,
        command: args.command,
    })
}
