//! What breaks a rule and is still to be mended, and the part of the work that does it. An entry covers
//! all paths that begin with it. One that covers no finding any more fails: the list only shrinks.

use crate::report::Rule::{self, *};

pub struct Open {
    /// A path from the root, or its beginning.
    pub path: &'static str,
    pub rules: &'static [Rule],
    /// The part that mends it.
    #[allow(dead_code)]
    pub part: &'static str,
}

const fn open(path: &'static str, rules: &'static [Rule], part: &'static str) -> Open {
    Open { path, rules, part }
}

const IAS_AND_GATE: &str = "the second design of ias and of the zone gate";
const SAIS: &str = "the second design of sais, with interrupts";

#[rustfmt::skip]
pub const OPEN: &[Open] = &[
    open("lab/bench/src/ias", &[LineLength, NeverWord, PersonWord], IAS_AND_GATE),
    open("product/keel/src/ias", &[LineLength, NeverWord, PersonWord], IAS_AND_GATE),
    open("bpf/sais/", &[NeverWord, PersonWord], SAIS),
    open("lab/bench/src/sais", &[LineLength, NeverWord, PersonWord], SAIS),
    open("product/sais/", &[LineLength, NeverWord, PersonWord], SAIS),
];
