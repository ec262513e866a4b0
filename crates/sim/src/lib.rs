//! The keel's own source on machines that nobody has: a deterministic simulator.
//!
//! A [`Simulation`] is a pure function of its input: machine, workload, scheduler, faults and seed.
//! The scheduler is the unmodified `bpf/keel.bpf.c`, compiled natively against `native/kernel.h`, and
//! each simulation has a copy of it to itself.

mod bench;
mod compare;
mod dsq;
mod event;
mod kernel;
mod machine;
mod mask;
mod native;
mod observe;
mod perfetto;
mod picture;
pub mod program;
mod random;
mod report;
mod run;
mod scheduler;
mod sweep;
mod workload;

pub use bench::{Speed, Speeds, bench};
pub use compare::{Compared, Figure, compare_rows};
pub use kernel::{End, FaultPlan};
pub use mask::Mask;
pub use native::HostError;
pub use observe::{Account, Broken, Level, Reason, STRICT, TORTURE};
pub use perfetto::trace;
pub use picture::{MOST_CPUS, picture};
pub use report::{Migrations, Report, Times, history};
pub use run::{MAX_EVENTS, Outcome, Simulation};
pub use scheduler::Scheduler;
pub use sweep::{Grid, Row, Shard, SweepError, read as read_rows, sweep};
pub use workload::{MAX_TASKS, SHAPES, WorkloadError};
