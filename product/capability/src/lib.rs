//! Snapshot, effective capability, ECPT and the policies that turn them into moves.
//!
//! The heart of the capability balancer (paper 000), and pure: no I/O, no clock, no randomness.
//! The same [`plan`] runs on the live host and in the simulator.
//!
//! A [`Snapshot`] says what each CPU could give and what each task got in the interval that just
//! ended. [`capability`](CpuView::effective_ns) turns that into the paper's figures; a [`Policy`]
//! turns the figures into a [`Plan`]: which task goes where, and why.

mod figures;
mod lag;
mod paper;
mod plan;
mod snapshot;
pub mod synthetic;

pub use figures::{average_per_mille, ecpt};
pub use lag::LagParameters;
pub use paper::{PaperParameters, Selection};
pub use plan::{Move, Plan, Policy, Reason, State, plan};
pub use snapshot::{CpuView, Invalid, Snapshot, TaskId, TaskView};
