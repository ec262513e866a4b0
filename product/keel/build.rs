//! Compiles the keel and its lookup of address spaces (`bpf/keel/`) to the BPF objects that the library
//! carries, and the policies to native functions for the tests.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
    build_object(&root, "keel")?;
    build_object(&root, "space")?;
    build_policies(&root)?;
    for path in ["bpf/keel", "policy", "product/keel/native"] {
        println!("cargo:rerun-if-changed={}", root.join(path).display());
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    Ok(())
}

fn build_object(root: &Path, name: &str) -> Result<(), Box<dyn Error>> {
    let object = PathBuf::from(env::var("OUT_DIR")?).join(format!("{name}.bpf.o"));
    let mut builder = SkeletonBuilder::new();
    builder.source(root.join(format!("bpf/keel/{name}.bpf.c"))).obj(object);
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

/// Builds the policies for the tests. Undefined behaviour, a division by zero and a shift that is too
/// far trap, so what no test hits is defined. The policies are a library of their own, which only tests
/// link, so that `scripts/mutate` can replace it.
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
