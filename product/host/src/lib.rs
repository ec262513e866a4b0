//! The live Linux: observe what the CPUs give and the tasks get, move tasks by a plan, and run a command
//! under that loop.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `clock` | the clocks that are read |
//! | `reading` | cumulative figures, and the snapshot between two readings |
//! | `competitors` | how many tasks of other programs share a CPU with a program |
//! | `exact` | readings from cbinfo (BPF) |
//! | `served` | readings from the cbinfo of a daemon, without privileges |
//! | `figures` | the figures that a daemon hands out to such a run, and to which user |
//! | `approximate` | readings from /proc, without privileges |
//! | `watch` | when waiting is looked for, by cbinfo's samples and windows |
//! | `profile` | where threads wait in code of their own, found by samples on unlike CPUs |
//! | `waits` | how a program waits: estimates and their errors |
//! | `observe` | chooses one of `exact`, `served`, `approximate`; the CPUs that a program may use |
//! | `working_set` | how much memory each process referenced lately |
//! | `options` | how to balance |
//! | `shares` | loops divided by capability: the page of a program, and which lever it has |
//! | `threads` | more OpenMP threads than CPUs: whether the program has started them |
//! | `proof` | what moves and pins gain, measured while the program runs; the rest is withdrawn |
//! | `decision` | moves and refusals with their reasons, as values and as text |
//! | `reasons` | the reason that held in most intervals of a run |
//! | `summary` | how a run went, counted and printed |
//! | `latency` | short waits for a CPU, so that no pin lasts longer than it must |
//! | `place` | placing one task |
//! | `program` | what is kept of one balanced program |
//! | `balancer` | one round: observe, decide, act, record |
//! | `private_file` | files that no other user may read |
//! | `status_file` | what a balancer publishes for `status` and `explain` |
//! | `launch` | what `run` is asked to start |
//! | `job` | which process balances the command of `run`, and what a job's balancer does for it |
//! | `publish` | when the status of a run is written |
//! | `tell` | what the daemons of the node are told of a program, for their metrics |
//! | `trace` | the history of a run for Perfetto's viewer |
//! | `signs` | what tells that CPUs are unequal, without anything being loaded |
//! | `quiet` | the time of a run before there is such a sign |
//! | `first_window` | whether barriers come too often for moves, before anything else is loaded |
//! | `rest` | when the accounting is unloaded for a while, since nothing is gained |
//! | `stops` | when a program is stopped, as a suspended job is: such an interval is left out |
//! | `watch_requests` | the request that has a program only watched, or balanced again |
//! | `child` | the command of `run`: its start, signals and end |
//! | `wait` | the sleep between two rounds |
//! | `run` | the loop of `evenkeel run` |
//! | `daemon` | the service that balances many programs |
//! | `doctor` | what works on this machine and why not, and the asymmetry now |
//! | `calibrate` | relative speeds of CPUs by measurement |

mod approximate;
mod balancer;
mod calibrate;
mod child;
mod clock;
mod competitors;
pub mod daemon;
mod decision;
pub mod doctor;
mod exact;
mod figures;
mod first_window;
mod job;
mod latency;
mod launch;
mod observe;
mod options;
mod place;
mod private_file;
mod profile;
mod program;
mod proof;
mod publish;
mod quiet;
mod reading;
mod reasons;
mod rest;
mod run;
mod served;
mod shares;
mod signs;
mod status_file;
mod stops;
mod summary;
mod tell;
mod threads;
mod trace;
mod wait;
mod waits;
mod watch;
mod watch_requests;
pub mod working_set;

pub use balancer::{Balancer, BalancerError};
pub use calibrate::calibrate;
pub use child::{Child, ChildError, End, Origin, RunError, exec};
pub use decision::{CpuChange, Decision, DecisionCpu, DecisionInWords, Refusal};
pub use figures::{CpuFigures, Figures, TaskFigures};
pub use job::{BalancedBy, Job};
pub use launch::Launch;
pub use observe::{Accounting, AccountingChoice, ObserveError, Observer};
pub use options::{Options, Placement};
pub use place::GuardedError;
pub use proof::{Gain, Pace, Proven};
pub use reading::{CpuFacts, CpuReading, Freedom, ProgramReading, Reading, TaskReading, Watched};
pub use run::{run, without_end};
pub use served::ServedError;
pub use shares::{CpuWeight, SharesStatus};
pub use status_file::{ProgramStatus, StatusFileError, folder as status_folder, read_status_files};
pub use summary::{CpuSummary, JobSummary, Summary};
pub use tell::Tells;
pub use threads::{ThreadCount, Threads};
pub use waits::{Share, Spinning, ThreadTimes, Waits};
pub use watch::{OFTEN_HERTZ, SELDOM_HERTZ, WINDOW_EVERY_NS, WINDOW_NS};
pub use watch_requests::{ask_to_watch, run_socket};
