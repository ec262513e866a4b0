//! The executable `evenkeel`: notes the state that it was started with (`origin.rs`) and runs the
//! command line (`lib.rs`).

mod origin;

use std::process::ExitCode;

fn main() -> ExitCode {
    evenkeel::main(origin::origin())
}
