//! Compiles `bpf/sais/sais.bpf.c` and `bpf/sais/sais-serve.bpf.c` to the objects that the library
//! carries, the rule of `auto` to a function that the library calls, and for the tests what reads
//! packets and tags hints to functions of a process.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
    for name in ["sais", "sais-serve"] {
        build_object(&root, name)?;
    }
    build_rule();
    build_parser();
    for path in ["bpf/sais", "product/sais/native"] {
        println!("cargo:rerun-if-changed={}", root.join(path).display());
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    Ok(())
}

fn build_object(root: &Path, name: &str) -> Result<(), Box<dyn Error>> {
    let object = PathBuf::from(env::var("OUT_DIR")?).join(format!("{name}.bpf.o"));
    let mut builder = SkeletonBuilder::new();
    builder.source(root.join(format!("bpf/sais/{name}.bpf.c"))).obj(object);
    if let Ok(clang) = env::var("CLANG") {
        builder.clang(clang);
    }
    // The kernel's user-space headers live in a directory of their own on multi-arch systems.
    let headers = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    builder.clang_args(["-Wall", "-Werror", "-mcpu=v3", "-I", &headers]);
    builder.build()?;
    Ok(())
}

/// The rule of `auto`, which the packet programs and this library share.
fn build_rule() {
    cc::Build::new()
        .file("native/auto.c")
        .flags(["-Wall", "-Wextra", "-Werror", "-ffreestanding"])
        .compile("sais_auto");
}

/// Undefined behaviour is a trap, but for words at odd addresses, which the kernel allows: what no
/// test hits then is defined. Nothing but tests calls the function, so nothing else contains it.
fn build_parser() {
    cc::Build::new()
        .file("native/parse.c")
        .flags(["-Wall", "-Wextra", "-Werror", "-ffreestanding"])
        .flags(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"])
        .flag("-fno-sanitize=alignment")
        .compile("sais_parse");
}
