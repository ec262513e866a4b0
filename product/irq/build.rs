//! Compiles `bpf/irq/irq.bpf.c` to the object that the library carries.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let source = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../bpf/irq");
    let object = PathBuf::from(env::var("OUT_DIR")?).join("irq.bpf.o");
    let mut builder = SkeletonBuilder::new();
    builder.source(source.join("irq.bpf.c")).obj(object);
    if let Ok(clang) = env::var("CLANG") {
        builder.clang(clang);
    }
    // The kernel's user-space headers live in a directory of their own on multi-arch systems.
    let headers = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    builder.clang_args(["-Wall", "-Werror", "-mcpu=v3", "-I", &headers]);
    builder.build()?;
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-env-changed=CLANG");
    Ok(())
}
