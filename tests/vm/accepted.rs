//! Which combinations of policies each kernel accepts, and how much its verifier looks at for that.

use std::process::{Command, Stdio};

use crate::Test;
use crate::policies::{FLAGS, said};
use crate::scheduler::{hasten, state};
use crate::support::{EVENKEEL, output, text};

/// The flags of each of the three policies: the plain one, then the paper's.
const ANSWERS: [(&str, [&str; 2]); 3] = [
    ("--order", ["fair", "ias"]),
    ("--gate", ["always", "zone"]),
    ("--balance", ["count", "capability"]),
];

/// On every kernel.
pub const SHORT: &[Test] =
    &[Test { name: "policies::the_papers_are_accepted", run: the_papers_are_accepted }];

/// On the newest kernel. On the oldest one each combination runs under a load (`invariants::COMBINED`
/// and the tests of each policy).
pub const NEWER: &[Test] =
    &[Test { name: "policies::pairs_are_accepted", run: pairs_are_accepted }];

/// What `make vm-kernels` loads beside these.
pub const ALL: &[Test] =
    &[Test { name: "policies::all_combinations_are_accepted", run: all_combinations_are_accepted }];

/// So many instructions may be verified of a program, each once for each path that reaches it: loading
/// takes its time for this.
const MAX_VERIFIED: u64 = 60_000;

/// All options of the papers' policies are on, which demands most of the verifier.
fn the_papers_are_accepted() {
    for mode in ["--ias-mode=rounds", "--ias-mode=paper"] {
        let everything = FLAGS.iter().map(|flag| match *flag {
            "--parts=home,cost" => "--parts=home,cost,active,turns,similar",
            other => other,
        });
        let mut load = Command::new(EVENKEEL);
        load.args(["sched", "--load-only", mode]).args(everything).env("EVENKEEL_LOG", "debug");
        let output = output(hasten(&mut load).stdin(Stdio::null()));
        let log = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{log}");
        let verified: Vec<u64> = log
            .lines()
            .filter_map(|line| line.strip_suffix(" instructions verified"))
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        let most = verified.iter().max().expect("no program is named");
        assert!(*most <= MAX_VERIFIED, "{mode}: {most} instructions of a program:\n{log}");
    }
}

/// Each pair of answers to two questions is in one of these, in the plain keel, or in the papers'.
fn pairs_are_accepted() {
    load(0b011, &[]);
    load(0b101, &[]);
    load(0b110, &["--compact"]);
    assert_eq!(state(), "disabled");
}

fn all_combinations_are_accepted() {
    for choice in 0..1 << ANSWERS.len() {
        load(choice, &[]);
        if answers(choice).contains(&"ias") {
            load(choice, &["--ias-mode", "paper"]);
        }
    }
    said(&["sched", "--load-only", "--gate", "zone", "--compact"]);
    assert_eq!(state(), "disabled");
}

/// The flags for one answer to each question: the paper's where the question's bit is set.
fn answers(choice: usize) -> Vec<&'static str> {
    let each = ANSWERS.iter().enumerate();
    each.flat_map(|(question, (flag, answers))| [*flag, answers[choice >> question & 1]]).collect()
}

fn load(choice: usize, flags: &[&str]) {
    said(&[&["sched", "--load-only"][..], &answers(choice), flags].concat());
}
