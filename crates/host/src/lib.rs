//! The live Linux: observe what the CPUs give and the tasks get, act on a plan, and run a program
//! under that loop.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `reading` | cumulative figures, and the snapshot between two of them |
//! | `exact` | readings from cbinfo (BPF) |
//! | `approximate` | readings from /proc, for whoever may not load BPF |
//! | `observe` | which of the two, and which CPUs count |
//! | `balancer` | observe, decide, act, record: one interval |
//! | `program` | a command as a child: its start, signals and end |
//! | `supervise` | the loop around the two |
//! | `summary` | what a run was like, for people and for programs |
//! | `record` | what runs now and why it did what it did, for `status` and `explain` |
//! | `calibrate` | relative speeds of CPUs by measuring |

mod approximate;
mod balancer;
mod calibrate;
mod exact;
mod observe;
mod program;
mod reading;
mod record;
mod summary;
mod supervise;

pub use balancer::{Balancer, BalancerError, Options, Placement};
pub use calibrate::calibrate;
pub use observe::{Accounting, AccountingChoice, ObserveError, Observer};
pub use program::{End, Program, ProgramError};
pub use reading::{CpuReading, Reading, TaskReading};
pub use record::{Decision, Record, RecordError, records};
pub use summary::{CpuSummary, Summary};
pub use supervise::{Job, run};
