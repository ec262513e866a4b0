//! What can go wrong with a guest.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a guest could not be booted, or was lost.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This kernel is not in the cache.
    #[error("no kernel {name} in {cache}: run scripts/kernel {name}", cache = .cache.display())]
    NoKernel {
        /// As tests/vm/kernels calls it.
        name: String,
        /// The directory where it should be.
        cache: PathBuf,
    },
    /// The root file system with systemd is not in the cache.
    #[error("there is no {root}: run scripts/systemd", root = .root.display())]
    NoSystemd {
        /// The directory where it should be.
        root: PathBuf,
    },
    /// There is no QEMU.
    #[error("cannot start {command}: {source}: install qemu-system-x86 (scripts/setup does)")]
    NoQemu {
        /// The program that could not be started.
        command: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file of the host could not be read or written.
    #[error("{what} {path}: {source}", path = .path.display())]
    File {
        /// What failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The libraries of a program could not be found.
    #[error("cannot tell which libraries {program} needs: {why}", program = .program.display())]
    Libraries {
        /// The program.
        program: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The guest said nothing for too long, and was killed.
    #[error(
        "the guest said nothing for {} s and was killed; the end of its console:\n{console}",
        .silence.as_secs()
    )]
    Silent {
        /// How long it said nothing.
        silence: Duration,
        /// The last lines of its console.
        console: String,
    },
    /// The caller gave up on the guest ([`crate::Machine::give_up`]), and it was killed.
    #[error("the wait for the guest was given up: it was killed")]
    GivenUp,
    /// The guest ended by itself.
    #[error("the guest ended while it was needed; the end of its console:\n{console}")]
    Ended {
        /// The last lines of its console.
        console: String,
    },
}

/// For `map_err`: a failure with a file of the host.
pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}
