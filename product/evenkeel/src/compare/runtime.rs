//! Whether a program has a runtime of OpenMP, loaded or linked in. The runtimes are those that cbinfo
//! knows, by which waiting is told from work.

use evenkeel_cbinfo::Runtimes;
use procfs::process::Process;

/// How the names of OpenMP's runtimes begin in that list: of files, and of the functions that tell of a
/// runtime in an executable.
const OPENMP: [&str; 5] = ["libgomp", "libomp", "libiomp5", "GOMP_", "__kmpc_"];

/// Whether a process or one of its descendants has a runtime of OpenMP. `runtimes` remembers what each
/// file has.
pub fn has_openmp(pid: u32, runtimes: &mut Runtimes) -> bool {
    let mut pending = vec![pid];
    while let Some(pid) = pending.pop() {
        // A process that has ended, or may not be read, has none that is seen.
        let text = runtimes.find(pid).unwrap_or_default();
        if text.runtimes.iter().any(|name| is_openmp(name)) {
            return true;
        }
        let threads = Process::new(pid as i32).and_then(|process| process.tasks());
        let threads = threads.into_iter().flatten().flatten();
        pending.extend(threads.flat_map(|thread| thread.children().unwrap_or_default()));
    }
    false
}

fn is_openmp(name: &str) -> bool {
    OPENMP.iter().any(|begin| name.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_of_openmp_are_told_from_others() {
        for name in
            ["libgomp.so.1.0.0", "libomp.so.5", "libiomp5.so", "GOMP_parallel", "__kmpc_fork_call"]
        {
            assert!(is_openmp(name), "{name}");
        }
        for name in ["libmpi.so.40", "libucp.so.0", "MPI_Init", "ucp_worker_progress"] {
            assert!(!is_openmp(name), "{name}");
        }
    }

    #[test]
    fn a_process_without_openmp_has_no_runtime() {
        let mut runtimes = Runtimes::new(&[]);
        assert!(!has_openmp(std::process::id(), &mut runtimes));
    }
}
