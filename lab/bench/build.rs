//! Compiles what the benchmarks run and the crate embeds: C programs with OpenMP, each by the system's
//! compiler (gcc and its libgomp) and by clang (LLVM's libomp), the one for guests also statically; and
//! the BPF programs that are measured beside `sais` and against it.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use evenkeel_build_support::{
    bpf_object, clang_has_openmp, clang_openmp_program, gcc_openmp_program, static_program,
};

/// The NAS Parallel Benchmarks' kernels and simulated applications.
const NPB: [&str; 8] = ["bt", "cg", "ep", "ft", "is", "lu", "mg", "sp"];
/// What they include.
const NPB_HEADERS: [&str; 5] = ["npb.h", "cfd.h", "block.h", "cg.h", "ep.h"];

/// What both BPF programs include.
const HEADERS: [&str; 2] = ["../../bpf/sais/kernel.h", "../../bpf/sais/intf.h"];

fn main() -> Result<(), Box<dyn Error>> {
    for header in NPB_HEADERS {
        println!("cargo:rerun-if-changed=programs/{header}");
    }
    let has_clang = clang_has_openmp()?;
    if !has_clang {
        println!(
            "cargo:warning=clang has no OpenMP: the benchmarks carry no programs for LLVM's runtime; \
             install libomp-dev of clang's version (libomp-19-dev) and build again"
        );
        // A file that does not exist: this script runs again at the next build.
        println!("cargo:rerun-if-changed=programs/.without-openmp-of-clang");
    }
    compile("static_loop", &[], has_clang)?;
    // It runs in guests, too, which have no libgomp.
    static_program("static_loop", &["-fopenmp"])?;
    for name in NPB {
        compile(name, &["-O3", "-lm"], has_clang)?;
    }
    bpf_object("bare", &HEADERS, &[])?;
    bpf_object("scatter", &HEADERS, &[])
}

/// By both compilers. Without clang's OpenMP its file is empty, which the crate takes for absent.
fn compile(name: &str, flags: &[&str], has_clang: bool) -> Result<(), Box<dyn Error>> {
    gcc_openmp_program(name, flags)?;
    if has_clang {
        return clang_openmp_program(name, flags);
    }
    Ok(fs::write(PathBuf::from(env::var("OUT_DIR")?).join(format!("{name}.clang")), [])?)
}
