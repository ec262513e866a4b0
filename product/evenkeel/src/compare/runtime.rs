//! Which families of runtimes a program has, loaded or linked in: they decide which contestants apply.

use std::collections::BTreeSet;

use evenkeel_cbinfo::{Family, Runtimes};
use procfs::process::Process;

/// Notes the families of the runtimes that a process or one of its descendants has. `runtimes` remembers
/// what each file has.
pub fn note_families(pid: u32, runtimes: &mut Runtimes, seen: &mut BTreeSet<Family>) {
    let mut pending = vec![pid];
    while let Some(pid) = pending.pop() {
        // A process that has ended, or may not be read, has none that is seen.
        seen.extend(runtimes.find(pid).unwrap_or_default().families());
        let threads = Process::new(pid as i32).and_then(|process| process.tasks());
        let threads = threads.into_iter().flatten().flatten();
        pending.extend(threads.flat_map(|thread| thread.children().unwrap_or_default()));
    }
}

/// Whether one of the families is of OpenMP: no other decides which contestants apply.
pub fn has_openmp(seen: &BTreeSet<Family>) -> bool {
    seen.contains(&Family::GccOpenMp) || seen.contains(&Family::LlvmOpenMp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_of_mpi_is_none_of_openmp() {
        assert!(!has_openmp(&[Family::Mpi].into()));
        assert!(has_openmp(&[Family::Mpi, Family::GccOpenMp].into()));
        assert!(has_openmp(&[Family::LlvmOpenMp].into()));
    }

    #[test]
    fn a_process_without_a_runtime_has_no_family() {
        let mut seen = BTreeSet::new();
        note_families(std::process::id(), &mut Runtimes::new(&[]), &mut seen);
        assert_eq!(seen, BTreeSet::new());
    }
}
