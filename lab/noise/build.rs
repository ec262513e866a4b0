//! Compiles the hog and the softirq generator, which the crate embeds.

use std::error::Error;

use evenkeel_build_support::{bpf_object, static_program};

fn main() -> Result<(), Box<dyn Error>> {
    static_program("noise_child", &[])?;
    bpf_object("noise", &["noise.h"], &[])
}
