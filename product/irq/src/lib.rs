//! Interrupts as a lever: what each interrupt line and each NAPI instance costs on which CPU, and what
//! would be moved. Nothing is changed here.
//!
//! | file | what it holds |
//! |---|---|
//! | `records` | the layouts of `bpf/irq/irq.h` |
//! | `counters` | the BPF programs: load, attach, read |
//! | `totals` | what was counted, and differences of readings; pure |
//! | `sysfs` | lines: affinity, names, counts, devices |
//! | `threads` | the kernel threads of threaded NAPI |
//! | `snapshot` | one interval: CPUs and sources; pure |
//! | `observe` | from two readings to a snapshot |
//! | `protect` | the CPUs of the program that `--for` names |
//! | `decide` | from a snapshot to a plan; pure |

mod counters;
mod decide;
mod observe;
mod protect;
mod records;
mod snapshot;
mod sysfs;
mod threads;
mod totals;

pub use counters::{Counters, CountersError};
pub use decide::{Move, Plan, Reason, plan};
pub use observe::{ObserveError, Observer, irqbalance_runs, watch};
pub use protect::{Program, ProgramError};
pub use snapshot::{Accounting, Cpu, Held, Napi, Snapshot, Source, SourceId};
