//! Compiles `bpf/keel/keel.bpf.c` and what stands beside it to the objects that the library carries, and for the
//! tests the policies to functions of this process.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
    build_object(&root, "bpf/keel", "keel")?;
    build_object(&root, "lab/bpf", "recorder")?;
    build_object(&root, "bpf/keel", "space")?;
    build_policies(&root)?;
    for path in [
        "bpf/keel",
        "lab/bpf/recorder.bpf.c",
        "lab/bpf/recorder.h",
        "policy",
        "product/keel/native",
    ] {
        println!("cargo:rerun-if-changed={}", root.join(path).display());
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    Ok(())
}

fn build_object(root: &Path, folder: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let object = PathBuf::from(env::var("OUT_DIR")?).join(format!("{name}.bpf.o"));
    let mut builder = SkeletonBuilder::new();
    builder.source(root.join(format!("{folder}/{name}.bpf.c"))).obj(object);
    if let Ok(clang) = env::var("CLANG") {
        builder.clang(clang);
    }
    // The kernel's user-space headers live in a directory of their own on multi-arch systems.
    let headers = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    let kernel = root.join("bpf/keel/kernel");
    let kernel = kernel.to_str().ok_or("the path of the source is not UTF-8")?;
    builder.clang_args(["-Wall", "-Werror", "-mcpu=v3", "-I", kernel, "-I", &headers]);
    builder.build()?;
    Ok(())
}

/// Undefined behaviour, divisions by zero and shifts that are too far are traps: what no test hits
/// then is defined. Nothing but tests calls these functions, so nothing else contains them; in a library
/// of its own, so that `scripts/mutate` can put another one in its place.
fn build_policies(root: &Path) -> Result<(), Box<dyn Error>> {
    let out = env::var("OUT_DIR")?;
    let status = cc::Build::new()
        .flags(["-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fPIC"])
        .flags(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"])
        .try_get_compiler()?
        .to_command()
        .args(["-shared", "-o", &format!("{out}/libkeel_policy.so")])
        .arg(root.join("product/keel/native/policy.c"))
        .status()?;
    if !status.success() {
        return Err(format!("native/policy.c: {status}").into());
    }
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-arg-tests=-Wl,-rpath,{out}");
    Ok(())
}
