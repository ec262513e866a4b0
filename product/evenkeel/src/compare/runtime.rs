//! Which runtimes of OpenMP a program has loaded.

use std::collections::BTreeSet;

/// A runtime of OpenMP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runtime {
    /// libgomp.
    Gcc,
    /// libomp, libiomp5.
    Llvm,
}

/// Adds the runtimes that a process and its descendants have loaded.
pub fn note_runtimes(pid: u32, seen: &mut BTreeSet<Runtime>) {
    let mut pending = vec![pid];
    while let Some(pid) = pending.pop() {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        seen.extend(maps.lines().filter_map(runtime_of));
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        for thread in threads.flatten() {
            let children = thread.path().join("children");
            let children = std::fs::read_to_string(children).unwrap_or_default();
            pending.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
}

/// The runtime that a line of `/proc/PID/maps` names.
fn runtime_of(line: &str) -> Option<Runtime> {
    let file = line.rsplit('/').next()?;
    if file.starts_with("libgomp") {
        Some(Runtime::Gcc)
    } else if file.starts_with("libomp.") || file.starts_with("libiomp5.") {
        Some(Runtime::Llvm)
    } else {
        // `libomp.so.5` is `libomp5.so` in some distributions, `libomp-19.so` in others.
        (file.starts_with("libomp5") || file.starts_with("libomp-")).then_some(Runtime::Llvm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_are_known_by_their_files() {
        let line = |file: &str| format!("7f00-7f01 r-xp 00000000 08:01 42  /usr/lib/{file}");
        for (file, runtime) in [
            ("libgomp.so.1.0.0", Some(Runtime::Gcc)),
            ("libomp.so.5", Some(Runtime::Llvm)),
            ("libomp5.so", Some(Runtime::Llvm)),
            ("libiomp5.so", Some(Runtime::Llvm)),
            ("libompi.so", None),
            ("libc.so.6", None),
        ] {
            assert_eq!(runtime_of(&line(file)), runtime, "{file}");
        }
        assert_eq!(runtime_of("7f00-7f01 rw-p 00000000 00:00 0  [heap]"), None);
    }

    #[test]
    fn a_process_without_openmp_has_no_runtime() {
        let mut seen = BTreeSet::new();
        note_runtimes(std::process::id(), &mut seen);
        assert!(seen.is_empty(), "{seen:?}");
    }
}
