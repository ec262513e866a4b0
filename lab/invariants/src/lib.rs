//! What must hold of every scheduler at every moment, checked against the stream of its events.
//!
//! The stream comes from a real kernel (the witness in a virtual machine) or from the simulator; the
//! checkers cannot tell which. A [`Watch`] takes one event after the other, keeps the [`World`] that
//! they add up to, and asks each checker what it makes of the next one:
//!
//! | file | what holds |
//! |---|---|
//! | `no_lost_task` | a task runs in one place, only when it may, and whoever wakes runs in the end |
//! | `bounded_wait` | nobody waits longer than its turn can take |
//! | `affinity_at_every_instant` | nobody runs where it may not |
//! | `work_conservation` | no CPU idles while somebody who may run there waits |
//! | `shield_kept` | nobody has a shielded CPU who may run on another one |
//! | `weights_honoured` | who shares a CPU shares it by weight |
//! | `run_times_add_up` | what the kernel charges is the time on a CPU |
//! | `counters_add_up` | a scheduler's own counters agree with each other |
//!
//! Pure: no I/O, no clock. A stream may begin in the middle of things: what is not known is not
//! judged.

mod affinity_at_every_instant;
mod bounded_wait;
mod counters_add_up;
mod event;
mod ids;
mod no_lost_task;
mod run_times_add_up;
#[cfg(test)]
mod script;
mod shield_kept;
mod watch;
mod weights_honoured;
mod work_conservation;
mod world;

pub use counters_add_up::{Sum, counters_add_up};
pub use event::{Class, Event, IDLE, Left, Tid, What, weight_of_nice};
pub use watch::{Findings, Limits, Violation, Watch};
pub use world::{Condition, Task, World};
