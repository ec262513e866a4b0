//! The executable `evenkeel`: what it was started with, and the command line (`lib.rs`).

mod origin;

use std::process::ExitCode;

fn main() -> ExitCode {
    evenkeel::main(origin::origin())
}
