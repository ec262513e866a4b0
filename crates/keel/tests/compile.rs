//! The keel's sources compile natively too, against the twin of the kernel's part: so they use
//! nothing that only BPF has, and nothing of the kernel that a simulator would not know of.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

fn compile(compiler: &str, options: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(compiler)
        .args(["-std=gnu17", "-Wall", "-Werror", "-O2", "-c", "-fPIC"])
        .args(options)
        .arg("-I")
        .arg(root.join("crates/keel/native"))
        .arg("-o")
        .arg(dir.path().join("keel.o"))
        .arg(root.join("bpf/keel.bpf.c"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {options:?}:\n{said}");
}

#[test]
fn the_keel_compiles_natively() {
    compile("cc", &[]);
}

#[test]
fn the_keel_compiles_with_sanitizers() {
    compile("cc", &["-fsanitize=address,undefined", "-fno-sanitize-recover"]);
}
