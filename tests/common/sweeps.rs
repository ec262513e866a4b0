//! What the tests of sweeps need, on this host and under Slurm: the command, a keel that crashes, and a
//! Python that has Dask.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

/// `evenkeel-lab sim sweep` of a small load with so many seeds, into this file of the test.
pub fn words(host: &Host, seeds: usize, out: &str) -> Vec<String> {
    let out = host.path(out).display().to_string();
    let seeds = seeds.to_string();
    let words = ["sim", "sweep", "arrivals:tasks=8,work=5ms", "--seeds", &seeds, "--out", &out];
    words.map(str::to_owned).to_vec()
}

/// What a sweep that must succeed prints.
pub fn swept(command: &mut Command) -> String {
    let done = output(command);
    let said = text(&done.stdout);
    assert_eq!(done.status.code(), Some(0), "{said}{}", text(&done.stderr));
    said
}

/// How a keel that was built to crash does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The first one that is loaded while the marker exists, which it removes.
    Once,
    /// Each that is loaded while the marker exists.
    Always,
}

/// Builds a keel that crashes while `marker` exists, which it does now.
pub fn crashing_keel(host: &Host, crash: Crash) -> (PathBuf, PathBuf) {
    let [source, keel, marker] = ["keel.c", "keel.so", "marker"].map(|name| host.path(name));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let call = match crash {
        Crash::Once => "unlink(MARKER)",
        Crash::Always => "access(MARKER, 0)",
    };
    let program = format!(
        "#include \"{}\"\n\
         #define MARKER \"{}\"\n\
         int unlink(const char *);\n\
         int access(const char *, int);\n\
         static __attribute__((constructor)) void crash(void)\n\
         {{ if (!{call}) __builtin_trap(); }}\n",
        root.join("bpf/keel/keel.bpf.c").display(),
        marker.display()
    );
    std::fs::write(&source, program).unwrap();
    let flags = ["-std=gnu17", "-O1", "-fno-strict-aliasing", "-fPIC", "-shared", "-Wl,-Bsymbolic"];
    let mut cc = Command::new("cc");
    cc.args(flags).arg("-I").arg(root.join("lab/sim/native")).arg("-o").arg(&keel).arg(&source);
    let compiled = output(&mut cc);
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    std::fs::write(&marker, "").unwrap();
    (keel, marker)
}

/// The Python that `scripts/setup dask` has made, or a message that the test is skipped.
pub fn dask(test: &str) -> Option<PathBuf> {
    let python = evenkeel_vm::cache().join("dask/bin/python");
    let mut ask = Command::new(&python);
    if python.exists() && output(ask.args(["-c", "import distributed"])).status.success() {
        return Some(python);
    }
    evenkeel_skip::skip(test, "no Dask here (scripts/setup dask installs it)");
    None
}
