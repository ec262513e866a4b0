//! Exact accounting of stolen CPU time and run time, by BPF.
//!
//! The paper's kernel module `cbinfo` (000, section 3.3) for stock kernels: where each CPU's time
//! goes ([`CpuAccount`]), and what each task of a followed program got of it ([`TaskAccount`]).
//! Needs CAP_BPF and CAP_PERFMON (or root) and a kernel with BTF. The kernel detaches everything when
//! the process ends. How it works is described at the head of `bpf/cbinfo/cbinfo.bpf.c`.
//!
//! | file | what it holds |
//! |---|---|
//! | `accounting` | loading and attaching the BPF object, following programs, reading |
//! | `error` | what can fail, and what both loaders need |
//! | `counters` | the mapped accounts of the CPUs |
//! | `layout` | the structs that BPF and Rust share, and the accounts made of them |
//! | `waiting` | work told from waiting, by samples |
//! | `barriers` | the barriers that processes pass |
//! | `runtimes` | the text in which the threads of a process wait |
//! | `foreign_file` | reading files that other users chose |
//! | `interrupt_cost` | measuring what an interrupt costs outside its tracepoints |
//! | `support` | whether this kernel and this process can do it |
//! | `malformed_functions` | a fault of some kernels' BTF, which `doctor` and the keel ask about |
//! | `clock` | the clock of the accounting |

mod accounting;
mod barriers;
mod clock;
mod counters;
mod error;
mod foreign_file;
mod interrupt_cost;
mod iterators;
mod layout;
mod malformed_functions;
mod runtimes;
mod support;
mod waiting;

pub use accounting::{Cbinfo, Cost, child_processes};
pub use barriers::{Barriers, Wakes, Window};
pub use error::Error;
pub use layout::{CpuAccount, MAX_WAIT_RANGES, Noise, TaskAccount, TaskEvent};
pub use malformed_functions::malformed_functions;
pub use runtimes::{Family, Runtimes, Text};
pub use support::{
    INITIAL_PID_NAMESPACE, RunTimeExcludes, Unsupported, keeps_time_for_sched_ext,
    redirect_libbpf_log, run_time_excludes, support,
};
pub use waiting::{Place, Waiting};
