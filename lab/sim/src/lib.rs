//! A deterministic simulator: runs the keel's own source on simulated machines.
//!
//! A [`Simulation`] is a pure function of its input: a world (machine, workload, faults, seed) and a
//! scheduler. The scheduler is the unmodified `bpf/keel/keel.bpf.c`, compiled natively against
//! `native/kernel.h`; each simulation has its own copy. `docs/simulator.md` says what is modelled and
//! what is not.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `simulation`, `outcome`, `run` | the input; what came of it; from the one to the other |
//! | `limits` | how strictly the checkers judge |
//! | `kernel` | the model of the kernel; its own table maps each file to the kernel's functions |
//! | `agenda` | the queue of future events |
//! | `dsq`, `mask` | dispatch queues; CPU masks |
//! | `topology`, `tid` | distances between CPUs; task numbers |
//! | `program` | what tasks do: the language of workloads |
//! | `workload` | workloads from files and by shape |
//! | `random` | random numbers that are the same on every machine |
//! | `scheduler` | which scheduler is simulated |
//! | `paper_rules` | paper 002 to the letter: rules that no user can switch on |
//! | `native`, `abi` | a scheduler as a shared object; the C structs that it uses |
//! | `object_pool`, `host_error` | reuses loaded copies; why a scheduler cannot be loaded |
//! | `engine_error` | why a job engine cannot run a sweep |
//! | `keel_state` | what the keel keeps in its maps, for checkers and figures |
//! | `lockup` | ends a scheduler that does not return from a callback |
//! | `observe`, `histogram` | every event passes through it: figures, hash, checkers, record |
//! | `report`, `perfetto`, `timeline_svg` | figures; a trace for Perfetto; a timeline as SVG |
//! | `real_threads` | the same workload with threads of this machine, to compare a simulation with |
//! | `replay` | replays a tape to a scheduler and compares its decisions |
//! | `grid`, `sweep`, `workers` | many simulations: which ones, on which engine, in which processes |

mod abi;
mod agenda;
mod dsq;
mod engine_error;
mod grid;
mod histogram;
mod host_error;
mod keel_state;
mod kernel;
mod limits;
mod lockup;
mod mask;
mod native;
mod object_pool;
mod observe;
mod outcome;
mod paper_rules;
mod perfetto;
pub mod program;
mod random;
mod real_threads;
mod replay;
mod report;
mod run;
mod scheduler;
mod simulation;
mod sweep;
mod tid;
mod timeline_svg;
mod topology;
mod workers;
mod workload;

pub use engine_error::EngineError;
pub use evenkeel_keel::Aggregation;
pub use grid::{Grid, ROW_FORMAT, Row, SweepError};
pub use host_error::HostError;
pub use kernel::{CoScheduling, Gauge};
pub use limits::{STRICT, TORTURE};
pub use mask::Mask;
pub use outcome::{Account, Broken, Closed, End, Outcome, Overhead, Reason};
pub use paper_rules::PaperRule;
pub use perfetto::trace;
pub use real_threads::{PlayError, Share, play, shares};
pub use replay::{Difference, ReplayError, Replayed, replay};
pub use report::{Migrations, Report, Times, history};
pub use run::RecordError;
pub use scheduler::Scheduler;
pub use simulation::{FaultPlan, MAX_EVENTS, Simulation};
pub use sweep::{
    JobEngine, Lost, Shard, Spread, Swept, Told, read_rows, sweep, sweep_on, sweep_part,
};
pub use timeline_svg::{MOST_CPUS, picture};
pub use topology::Level;
pub use workers::{Workers, work};
pub use workload::{MAX_TASKS, SHAPES, WorkloadError, paper002};
