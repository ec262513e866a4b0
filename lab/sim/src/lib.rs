//! The keel's own source on machines that nobody has: a deterministic simulator.
//!
//! A [`Simulation`] is a pure function of its input: machine, workload, scheduler, faults and seed. The
//! scheduler is the unmodified `bpf/keel/keel.bpf.c`, compiled natively against `native/kernel.h`, and each
//! simulation has a copy of it to itself. `docs/simulator.md` says what is modelled and what is not.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `run` | one simulation, from its input to its outcome |
//! | `kernel` | the kernel as a scheduler knows it; has a table of its own |
//! | `native`, `copies` | a scheduler as a shared object; its copies, one for each simulation |
//! | `lockup` | a scheduler that does not come back is given up |
//! | `scheduler` | which scheduler |
//! | `event`, `dsq`, `mask` | what happens when; queues; sets of CPUs |
//! | `machine` | which CPUs are near which |
//! | `program` | what tasks do: the language of workloads |
//! | `workload` | workloads from files and by shape |
//! | `observe` | every event goes through it: figures, hash, checkers, record |
//! | `report`, `perfetto`, `picture` | what is said of a simulation: figures, a trace, a picture |
//! | `play` | the same workload with real threads, to compare a simulation with |
//! | `replay` | what a scheduler was told is told to it again |
//! | `sweep`, `workers`, `compare`, `bench` | many simulations; who makes them; two sweeps compared; how fast it is |

mod abi;
mod agenda;
mod compare;
mod dsq;
mod grid;
mod histogram;
mod host_error;
mod kernel;
mod limits;
mod lockup;
mod mask;
mod native;
mod object_pool;
mod observe;
mod outcome;
mod perfetto;
pub mod program;
mod random;
mod real_threads;
mod replay;
mod report;
mod run;
mod scheduler;
mod simulation;
mod speed;
mod sweep;
mod tid;
mod timeline_svg;
mod topology;
mod workers;
mod workload;

pub use compare::{Compared, Figure, compare_rows};
pub use grid::{Grid, Row, SweepError};
pub use host_error::HostError;
pub use kernel::CoScheduling;
pub use limits::{STRICT, TORTURE};
pub use mask::Mask;
pub use outcome::{Account, Broken, Closed, End, Outcome, Overhead, Reason};
pub use perfetto::trace;
pub use real_threads::{PlayError, Share, play, shares};
pub use replay::{Difference, ReplayError, Replayed, replay};
pub use report::{Migrations, Report, Times, history};
pub use run::RecordError;
pub use scheduler::Scheduler;
pub use simulation::{FaultPlan, MAX_EVENTS, Simulation};
pub use speed::{Speed, SpeedAim, Speeds, bench};
pub use sweep::{Lost, Shard, Swept, read as read_rows, sweep};
pub use timeline_svg::{MOST_CPUS, picture};
pub use topology::Level;
pub use workers::{Workers, work};
pub use workload::{MAX_TASKS, SHAPES, WorkloadError, paper002};
