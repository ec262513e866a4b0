//! Compiles `bpf/cbinfo/*.bpf.c` to the objects that the library carries.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let source = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../bpf/cbinfo");
    // The kernel's user-space headers live in a directory of their own on multi-arch systems.
    let headers = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    for name in ["cbinfo", "waiting", "barriers"] {
        let object = PathBuf::from(env::var("OUT_DIR")?).join(format!("{name}.bpf.o"));
        let mut builder = SkeletonBuilder::new();
        builder.source(source.join(format!("{name}.bpf.c"))).obj(object);
        if let Ok(clang) = env::var("CLANG") {
            builder.clang(clang);
        }
        builder.clang_args(["-Wall", "-Werror", "-I", &headers]);
        builder.build()?;
        println!("cargo:rerun-if-changed={}", source.join(format!("{name}.bpf.c")).display());
    }
    for header in ["cbinfo.h", "system_call.h"] {
        println!("cargo:rerun-if-changed={}", source.join(header).display());
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    Ok(())
}
