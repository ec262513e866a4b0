//! `libevenkeel_shares.so`: preloaded into a program of LLVM's OpenMP runtime (clang, flang, and the
//! compilers of Intel, AMD and Arm), it divides the iterations of `schedule(static)` loops by the
//! capability of the CPU under each thread. It does nothing without a page of the balancer, with equal
//! weights, or where anything is odd: then the runtime's own result stands, bit for bit.
//!
//! 1. *What is divided* (`entry.rs`). The four entry points by which static loops are begun are
//!    defined here, in front of the runtime's. Each calls the runtime's function first, and writes
//!    other bounds only for an unchunked static worksharing loop. Sections, distribute, chunked and
//!    ordered schedules pass.
//! 2. *How all threads of a team agree* (`team.rs`). The thread that forks a region takes the weights,
//!    once, before any member of the team starts. The region carries the place where they stand, and
//!    every member reads them there. So all loops of a region are divided alike, as OpenMP demands of
//!    static loops (`nowait`). The weight of a member is that of the CPU on which it was last: each
//!    member notes its CPU when it begins a region or a loop. The first region of a team is divided
//!    equally.
//! 3. *How a fork is seen* (`tool.rs`). By OpenMP's tool interface (OMPT), which reports every region
//!    and every member, whatever started it, and carries one word from the fork to the members. The
//!    price: it has room for one tool. Where another tool wants the interface, that tool gets it, and
//!    nothing is divided. The alternative was to intercept `__kmpc_fork_call`. That tells only the
//!    forking thread: a member could find its region only in the runtime's private structures. And
//!    regions start through other entry points as well (teams, `if` clauses, GOMP's, serialised
//!    regions).
//! 4. *Where the runtime is found* (`original.rs`), also if it is loaded late or out of sight.
//!
//! The code runs inside of foreign programs. On the way into a loop or a region it allocates nothing,
//! takes no lock and waits for nothing, except where a runtime has to be looked for first
//! (`original.rs`), which is the loader's work. It cannot panic: no indexing, no `unwrap`, no arithmetic
//! that can overflow into a panic. Signals and descriptors are left alone: the page's descriptor is
//! closed at once.

mod entry;
mod original;
mod process;
mod team;
mod tool;
