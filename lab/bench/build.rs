//! Compiles what the benchmarks run and the crate embeds: C programs with OpenMP (gcc has it; clang
//! needs libomp-dev), and the BPF programs that are measured beside `sais` and against it.

use std::error::Error;

use evenkeel_build_support::{bpf_object, c_program};

/// What both BPF programs include.
const HEADERS: [&str; 2] = ["../../bpf/sais/kernel.h", "../../bpf/sais/intf.h"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=programs/npb.h");
    c_program("static_loop", &["-fopenmp"])?;
    c_program("ep", &["-fopenmp", "-lm"])?;
    c_program("cg", &["-fopenmp", "-lm"])?;
    bpf_object("bare", &HEADERS, &[])?;
    bpf_object("scatter", &HEADERS, &[])
}
