//! Which QEMU is run: the one that `scripts/emulator` has fetched, else the installed one.

use std::path::Path;
use std::process::Command;

use crate::cache::cache;

/// QEMU's program. Kernels come as x86-64 packages.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// QEMU's command line, before the machine's arguments.
pub(crate) fn command() -> Command {
    command_from(&cache().join("qemu"))
}

/// The QEMU in the directory `fetched` if there is one, else the installed one.
fn command_from(fetched: &Path) -> Command {
    let program = fetched.join("bin").join(QEMU);
    if !program.exists() {
        return Command::new(QEMU);
    }
    let mut command = Command::new(program);
    // Its built-in search path is that of another installation.
    for firmware in ["qemu", "seabios"] {
        command.arg("-L").arg(fetched.join(firmware));
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fetched_qemu_is_preferred() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(command_from(dir.path()).get_program(), QEMU);
        let program = dir.path().join("bin").join(QEMU);
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        std::fs::write(&program, "").unwrap();
        let command = command_from(dir.path());
        assert_eq!(command.get_program(), program);
        assert!(command.get_args().any(|argument| argument == dir.path().join("seabios")));
    }
}
