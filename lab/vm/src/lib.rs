//! Boots a real kernel in QEMU and runs commands there: for tests, benchmarks and demonstrations.
//!
//! One program is both sides. On the host it builds an initramfs of itself, the files that it names
//! and the libraries that these need, and boots a kernel with it; in the guest, where it is the
//! first process ([`is_init`]), it serves what the host asks for ([`serve`]): run a command, say how
//! that ended. A guest that falls silent is killed, and the error shows its console.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `kernel` | kernels in the cache that `scripts/kernel` fills |
//! | `topology` | the machine as code: CPUs, threads, NUMA nodes, distances, memory |
//! | `initramfs` | files, programs and their libraries as a cpio archive |
//! | `acceleration` | KVM where it was seen to work, else emulation |
//! | `emulator` | QEMU: the one that `scripts/emulator` has fetched, else the installed one |
//! | `machine` | its command line |
//! | `guest` | a running guest, seen from the host |
//! | `protocol` | what host and guest say to each other |
//! | `init` | the first process in the guest |

mod acceleration;
mod emulator;
mod guest;
mod init;
mod initramfs;
mod kernel;
mod machine;
mod protocol;
mod topology;

pub use acceleration::Acceleration;
pub use guest::Guest;
pub use init::{is_init, serve};
pub use initramfs::Initramfs;
pub use kernel::{Kernel, cache};
pub use machine::Machine;
pub use protocol::{Ending, Job};
pub use topology::Topology;

use std::path::PathBuf;
use std::time::Duration;

/// Why a guest could not be had, or was lost.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody has fetched this kernel.
    #[error("no kernel {name} in {cache}: run scripts/kernel {name}", cache = .cache.display())]
    NoKernel {
        /// As tests/vm/kernels calls it.
        name: String,
        /// The directory where it should be.
        cache: PathBuf,
    },
    /// There is no emulator.
    #[error("cannot start {command}: {source}: install qemu-system-x86 (scripts/setup does)")]
    NoQemu {
        /// The program that was looked for.
        command: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file of the host could not be read or written.
    #[error("{what} {path}: {source}", path = .path.display())]
    File {
        /// What was to be done with it.
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
    #[error("the guest said nothing for {} s and was killed; the end of its console:\n{console}", .silence.as_secs())]
    Silent {
        /// How long it was waited for.
        silence: Duration,
        /// The last lines of its console.
        console: String,
    },
    /// Whoever waited for the guest gave up, and it was killed.
    #[error("nobody waits for the guest any longer: it was killed")]
    GivenUp,
    /// The guest ended by itself.
    #[error("the guest ended while it was needed; the end of its console:\n{console}")]
    Ended {
        /// The last lines of its console.
        console: String,
    },
}

fn file(what: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}
