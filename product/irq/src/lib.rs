//! Interrupts as a lever: what each interrupt line and each NAPI instance costs on which CPU, and where
//! it is moved.
//!
//! | file | what it holds |
//! |---|---|
//! | `layout` | the layouts of `bpf/irq/irq.h` |
//! | `counters` | the BPF programs: load, attach, read |
//! | `totals` | what was counted, and differences of readings; pure |
//! | `sysfs` | lines: affinity, names, counts, devices |
//! | `gauge` | the little that is read in each round, at rest too |
//! | `threads` | the kernel threads of threaded NAPI |
//! | `snapshot` | one interval: CPUs and sources; pure |
//! | `observe` | from two readings to a snapshot |
//! | `protect` | the CPUs of the program that `--for` names |
//! | `decide` | from a snapshot to a plan; pure |
//! | `margin` | what counts as a clear gain; pure |
//! | `spread` | the part of a plan that is for indirection tables of cards; pure |
//! | `devices` | what the kernel says of cards and their indirection tables |
//! | `toeplitz` | the hash by which cards choose a queue; pure |
//! | `connections` | the TCP connections of this host |
//! | `rounds` | which move of a plan is made, and what stays for good; pure |
//! | `once` | all moves of one plan; pure |
//! | `mover` | moves lines and threads, and changes tables, under the journal |
//! | `xps` | the send queue that follows a line |

mod connections;
mod counters;
mod decide;
mod devices;
mod gauge;
mod layout;
mod margin;
mod mover;
mod observe;
mod once;
mod protect;
mod rounds;
mod snapshot;
mod spread;
mod sysfs;
mod threads;
mod toeplitz;
mod totals;
mod xps;

pub use counters::{Counters, CountersError};
pub use decide::{Aim, Move, Plan, Reason, Stay, plan, plan_for};
pub use mover::{MoveError, Mover};
pub use observe::{
    ObserveError, Observer, OriginalLine, Originals, irqbalance_runs, online_cpus, watch,
};
pub use once::once;
pub use protect::{Program, ProgramError, RunningProgram};
pub use rounds::{Actuator, Change, Event, MovedByOther, Outcome, Rounds};
pub use snapshot::{Accounting, Cpu, Device, Held, Napi, Snapshot, Source, SourceId};
pub use spread::{Spread, StayingTable, Unspread};
pub use sysfs::{devices as devices_of_lines, queue as queue_of_handler};
pub use toeplitz::Flow;
