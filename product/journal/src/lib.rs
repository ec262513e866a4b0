//! The journal: every change that evenkeel makes to the system (a thread's CPU affinity, a setting of
//! the kernel, an interrupt line's affinity, a network card's indirection table, what irqbalance leaves
//! alone) can be undone, whatever kills evenkeel.
//!
//! # The life of a change
//!
//! 1. **Write** the entry: the change, and the value before it (`entry.rs`; appended by `file.rs`). It
//!    comes first because a process can be killed between any two steps: an entry without its change
//!    is harmless, a change without its entry could not be undone. If the entry cannot be written,
//!    the change is not made.
//! 2. **Act**: the affinity is set (`place.rs`, by `affinity.rs`) or the setting is written
//!    (`session.rs`, by `setting.rs`).
//! 3. **Verify**: the thread's mask is read again. If it is neither ours nor what it was, the user
//!    changed it meanwhile: the thread is let go, and never placed again (`claim.rs`). If the thread
//!    has ended and another one has its number, that one is given its own mask back (`stranger.rs`).
//! 4. **Undo**: the value before is restored, but only if the system still has the value that was
//!    written: a thread that its user re-pinned, or a setting that an administrator changed, stays as
//!    it is. Threads and children that inherited a mask are freed as well (`inheritance.rs`).
//!
//! # What undoes it
//!
//! | the main process ... | undone by | file |
//! |---|---|---|
//! | exits, or gets SIGTERM | itself ([`Session::close`], also on drop) | `session.rs` |
//! | is killed (`kill -9`, OOM, a crash) | its supervisor, when their socket closes | `supervisor.rs` |
//! | is killed, its supervisor too | next start or `evenkeel undo`: [`undo()`] | `undo.rs` |
//!
//! A writer may let its changes stand as its last act (`persistent.rs`): these are undone only by the
//! user's `evenkeel undo`.
//!
//! All of them run the same code, `undo.rs`, on the same state (`state.rs`): a living session has
//! applied its entries as it wrote them, the others replay the file. Each undone change gets an entry of
//! its own, so an undo that is killed itself is completed by the next. Each entry carries a checksum,
//! and the header names boot and namespaces (`validity.rs`), so that no torn line and no reused process
//! number is ever acted upon. A reboot undoes everything; the journal is void after it.
//!
//! The supervisor is started before the first change (`supervised.rs`), and another one before the next
//! change if that one was killed: a process that changes nothing does not need one. For tests,
//! `failpoint.rs` kills the process after any of these steps.
//!
//! # Files
//!
//! This crate is the only place of the product where a CPU affinity is read or set.
//!
//! | file | what it holds |
//! |---|---|
//! | `affinity` | the two system calls, and what a thread had before ([`affinity::Original`]) |
//! | `task` | a thread's identity, proof against PID reuse |
//! | `cpuset` | the CPUs that a thread's cgroup lets it use |
//! | `directory` | where journals lie, and why no other user can reach them |
//! | `entry` | one line of a journal, with its checksum |
//! | `file` | the journal on disk: append, lock, compact |
//! | `reaper` | which process adopts our orphans |
//! | `validity` | the boot and the namespaces for which a journal holds |
//! | `state` | what the entries add up to |
//! | `inheritance` | which thread inherited a mask of ours |
//! | `claim` | whether the mask that a thread has now is ours |
//! | `stranger` | the thread that has the number of one that ended just before it was placed |
//! | `setting` | reading, writing and restoring one setting |
//! | `device` | where a file of a network device is, by whatever name the device has |
//! | `line` | moving and restoring one interrupt line |
//! | `ethtool` | what a network card says of its receive queues, and setting its indirection table |
//! | `table` | changing and restoring the indirection table of one network device |
//! | `hotplug` | which CPUs are offline, or have been since the last look at lines |
//! | `irqbalance` | the list of lines that irqbalance leaves alone |
//! | `persistent` | changes that outlive their writer |
//! | `report` | what an undo did and could not do |
//! | `undo` | restoring everything, from a session's state or from journals |
//! | `session` | a process's open journal |
//! | `place` | placing and releasing threads |
//! | `supervisor` | the process that undoes when its writer is killed |
//! | `supervised` | a session together with its supervisor |
//! | `failpoint` | tests: the process kills itself at a chosen step |

pub mod affinity;
mod claim;
mod cpuset;
mod device;
mod directory;
mod entry;
pub mod ethtool;
pub mod failpoint;
mod file;
mod hotplug;
mod inheritance;
mod irqbalance;
mod line;
mod persistent;
mod place;
mod reaper;
mod report;
mod session;
mod setting;
mod state;
mod stranger;
mod supervised;
mod supervisor;
mod table;
mod task;
mod undo;
mod validity;

pub use affinity::{AffinityError, Original};
pub use cpuset::{effective_cpuset, mask_in_cpuset};
pub use directory::{
    has_more_rights_than_caller, other_runtime_dirs, path_from_environment, runtime_dir,
};
pub use entry::{
    Ban, BanEnd, Entry, Header, Held, Line, LineEnd, Persistent, Pin, PinEnd, Program, Setting,
    SettingEnd, Table, TableEnd, parse_entries,
};
pub use file::{JournalError, writer_of};
pub use irqbalance::{BanError, Irqbalance, find_irqbalance};
pub use line::{ChangedLines, DisplacedLine, LetGoLine, MovedLine};
pub use persistent::Standing;
pub use place::{PlaceError, Placed, Released};
pub use report::{Damage, Foreign, Kept, KeptSetting, KeptTable, LiftedBan, UndoError, UndoReport};
pub use session::{Session, SessionOptions};
pub use setting::{RestoredSetting, SettingError};
pub use state::{JournalState, PinState, TrackedTask};
pub use supervised::{SupervisedSession, SupervisorCommand, same_program};
pub use supervisor::{Supervisor, SupervisorError, supervise};
pub use table::{ChangedTable, TableError, buckets_by_queue, read_table};
pub use task::{TaskError, TaskRef};
pub use undo::{UndoOptions, undo, undo_all, undo_earlier, undo_file};
