//! Compiles the hog (programs/noise_child.c) and the softirq generator (lab/bpf/noise.bpf.c), which
//! the crate embeds.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_cargo::SkeletonBuilder;

const HOG: &str = "programs/noise_child.c";
const SOFTIRQ: &str = "../bpf/noise.bpf.c";

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    compile_hog(&out)?;
    compile_softirq(&out)
}

/// Static first (it then runs inside a virtual machine's initramfs), dynamic where the static
/// libraries are missing.
fn compile_hog(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={HOG}");
    let compiler = cc::Build::new().opt_level(2).debug(false).cargo_metadata(false).get_compiler();
    let mut said = String::new();
    for linking in [&["-static"][..], &[]] {
        let output = Command::new(compiler.path())
            .args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-s"])
            .args(linking)
            .arg(HOG)
            .arg("-o")
            .arg(out.join("noise_child"))
            .output()
            .map_err(|e| format!("cannot run the C compiler {:?}: {e}", compiler.path()))?;
        if output.status.success() {
            return Ok(());
        }
        said = String::from_utf8_lossy(&output.stderr).into_owned();
    }
    Err(format!("the C compiler {:?} cannot build lab/noise/{HOG}:\n{said}", compiler.path())
        .into())
}

fn compile_softirq(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={SOFTIRQ}");
    println!("cargo:rerun-if-changed=../bpf/noise.h");
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
        .source(SOFTIRQ)
        .clang(clang)
        .clang_args(args)
        .obj(out.join("noise.bpf.o"))
        .build()?;
    Ok(())
}
