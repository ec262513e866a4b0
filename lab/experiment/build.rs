//! Compiles the stopwatch for schedulers' callbacks (lab/bpf/callback.bpf.c), which the crate embeds.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "../bpf/callback.bpf.c";

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-changed=../bpf/callback.h");
    println!("cargo:rerun-if-changed=peers.txt");
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
        .source(SOURCE)
        .clang(clang)
        .clang_args(args)
        .obj(out.join("callback.bpf.o"))
        .build()?;
    Ok(())
}
