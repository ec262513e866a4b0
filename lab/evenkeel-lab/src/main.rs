//! The executable `evenkeel-lab`, which is also the first process of the benchmarks' virtual machines.

use std::process::ExitCode;

fn main() -> ExitCode {
    if evenkeel_vm::is_init() {
        evenkeel_vm::serve();
    }
    evenkeel_lab::main()
}
