//! Compiles the witness and the program that injects faults, which the crate embeds.

use std::error::Error;

use evenkeel_build_support::bpf_object;

fn main() -> Result<(), Box<dyn Error>> {
    bpf_object("witness", &["witness.h"], &["-Werror"])?;
    bpf_object("fault", &[], &["-Werror"])
}
