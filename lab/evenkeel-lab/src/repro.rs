//! `evenkeel-lab repro`: makes the options of a reproduction of the flags, and runs it. The
//! reproductions themselves are in `lab/repro`.

use anyhow::Result;
use evenkeel_experiment::executable;
use evenkeel_repro as repro;

use crate::cli::ReproArgs;
use crate::command_line::command_line;

/// Runs `evenkeel-lab repro`. Returns the exit code.
///
/// # Errors
/// There is no such paper or part, or nothing can be measured.
pub fn main(args: ReproArgs) -> Result<i32> {
    // What is measured is of this commit, whatever is checked out meanwhile.
    evenkeel_experiment::commit();
    let options = repro::Options {
        executable: executable::product()?,
        parts: args.parts,
        runs: args.runs.map(usize::from),
        quick: args.quick,
        check: args.check,
        from: args.from,
        json: args.json,
        docs: args.docs,
        html: args.html,
        command: command_line(),
    };
    repro::run(&args.paper, &options)
}
