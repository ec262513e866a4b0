//! Tapes: all that the keel was told and all that it did, callback by callback. The simulator records
//! tapes and replays them (`lab/sim`); this crate holds their format, and records the keel on a real
//! kernel.
//!
//! | file | what it holds |
//! |---|---|
//! | `tape` | the format: what is on a tape, and its file |
//! | `recorder` | the BPF programs around the keel's callbacks that write a tape |
//! | `record` | runs the keel with a recorder, from its first callback to its end |

mod record;
mod recorder;
mod tape;

pub use record::{RecordError, record};
pub use recorder::RecorderError;
pub use tape::{
    Callback, Entry, Function, Kind, LAST, MOST_CPUS, Tape, TapeError, TaskView, VALUES,
};
