//! What breaks a rule and is still to be mended, and the part of the work that does it. An entry covers
//! all paths that begin with it. One that covers no finding any more fails: the list only shrinks.

use crate::report::Rule;

pub struct Open {
    /// A path from the root, or its beginning.
    pub path: &'static str,
    pub rules: &'static [Rule],
    /// The part that mends it.
    #[allow(dead_code)]
    pub part: &'static str,
}

/// Empty: nothing is left open.
pub const OPEN: &[Open] = &[];
