//! The work lever of `evenkeel run --shares`: iterations of static loops are divided by the capability
//! of the CPU under each thread, in programs of LLVM's OpenMP runtime.
//!
//! Two sides meet in one page of shared memory. The balancer creates it ([`page::PageOwner`]), passes
//! its address in the program's environment ([`environment`]), writes the weight of each CPU and a
//! heartbeat, and reads back what the program does. The preload library (`product/shares-preload`)
//! maps it ([`page::attach`]) and divides loops ([`bounds`], [`partition`]). Before a program starts,
//! [`executable`] says whether the library can have an effect on it.
//!
//! What the preload library calls runs inside of foreign programs: these functions never allocate,
//! block or panic, and say so where they stand.

pub mod bounds;
pub mod environment;
pub mod executable;
pub mod page;
pub mod partition;
