//! Compiles what the benchmarks run: the C programs (programs/*.c, with OpenMP, into executables that
//! the crate embeds), and the BPF programs that are measured beside `sais`, each into an object.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

/// The programs and the libraries and flags that each needs beyond the common ones.
const PROGRAMS: &[(&str, &[&str])] =
    &[("static_loop", &["-fopenmp"]), ("ep", &["-fopenmp", "-lm"]), ("cg", &["-fopenmp", "-lm"])];

/// The BPF objects and what each includes.
const OBJECTS: &[(&str, &[&str])] = &[
    ("bare", &["../../bpf/sais/kernel.h", "../../bpf/sais/intf.h"]),
    ("scatter", &["../../bpf/sais/kernel.h", "../../bpf/sais/intf.h"]),
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed=programs/npb.h");
    for (name, flags) in PROGRAMS {
        compile_program(name, flags, &out)?;
    }
    for (name, headers) in OBJECTS {
        compile_bpf(name, headers, &out)?;
    }
    Ok(())
}

/// Static first (the program then runs on a machine without libgomp, and inside a VM's initramfs),
/// dynamic where the static libraries are missing.
fn compile_program(name: &str, flags: &[&str], out: &Path) -> Result<(), Box<dyn Error>> {
    let source = format!("programs/{name}.c");
    println!("cargo:rerun-if-changed={source}");
    let compiler = cc::Build::new().opt_level(2).debug(false).cargo_metadata(false).get_compiler();
    let mut said = String::new();
    for linking in [&["-static"][..], &[]] {
        let output = Command::new(compiler.path())
            .args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-s"])
            .args(linking)
            .arg(&source)
            .arg("-o")
            .arg(out.join(name))
            .args(flags)
            .output()
            .map_err(|e| format!("cannot run the C compiler {:?}: {e}", compiler.path()))?;
        if output.status.success() {
            return Ok(());
        }
        said = String::from_utf8_lossy(&output.stderr).into_owned();
    }
    Err(format!(
        "the C compiler {:?} cannot build lab/bench/{source}; it needs OpenMP (gcc has it, \
         clang needs libomp-dev):\n{said}",
        compiler.path()
    )
    .into())
}

fn compile_bpf(name: &str, headers: &[&str], out: &Path) -> Result<(), Box<dyn Error>> {
    let source = format!("../bpf/{name}.bpf.c");
    println!("cargo:rerun-if-changed={source}");
    for header in headers {
        println!("cargo:rerun-if-changed=../bpf/{header}");
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    // Debian keeps asm/types.h in a directory per architecture that clang forgets for -target bpf.
    let mut args = vec!["-Wall".to_owned(), "-Wno-unused-parameter".to_owned()];
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    if Path::new(&multiarch).is_dir() {
        args.push(format!("-I{multiarch}"));
    }
    SkeletonBuilder::new()
        .source(&source)
        .clang(clang)
        .clang_args(args)
        .obj(out.join(format!("{name}.bpf.o")))
        .build()?;
    Ok(())
}
