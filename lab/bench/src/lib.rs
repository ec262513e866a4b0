//! The papers' experiments: programs, noise, statistics and side-by-side reports.
//!
//! - [`capability`]: the capability balancer against the kernel and pinning, under noise.
//! - [`make_noise`], [`verify`]: one noise for a while; what the accounting sees of it.
//! - [`plan_cost`]: what deciding costs, in instructions.
//! - [`daemon_cost`]: what the daemon costs with many programs, and that nothing grows.
//! - [`guest`]: schedulers take turns in virtual machines: what the next ones share.
//! - [`keel`]: the keel beside the kernel's own scheduler and its peers.
//! - [`ias`]: what sibling aggregation costs, and what it brings together.
//! - [`balance`]: programs on unequal CPUs, under the keel and the user-level balancer.
//! - [`free`]: free runs of the simulator beside those of a real kernel.
//! - [`refill`]: what it costs to fill caches again, and what the simulator has for it.
//! - [`sais`]: packets processed where their data is wanted, against the kernel's ways.
//! - [`repro`]: the papers' figures and tables, measured again.
//! - [`programs`]: the parallel programs that are measured, compiled from C and embedded.
//! - [`mpi`]: the MPIs that are here; compiles and launches programs for them.
//! - [`noise`]: makes CPUs unequal on purpose, and [`noise::gap`] measures it independently.
//! - [`interleave`]: runs contestants in turn (A B C A B C ...) and gathers their measurements.
//! - [`stats`] (crate `evenkeel-stats`): medians, intervals, and the better / worse / undecided of a comparison.
//! - [`report`]: the rows, as JSON, as a table, as Markdown.
//! - [`executable`]: the product and the laboratory's own program file.
//! - [`command`]: one command, run to its end.
//! - [`accounts`]: where the CPUs' time went during a run.
//! - [`interrupt`], [`output`]: ending in order; files written at the end but tried at the start.

pub mod balance;
pub mod capability;
mod crowd;
pub mod daemon_cost;
pub mod free;
pub mod ias;
pub mod interleave;
pub mod keel;
pub mod make_noise;
pub mod mpi;
pub mod plan_cost;
mod private_daemon;
pub mod programs;
pub mod refill;
pub mod repro;
pub mod sais;
pub mod verify;
pub mod zone;

pub use evenkeel_stats as stats;
