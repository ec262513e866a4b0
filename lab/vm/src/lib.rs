//! Boots a real kernel in QEMU and runs commands there: for tests, benchmarks and demonstrations.
//!
//! One program is both sides. On the host it packs itself, the files that it names and their libraries
//! into an initramfs and boots a kernel with it. In the guest the same program is the first process:
//! its `main` asks [`is_init`] and calls [`serve`].
//!
//! One command, from the host into the guest and back:
//!
//! 1. The caller describes a [`Machine`]: kernel, topology, initramfs, acceleration. [`Machine::boot`]
//!    writes the initramfs (`initramfs`), makes QEMU's command line (`machine`) and starts QEMU
//!    (`guest`). QEMU's standard input and output are the guest's second serial line; the first one is
//!    its console, a file.
//! 2. In the guest, `init` mounts the file systems, opens the second serial line and writes `"ready"`
//!    (`protocol`). [`Machine::boot`] returns a [`Guest`].
//! 3. [`Guest::run`] writes a request, `{"run":{"command":[...],"limit_s":N}}`, one line of JSON.
//! 4. `init` starts the command with its output in files, and writes `"alive"` every two seconds. It
//!    kills the command when its time is over.
//! 5. When the command has ended, `init` kills the processes that it left behind and writes
//!    `{"ended":{...}}`: exit code, output, leftovers. [`Guest::run`] returns that as an [`Ending`].
//! 6. [`Guest::off`] writes `"off"`, and `init` powers the guest off. A guest that says nothing for too
//!    long is killed instead, and the error shows the end of its console.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `cache` | the cache directory, which `scripts/kernel` and others fill |
//! | `kernel` | kernels in the cache |
//! | `topology` | the guest's machine: CPUs, threads, NUMA nodes, distances, memory |
//! | `initramfs` | files, programs and their libraries as a cpio archive |
//! | `acceleration` | KVM, emulation or counted instructions, as QEMU's arguments |
//! | `probe` | finds the fastest acceleration that works on this host |
//! | `emulator` | which QEMU: the one that `scripts/emulator` has fetched, else the installed one |
//! | `machine` | QEMU's command line, and booting |
//! | `guest` | a running guest, seen from the host |
//! | `protocol` | the messages between host and guest |
//! | `init` | the first process in the guest |
//! | `error` | what can go wrong |

mod acceleration;
mod cache;
mod emulator;
mod error;
mod guest;
mod init;
mod initramfs;
mod kernel;
mod machine;
mod probe;
mod protocol;
mod topology;

pub use acceleration::Acceleration;
pub use cache::cache;
pub use error::Error;
pub use guest::Guest;
pub use init::{is_init, serve};
pub use initramfs::Initramfs;
pub use kernel::Kernel;
pub use machine::Machine;
pub use protocol::{Ending, Job};
pub use topology::Topology;

use error::file;
