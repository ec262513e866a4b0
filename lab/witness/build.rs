//! Compiles `lab/bpf/witness.bpf.c` and `lab/bpf/fault.bpf.c` to the objects that the library carries.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let sources = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../bpf");
    let objects = PathBuf::from(env::var("OUT_DIR")?);
    // The kernel's user-space headers live in a directory of their own on multi-arch systems.
    let headers = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    for name in ["witness", "fault"] {
        let source = sources.join(format!("{name}.bpf.c"));
        let mut builder = SkeletonBuilder::new();
        builder.source(&source).obj(objects.join(format!("{name}.bpf.o")));
        if let Ok(clang) = env::var("CLANG") {
            builder.clang(clang);
        }
        builder.clang_args(["-Wall", "-Werror", "-I", &headers]);
        builder.build()?;
        println!("cargo:rerun-if-changed={}", source.display());
    }
    println!("cargo:rerun-if-changed={}", sources.join("witness.h").display());
    println!("cargo:rerun-if-env-changed=CLANG");
    Ok(())
}
