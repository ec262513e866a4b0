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

const PART_1: &str = "part 1: plain English, open";
const LAG: &str = "the part that rewrites lag";
const IAS_AND_GATE: &str = "the parts that rewrite ias and the gate";
const SAIS: &str = "the part that rewrites sais";

#[rustfmt::skip]
pub const OPEN: &[Open] = &[
    open("Makefile", &[LineLength], PART_1),
    open("README.md", &[LineLength, NeverWord], PART_1),
    open("bpf/cbinfo/", &[NeverWord, PersonWord], PART_1),
    open("bpf/keel/", &[LineLength, NeverWord, PersonWord], PART_1),
    open("docs/architecture.md", &[LineLength, NeverWord, CommandLine], PART_1),
    open("docs/choosing.md", &[NeverWord], PART_1),
    open("docs/glossary.md", &[LineLength, DeadFile], PART_1),
    open("docs/guide.md", &[LineLength, NeverWord, Figure], PART_1),
    open("docs/policies.md", &[LineLength, NeverWord], PART_1),
    open("docs/results/sim.md", &[CommandLine], PART_1),
    open("docs/simulator.md", &[LineLength, NeverWord, CommandLine], PART_1),
    open("include/evenkeel.h", &[LineLength, NeverWord], PART_1),
    open("lab/bench/", &[LineLength, NeverWord, PersonWord], PART_1),
    open("lab/bpf/", &[LineLength, PersonWord], PART_1),
    open("lab/evenkeel-lab/", &[LineLength, NeverWord, PersonWord], PART_1),
    open("lab/invariants/", &[NeverWord, PersonWord], PART_1),
    open("lab/sim/", &[LineLength, NeverWord, PersonWord], PART_1),
    open("lab/vm/", &[LineLength, NeverWord, PersonWord], PART_1),
    open("lab/witness/", &[LineLength, NeverWord, PersonWord], PART_1),
    open("packaging/systemd/evenkeel.service", &[NeverWord], PART_1),
    open("policy/", &[LineLength, NeverWord, PersonWord], PART_1),
    open("product/capability/", &[LineLength, NeverWord, PersonWord], PART_1),
    open("product/cbinfo/", &[LineLength, NeverWord, PersonWord, FileCircle], PART_1),
    open("product/control/", &[LineLength, NeverWord, PersonWord], PART_1),
    open("product/evenkeel/", &[LineLength, NeverWord, PersonWord, FileCircle], PART_1),
    open("product/host/", &[NeverWord, PersonWord, Dependency, FileCircle], PART_1),
    open("product/journal/", &[LineLength, NeverWord, PersonWord, FileCircle], PART_1),
    open("product/keel/", &[LineLength, NeverWord, PersonWord], PART_1),
    open("product/machine/", &[LineLength, NeverWord, PersonWord, FileCircle], PART_1),
    open("scripts/mutate", &[LineLength, NeverWord], PART_1),
    open("scripts/peers", &[LineLength], PART_1),
    open("tests/host/sais/rfs.rs", &[NeverWord], PART_1),
    // Parts to come.
    open("product/capability/src/lag", &[NeverWord, PersonWord, FileCircle], LAG),
    open("lab/bench/src/ias", &[LineLength, NeverWord, PersonWord], IAS_AND_GATE),
    open("lab/bench/src/zone", &[LineLength, NeverWord, PersonWord], IAS_AND_GATE),
    open("product/keel/src/ias", &[LineLength, NeverWord, PersonWord, FileCircle], IAS_AND_GATE),
    open("bpf/sais/", &[NeverWord, PersonWord], SAIS),
    open("lab/bench/src/sais", &[LineLength, NeverWord, PersonWord], SAIS),
    open("product/sais/", &[LineLength, NeverWord, PersonWord, FileCircle], SAIS),
];
