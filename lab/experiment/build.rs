//! Compiles the stopwatch for schedulers' callbacks, which the crate embeds.

use std::error::Error;

use evenkeel_build_support::bpf_object;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=peers.txt");
    bpf_object("callback", &["callback.h"], &[])
}
