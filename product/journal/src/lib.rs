//! Every change to the system, written down before it is made, and taken back by whoever is still
//! alive: the program itself ([`Session::close`]), its supervisor ([`supervise`]), or the next
//! start and `evenkeel undo` ([`undo`]).
//!
//! This crate is also the one place in the project where a CPU affinity is read and set
//! ([`affinity`]). Three contracts of the design live here: *Undo* (a mask is restored only if it
//! still is what we wrote), *Yield* (what the user sets wins) and the half of *Transparent* that
//! frees children which inherited a pin.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `affinity` | the two system calls, and what the user had before us ([`affinity::Original`]) |
//! | `task` | which thread is meant, proof against PID reuse |
//! | `cpuset` | the CPUs that a thread's cgroup lets it use |
//! | `directory` | where journals lie, and that nobody else can reach them |
//! | `record` | one line of a journal, with its checksum |
//! | `file` | the journal on disk: append, lock, compact |
//! | `ledger` | what the lines add up to: who is pinned, by whom, what before |
//! | `adopter` | which process adopts orphans of ours |
//! | `heritage` | which thread inherited a pin of ours |
//! | `session` | placing and releasing |
//! | `setting` | knobs of the kernel that are turned and turned back |
//! | `guarded` | a session and the supervisor that goes with it |
//! | `undo` | taking everything back |
//! | `supervisor` | the process that does so when we are killed |
//! | `failpoint` | dying on purpose after any of these steps, for tests |

mod adopter;
pub mod affinity;
mod cpuset;
mod directory;
pub mod failpoint;
mod file;
mod guarded;
mod heritage;
mod ledger;
mod record;
mod session;
mod setting;
mod supervisor;
mod task;
mod undo;

pub use affinity::{AffinityError, Original};
pub use cpuset::{effective_cpuset, mask_in_cpuset};
pub use directory::runtime_dir;
pub use file::JournalError;
pub use guarded::{GuardedSession, SupervisorCommand, same_program};
pub use session::{PlaceError, Placed, Released, Session, SessionOptions, Style};
pub use setting::{KeptSetting, SettingError, TurnedBack};
pub use supervisor::{Supervisor, SupervisorError, supervise};
pub use task::{TaskError, TaskRef};
pub use undo::{
    Damage, Foreign, Kept, UndoError, UndoOptions, UndoReport, undo, undo_earlier, undo_file,
    writer_of,
};
