//! Which runtimes of OpenMP a program has, loaded or linked in. They are among those that cbinfo knows,
//! by which waiting is told from work.

use std::collections::BTreeSet;

use evenkeel_cbinfo::Runtimes;
use procfs::process::Process;

/// A runtime of OpenMP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Runtime {
    /// gcc's libgomp.
    Gcc,
    /// LLVM's libomp, and Intel's, which was its origin.
    Llvm,
}

/// How the names begin in cbinfo's list: of files, and of the functions that tell of a runtime in an
/// executable.
const NAMES: [(&str, Runtime); 5] = [
    ("libgomp", Runtime::Gcc),
    ("GOMP_", Runtime::Gcc),
    ("libomp", Runtime::Llvm),
    ("libiomp5", Runtime::Llvm),
    ("__kmpc_", Runtime::Llvm),
];

/// Notes the runtimes of OpenMP that a process or one of its descendants has. `runtimes` remembers what
/// each file has.
pub fn note_openmp(pid: u32, runtimes: &mut Runtimes, seen: &mut BTreeSet<Runtime>) {
    let mut pending = vec![pid];
    while let Some(pid) = pending.pop() {
        // A process that has ended, or may not be read, has none that is seen.
        let text = runtimes.find(pid).unwrap_or_default();
        seen.extend(text.runtimes.iter().filter_map(|name| openmp_of(name)));
        let threads = Process::new(pid as i32).and_then(|process| process.tasks());
        let threads = threads.into_iter().flatten().flatten();
        pending.extend(threads.flat_map(|thread| thread.children().unwrap_or_default()));
    }
}

fn openmp_of(name: &str) -> Option<Runtime> {
    NAMES.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, runtime)| *runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_of_openmp_are_told_from_others() {
        for (name, runtime) in [
            ("libgomp.so.1.0.0", Some(Runtime::Gcc)),
            ("GOMP_parallel", Some(Runtime::Gcc)),
            ("libomp.so.5", Some(Runtime::Llvm)),
            ("libiomp5.so", Some(Runtime::Llvm)),
            ("__kmpc_fork_call", Some(Runtime::Llvm)),
            ("libmpi.so.40", None),
            ("MPI_Init", None),
            ("ompi_mpi_init", None),
        ] {
            assert_eq!(openmp_of(name), runtime, "{name}");
        }
    }

    #[test]
    fn a_process_without_openmp_has_no_runtime() {
        let mut seen = BTreeSet::new();
        note_openmp(std::process::id(), &mut Runtimes::new(&[]), &mut seen);
        assert_eq!(seen, BTreeSet::new());
    }
}
