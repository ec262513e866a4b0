//! Snapshot, effective capability, ECPT and the policies that turn them into moves.
//!
//! This is the capability balancer of paper 000. It is pure: no I/O, no clock, no randomness.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `snapshot` | what each CPU could give and what each task got in the interval that just ended |
//! | `figures` | effective capability, ECPT and the bound, from a snapshot |
//! | `plan` | what a policy answers: moves, and reasons |
//! | `paper` | the paper's policy, step for step |
//! | `lag` | the default policy |
//! | `policy` | the entry: calls the policy that was chosen |
//! | `weights` | by which weight of each CPU a program's loops are divided, and where its threads stay |

mod figures;
mod lag;
mod paper;
mod plan;
mod policy;
mod snapshot;
mod weights;

pub use figures::{average_per_mille, ecpt};
pub use lag::{LagParameters, Preference};
pub use paper::{PaperParameters, Selection};
pub use plan::{Move, Pin, Plan, Reason};
pub use policy::{Policy, State, plan};
pub use snapshot::{Barriers, CpuView, Invalid, ONE_SLEEP_NS, Seen, Snapshot, TaskId, TaskView};
pub use weights::{Places, WHOLE_WEIGHT, Weighing};
