//! Compiles the unchanged keel and the trivial scheduler natively against `native/kernel.h`. The
//! library carries each as a shared object.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    build(&root, &root.join("bpf/keel/keel.bpf.c"), &out.join("keel.so"))?;
    build(&root, &root.join("lab/sim/native/fifo.c"), &out.join("fifo.so"))?;
    for path in ["bpf/keel", "policy", "lab/sim/native"] {
        println!("cargo:rerun-if-changed={}", root.join(path).display());
    }
    Ok(())
}

fn build(root: &Path, source: &Path, object: &Path) -> Result<(), Box<dyn Error>> {
    let status = cc::Build::new()
        .warnings(false)
        .opt_level(2)
        .debug(false)
        .flags(["-std=gnu17", "-Wall", "-Werror", "-fno-strict-aliasing"])
        .include(root.join("lab/sim/native"))
        .try_get_compiler()?
        .to_command()
        .args(["-fPIC", "-shared", "-Wl,-Bsymbolic", "-o"])
        .args([object, source])
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", source.display()).into()) }
}
