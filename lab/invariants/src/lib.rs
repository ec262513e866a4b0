//! Checkers: rules that must hold under every scheduler at every moment, checked against the stream of
//! scheduling events.
//!
//! The stream comes from a real kernel (lab/witness, in a virtual machine) or from the simulator (lab/sim);
//! the checkers cannot tell which. A [`Watch`] takes one event after the other. It keeps the [`State`] that
//! all events so far add up to, and shows both to each checker:
//!
//! | checker | what must hold | judged at |
//! |---|---|---|
//! | `no_lost_task` | a task runs on one CPU at a time, and only if it was woken and is not dead | each switch to a task |
//! | `bounded_wait` | no fair task waits longer than its turn can take | each switch to a task, since it became runnable |
//! | `affinity_at_every_instant` | no task runs on a CPU that its mask excludes | each switch, since the mask changed last |
//! | `work_conservation` | no CPU idles while a fair task that may run there waits | each switch to a task, since it became runnable |
//! | `shield_kept` | no fair task occupies a shielded CPU if it may run on another one | each switch from a task, since the shield, the mask or the switch to it |
//! | `weights_honoured` | tasks that share a CPU share it by weight | each switch, once a window is over |
//! | `run_times_add_up` | the kernel charges a task the time that it had a CPU | the end of a task or of the stream, since the task's first switch |
//! | `counters_add_up` | a scheduler's own counters agree with each other | two readings of the counters; needs no stream |
//!
//! Every checker judges once more at the end of the stream. `findings` holds what a checker is, its limits
//! and its findings; `event` the events; `state` what they add up to.
//!
//! Pure: no I/O, no clock. A stream may begin at any time: what it has not shown yet is not judged.

mod affinity_at_every_instant;
mod bounded_wait;
mod counters_add_up;
mod event;
mod findings;
mod id_map;
mod no_lost_task;
mod run_times_add_up;
mod shield_kept;
mod state;
#[cfg(test)]
mod test_events;
mod watch;
mod weights_honoured;
mod work_conservation;

pub use counters_add_up::{Sum, counters_add_up};
pub use event::{Class, Event, IDLE, Left, Tid, What, weight_of_nice};
pub use findings::{Findings, Limits, Violation};
pub use state::{Condition, State, Task};
pub use watch::Watch;
