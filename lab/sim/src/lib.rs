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

mod bench;
mod compare;
mod copies;
mod dsq;
mod event;
mod kernel;
mod lockup;
mod machine;
mod mask;
mod native;
mod observe;
mod perfetto;
mod picture;
mod play;
pub mod program;
mod random;
mod replay;
mod report;
mod run;
mod scheduler;
mod sweep;
mod workers;
mod workload;

pub use bench::{Speed, SpeedAim, Speeds, bench};
pub use compare::{Compared, Figure, compare_rows};
pub use kernel::{Company, End, FaultPlan};
pub use mask::Mask;
pub use native::HostError;
pub use observe::{Account, Broken, Closed, Level, Overhead, Reason, STRICT, TORTURE};
pub use perfetto::trace;
pub use picture::{MOST_CPUS, picture};
pub use play::{PlayError, Share, play, shares};
pub use replay::{Difference, ReplayError, Replayed, replay};
pub use report::{Migrations, Report, Times, history};
pub use run::{MAX_EVENTS, Outcome, RecordError, Simulation};
pub use scheduler::Scheduler;
pub use sweep::{Grid, Lost, Row, Shard, SweepError, Swept, read as read_rows, sweep};
pub use workers::{Workers, work};
pub use workload::{MAX_TASKS, SHAPES, WorkloadError, paper002};
