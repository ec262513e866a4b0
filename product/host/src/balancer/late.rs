//! What is to be done again, since the processes could not be read in time.

use evenkeel_cbinfo::TaskEvent;
use evenkeel_journal::TaskRef;

/// The most of each kind that wait: a user may fork without an end while none of its processes is read.
pub(super) const MAX_LATE: usize = 4096;

#[derive(Default)]
pub(super) struct Late {
    pub events: Vec<TaskEvent>,
    /// Tasks of programs that have left.
    pub releases: Vec<TaskRef>,
}
