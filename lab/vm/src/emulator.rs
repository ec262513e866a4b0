//! QEMU: the one that `scripts/emulator` has fetched, else the installed one.

use std::path::Path;
use std::process::Command;

use crate::kernel::cache;

/// Its program. Kernels come as x86-64 packages.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// Starts it, with the machine still to be said.
pub(crate) fn command() -> Command {
    of(&cache().join("qemu"))
}

/// `fetched`: where one lies that has been fetched, if there is one.
fn of(fetched: &Path) -> Command {
    let program = fetched.join("bin").join(QEMU);
    if !program.exists() {
        return Command::new(QEMU);
    }
    let mut command = Command::new(program);
    // It was built for another place.
    for firmware in ["qemu", "seabios"] {
        command.arg("-L").arg(fetched.join(firmware));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fetched_one_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of(dir.path()).get_program(), QEMU);
        let program = dir.path().join("bin").join(QEMU);
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        std::fs::write(&program, "").unwrap();
        let command = of(dir.path());
        assert_eq!(command.get_program(), program);
        assert!(command.get_args().any(|argument| argument == dir.path().join("seabios")));
    }
}
