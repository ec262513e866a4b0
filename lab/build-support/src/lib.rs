//! What the laboratory's build scripts share. All functions write into the crate's `OUT_DIR`, and tell
//! cargo when to build again. The crate embeds what is there.
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

/// Compiles `programs/NAME.c` of the crate to the executable `NAME.static`, for places without its
/// libraries: another machine, or a virtual machine's initramfs. Stripped. Dynamic where the static
/// libraries are missing.
///
/// # Errors
/// The compiler is missing or fails; what it says is in the error.
pub fn static_program(name: &str, flags: &[&str]) -> Result<(), Box<dyn Error>> {
    let output = out_dir()?.join(format!("{name}.static"));
    let flags = [&["-s"], flags].concat();
    compile_program(&c_compiler(), name, &[&["-static"], &flags[..]].concat(), &output)
        .or_else(|_| compile_program(&c_compiler(), name, &flags, &output))
}

/// Compiles `programs/NAME.c` of the crate with the system's C compiler (gcc) and its OpenMP to the
/// executable `NAME.gcc`. Dynamic and with its symbols, as a user's program is: evenkeel recognises how
/// the program waits by the libgomp that it maps.
///
/// # Errors
/// The compiler is missing or fails; what it says is in the error.
pub fn gcc_openmp_program(name: &str, flags: &[&str]) -> Result<(), Box<dyn Error>> {
    openmp_program(&c_compiler(), name, "gcc", flags)
}

/// The same with clang and LLVM's OpenMP runtime to the executable `NAME.clang`: the preload library can
/// divide its loops. The compiler is the one that `CLANG` names or `clang`; whether it has
/// OpenMP, [`clang_has_openmp`] tells.
///
/// # Errors
/// The compiler fails; what it says is in the error.
pub fn clang_openmp_program(name: &str, flags: &[&str]) -> Result<(), Box<dyn Error>> {
    openmp_program(Path::new(&clang()), name, "clang", flags)
}

fn openmp_program(
    compiler: &Path,
    name: &str,
    ending: &str,
    flags: &[&str],
) -> Result<(), Box<dyn Error>> {
    let output = out_dir()?.join(format!("{name}.{ending}"));
    compile_program(compiler, name, &[&["-fopenmp"], flags].concat(), &output)
}

/// The system's C compiler, or the one that `CC` names.
fn c_compiler() -> PathBuf {
    let build = cc::Build::new().opt_level(2).debug(false).cargo_metadata(false).get_compiler();
    build.path().to_owned()
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
        .args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror"])
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
