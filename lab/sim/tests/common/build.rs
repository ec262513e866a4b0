//! Compiles schedulers as shared objects, with the options that a test needs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The keel, compiled with these options.
pub fn compile(compiler: &str, options: &[&str]) -> Vec<u8> {
    compile_in(&root(), "bpf/keel/keel.bpf.c", compiler, options)
}

/// Another scheduler, compiled with these options.
pub fn compile_other(source: &str, options: &[&str]) -> Vec<u8> {
    compile_in(&root(), source, "cc", &[&["-O1"], options].concat())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The keel with a fault: in this file of its source, `fault` replaces `text`.
pub fn with_fault(file: &str, text: &str, fault: &str) -> Vec<u8> {
    with_faults(&[(file, text, fault)])
}

/// The same with several faults, each a file, the text in it, and what replaces that.
pub fn with_faults(faults: &[(&str, &str, &str)]) -> Vec<u8> {
    let root = root();
    let dir = tempfile::tempdir().unwrap();
    for part in ["bpf", "policy", "lab/sim/native"] {
        copy(&root.join(part), &dir.path().join(part));
    }
    for (file, text, fault) in faults {
        let path = dir.path().join(file);
        let source = std::fs::read_to_string(&path).unwrap();
        assert_eq!(source.matches(text).count(), 1, "{file}: {text}");
        std::fs::write(&path, source.replace(text, fault)).unwrap();
    }
    compile_in(dir.path(), "bpf/keel/keel.bpf.c", "cc", &["-O1", "-Wno-unused"])
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

fn compile_in(root: &Path, source: &str, compiler: &str, options: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let object = dir.path().join("scheduler.so");
    let output = Command::new(compiler)
        .args(["-std=gnu17", "-Wall", "-Werror", "-fno-strict-aliasing", "-fPIC", "-shared"])
        .arg("-Wl,-Bsymbolic")
        .args(options)
        .arg("-I")
        .arg(root.join("lab/sim/native"))
        .arg("-o")
        .arg(&object)
        .arg(root.join(source))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {options:?}:\n{said}");
    std::fs::read(object).unwrap()
}
