//! The live Linux: observe what the CPUs give and the tasks get, act on a plan, and run a program
//! under that loop.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `reading` | cumulative figures, and the snapshot between two of them |
//! | `exact` | readings from cbinfo (BPF) |
//! | `approximate` | readings from /proc, for whoever may not load BPF |
//! | `observe` | which of the two, and which CPUs count |
//! | `working_set` | how much memory each process referenced lately |
//! | `member` | what is remembered of one program that is balanced |
//! | `balancer` | observe, decide, act, record: one look |
//! | `guarded` | placing under supervision, and promptly |
//! | `prompt` | being run promptly, so that no pin lasts longer than it must |
//! | `program` | a command as a child: its start, signals and end |
//! | `supervise` | the loop around the two |
//! | `summary` | what a run was like, for people and for programs |
//! | `record` | what runs now and why it did what it did, for `status` and `explain` |
//! | `daemon` | the service that balances many programs |
//! | `doctor` | what works here and why not, and the asymmetry now |
//! | `calibrate` | relative speeds of CPUs by measuring |

mod approximate;
mod balancer;
mod calibrate;
pub mod daemon;
pub mod doctor;
mod exact;
mod guarded;
mod member;
mod observe;
mod program;
mod prompt;
mod reading;
mod record;
mod summary;
mod supervise;
pub mod working_set;

pub use balancer::{Balancer, BalancerError, Options, Placement};
pub use calibrate::calibrate;
pub use guarded::GuardedError;
pub use observe::{Accounting, AccountingChoice, ObserveError, Observer};
pub use program::{End, Origin, Program, ProgramError};
pub use reading::{CpuFacts, CpuReading, Freedom, ProgramReading, Reading, TaskReading};
pub use record::{Decision, Record, RecordError, records};
pub use summary::{CpuSummary, Summary};
pub use supervise::{Job, run};
