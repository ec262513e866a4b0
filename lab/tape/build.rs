//! Compiles `lab/bpf/recorder.bpf.c` to the BPF object that the library carries.

use std::env;
use std::error::Error;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
    let source = root.join("lab/bpf/recorder.bpf.c");
    let object = PathBuf::from(env::var("OUT_DIR")?).join("recorder.bpf.o");
    let mut builder = SkeletonBuilder::new();
    builder.source(&source).obj(object);
    if let Ok(clang) = env::var("CLANG") {
        builder.clang(clang);
    }
    // The kernel's user-space headers live in a directory of their own on multi-arch systems.
    let headers = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    // The recorder notes what the keel's own kernel helpers there say.
    let kernel = root.join("bpf/keel/kernel");
    let shared = kernel.to_str().ok_or("the path of the source is not UTF-8")?;
    builder.clang_args(["-Wall", "-Werror", "-mcpu=v3", "-I", shared, "-I", &headers]);
    builder.build()?;
    for path in [source, root.join("lab/bpf/recorder.h"), kernel] {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    Ok(())
}
