//! What the laboratory's build scripts share. All functions write into the crate's `OUT_DIR`, from
//! where the crate embeds the result, and tell cargo when to build again.
//!
//! Only build scripts call them. Paths are relative to the crate that is built.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

fn out_dir() -> Result<PathBuf, Box<dyn Error>> {
    Ok(PathBuf::from(env::var("OUT_DIR")?))
}

/// Compiles `lab/bpf/NAME.bpf.c` to `NAME.bpf.o`, with the compiler that `CLANG` names or `clang`.
/// `headers` are what it includes, relative to lab/bpf; `flags` are the compiler's, beyond the usual
/// ones.
///
/// # Errors
/// The compiler is missing or fails.
pub fn bpf_object(name: &str, headers: &[&str], flags: &[&str]) -> Result<(), Box<dyn Error>> {
    let source = format!("../bpf/{name}.bpf.c");
    println!("cargo:rerun-if-changed={source}");
    for header in headers {
        println!("cargo:rerun-if-changed=../bpf/{header}");
    }
    let clang = clang();
    let mut args = vec!["-Wall".to_owned(), "-Wno-unused-parameter".to_owned()];
    args.extend(flags.iter().map(|flag| (*flag).to_owned()));
    // Debian keeps asm/types.h in a directory per architecture that clang forgets for -target bpf.
    let multiarch = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    if Path::new(&multiarch).is_dir() {
        args.push(format!("-I{multiarch}"));
    }
    SkeletonBuilder::new()
        .source(&source)
        .clang(clang)
        .clang_args(args)
        .obj(out_dir()?.join(format!("{name}.bpf.o")))
        .build()?;
    Ok(())
}

fn clang() -> String {
    println!("cargo:rerun-if-env-changed=CLANG");
    env::var("CLANG").unwrap_or_else(|_| "clang".into())
}

/// Compiles `programs/NAME.c` of the crate to the executable `NAME`. Static first: the program then runs
/// on a machine without its libraries, and in a virtual machine's initramfs. Dynamic where the static
/// libraries are missing.
///
/// # Errors
/// The compiler is missing or fails; what it says is in the error.
pub fn c_program(name: &str, flags: &[&str]) -> Result<(), Box<dyn Error>> {
    let compiler = cc::Build::new().opt_level(2).debug(false).cargo_metadata(false).get_compiler();
    let output = out_dir()?.join(name);
    compile_program(compiler.path(), name, &[&["-static"], flags].concat(), &output)
        .or_else(|_| compile_program(compiler.path(), name, flags, &output))
}

/// Compiles `programs/NAME.c` of the crate with clang and LLVM's OpenMP runtime to the executable
/// `NAME.clang`. Dynamic, so that a library that is preloaded can take part in it. The compiler is the
/// one that `CLANG` names or `clang`; whether it has OpenMP, [`clang_has_openmp`] tells.
///
/// # Errors
/// The compiler fails; what it says is in the error.
pub fn clang_openmp_program(name: &str, flags: &[&str]) -> Result<(), Box<dyn Error>> {
    let output = out_dir()?.join(format!("{name}.clang"));
    compile_program(Path::new(&clang()), name, &[&["-fopenmp"], flags].concat(), &output)
}

/// Whether clang can compile and link a program for LLVM's OpenMP runtime.
///
/// # Errors
/// The build directory cannot be written.
pub fn clang_has_openmp() -> Result<bool, Box<dyn Error>> {
    let source = out_dir()?.join("has_openmp.c");
    std::fs::write(
        &source,
        "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n",
    )?;
    let output = Command::new(clang())
        .arg("-fopenmp")
        .arg(&source)
        .arg("-o")
        .arg(source.with_extension(""))
        .output();
    Ok(output.is_ok_and(|output| output.status.success()))
}

fn compile_program(
    compiler: &Path,
    name: &str,
    flags: &[&str],
    output: &Path,
) -> Result<(), Box<dyn Error>> {
    let source = format!("programs/{name}.c");
    println!("cargo:rerun-if-changed={source}");
    let said = Command::new(compiler)
        .args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-s"])
        .arg(&source)
        .arg("-o")
        .arg(output)
        .args(flags)
        .output()
        .map_err(|e| format!("cannot run the C compiler {compiler:?}: {e}"))?;
    if said.status.success() {
        return Ok(());
    }
    let place = env::var("CARGO_MANIFEST_DIR")?;
    let said = String::from_utf8_lossy(&said.stderr);
    Err(format!("the C compiler {compiler:?} cannot build {place}/{source}:\n{said}").into())
}
