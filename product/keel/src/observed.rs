//! What the service tells an observer in its own process, which draws a trace of it.

use serde_json::{Map, Value};

use crate::decisions::Decision;
use crate::exit::Exit;
use crate::statistics::Statistics;

/// What the keel does, or has done.
#[derive(Debug)]
pub enum Observed<'a> {
    /// It schedules from now on.
    Loaded {
        /// Its policies: order, gate, balance.
        policies: [String; 3],
        /// What may change while it runs, by name.
        parameters: &'a Map<String, Value>,
    },
    /// How it is at this moment: about once a second, and when it has ended.
    Figures {
        /// The counters, and the state of the CPUs.
        statistics: &'a Statistics,
        /// The last refusals that the CPUs keep, about the tasks of all users, the oldest first.
        decisions: &'a [Decision],
        /// As in `Loaded`.
        parameters: &'a Map<String, Value>,
    },
    /// It schedules no more.
    Ended(&'a Exit),
}
