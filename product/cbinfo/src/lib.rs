//! Exact accounting of stolen CPU time and run time, by BPF.
//!
//! The paper's kernel module `cbinfo` (000, section 3.3) for stock kernels: where each CPU's time
//! goes ([`CpuAccount`]), and what each task of a followed program got of it ([`TaskAccount`]).
//! Needs CAP_BPF and CAP_PERFMON (or root) and a kernel with BTF. Everything that it attaches
//! vanishes with the process.

mod accounting;
mod interrupt_cost;
mod records;
mod support;

pub use accounting::{Cbinfo, Cost, Error};
pub use records::{CpuAccount, Noise, TaskAccount, TaskEvent};
pub use support::{
    INITIAL_PID_NAMESPACE, RunTimeExcludes, Unsupported, run_time_excludes, support,
};
