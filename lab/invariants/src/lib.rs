//! Checkers: rules that must hold under every scheduler at every moment, checked against the stream of
//! scheduling events.
//!
//! The stream comes from a real kernel (lab/witness, in a virtual machine) or from the simulator
//! (lab/sim); the checkers cannot tell which. A [`Watch`] takes one event after the other. It keeps the
//! [`State`] that all events so far add up to, and shows both to each checker:
//!
//! - `no_lost_task`: a task runs on one CPU at a time, and only if it was woken and is not dead. Judged
//!   at each switch to a task.
//! - `bounded_wait`: no fair task waits longer than its turn can take. Judged at each switch to a task,
//!   since the wake-up or switch by which it began to wait.
//! - `affinity_at_every_instant`: no task runs on a CPU that its mask excludes. Judged at each switch,
//!   since the last change of the mask.
//! - `work_conservation`: no CPU idles while a fair task that may run there waits. Judged at each
//!   switch to a task, since the wake-up or switch by which it began to wait.
//! - `shield_kept`: no fair task stays on a shielded CPU if it may run on another one. Judged at each
//!   switch from a task, since the switch to it, or the last change of the shield or the mask.
//! - `weights_honoured`: tasks that share a CPU share it by weight, and so do cgroups. Judged at the
//!   first switch after the end of a window, since the end of the window before.
//! - `run_times_add_up`: the kernel charges a task the time that it had a CPU. Judged at the end of the
//!   stream and at a fork that reuses the number, since the first switch from the task.
//! - `counters_add_up`: a scheduler's own counters agree with each other. Judged between two readings;
//!   needs no stream.
//!
//! Every checker judges once more at the end of the stream. `findings` holds what a checker is, its
//! limits and its findings; `event` the events; `state` what they add up to.
//!
//! Pure: no I/O, no clock. A stream may begin at any time: what it has not shown yet is not judged.

mod affinity_at_every_instant;
mod bounded_wait;
mod counters_add_up;
mod event;
mod findings;
mod groups;
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
