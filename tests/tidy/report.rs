//! How a rule reports: what breaks it and is not open fails, and so does what is open without need.

use std::collections::BTreeSet;

use crate::open::{OPEN, Open};

/// The rules, each checked by one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    LineLength,
    FileLength,
    NeverWord,
    PersonWord,
    DeadFile,
    Link,
    CommandLine,
    Figure,
    Dependency,
    FileCircle,
    Generated,
    Mutation,
    DecidedIn,
}

impl Rule {
    /// What to do about a finding, in one line.
    fn remedy(self) -> &'static str {
        match self {
            Self::LineLength => "break the line, or say it in fewer words",
            Self::FileLength => "split the file by what it holds",
            Self::NeverWord => "say it with the word that docs/glossary.md gives",
            Self::PersonWord => "name the task, the CPU, the program, the user",
            Self::DeadFile => "refer to the file from where it is used, or remove it",
            Self::Link => "correct the path or the anchor",
            Self::CommandLine => "write a command line that the executable takes",
            Self::Figure => {
                "link the results page, name the command that measured it, or, if it is a constant or a \
                 setting, list it in tests/tidy/figures.rs"
            }
            Self::Dependency => "move the shared item down, or invert the dependency",
            Self::Generated => "write the page anew by the command in its head; do not edit it",
            Self::Mutation => "make the patch anew from the source as it is",
            Self::DecidedIn => "name the function and the file where it is decided now",
            Self::FileCircle => "move what ties the files to a file of its own below both",
        }
    }
}

/// Something that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: String,
    /// From 1; 0 for a file as a whole.
    pub line: usize,
    pub what: String,
}

impl Finding {
    pub fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into() }
    }
}

/// Fails with all that is wrong, each with its place and the remedy.
pub fn check(rule: Rule, findings: &[Finding]) {
    let lines = judge(rule, findings, OPEN);
    assert!(lines.is_empty(), "{rule:?}: {} to mend\n{}\n", lines.len(), lines.join("\n"));
}

/// Whether a path is still open for a rule.
pub fn is_open(rule: Rule, path: &str) -> bool {
    entry_of(rule, path, OPEN).is_some()
}

/// What is to be reported: findings that are not open, and entries without a finding.
fn judge(rule: Rule, findings: &[Finding], open: &[Open]) -> Vec<String> {
    let mut used = BTreeSet::new();
    let mut lines = Vec::new();
    for Finding { path, line, what } in findings {
        match entry_of(rule, path, open) {
            Some(index) => {
                used.insert(index);
            }
            None => {
                // Details are on lines of their own.
                let (what, details) = what.split_once('\n').unwrap_or((what, ""));
                let remedy = rule.remedy();
                lines.push(format!("{path}:{line}: {what}: {remedy}\n{details}").trim_end().into());
            }
        }
    }
    let needless = open
        .iter()
        .enumerate()
        .filter(|(index, entry)| entry.rules.contains(&rule) && !used.contains(index));
    lines.extend(needless.map(|(_, entry)| {
        let path = entry.path;
        format!("tests/tidy/open.rs: {path} keeps {rule:?} now: strike it from the list")
    }));
    lines
}

/// The entry with the longest path that covers this one.
fn entry_of(rule: Rule, path: &str, open: &[Open]) -> Option<usize> {
    let covers =
        |(_, entry): &(usize, &Open)| entry.rules.contains(&rule) && path.starts_with(entry.path);
    let best = open.iter().enumerate().filter(covers).max_by_key(|(_, entry)| entry.path.len());
    best.map(|(index, _)| index)
}

#[cfg(test)]
const SAMPLE: &[Open] = &[
    Open { path: "lab/", rules: &[Rule::Link, Rule::LineLength], part: "1" },
    Open { path: "lab/bench/src/ias", rules: &[Rule::Link], part: "3" },
];

#[test]
fn a_finding_is_reported_unless_its_path_is_open_for_the_rule() {
    let findings = ["lab/a.rs", "lab/bench/src/ias.rs", "product/a.rs"]
        .map(|path| Finding::new(path, 7, "a gap"));
    let lines = judge(Rule::Link, &findings, SAMPLE);
    assert_eq!(lines, ["product/a.rs:7: a gap: correct the path or the anchor"]);
    assert_eq!(judge(Rule::DeadFile, &findings, SAMPLE).len(), 3);
}

#[test]
fn an_entry_without_a_finding_is_to_be_struck() {
    let findings = [Finding::new("lab/bench/src/ias/mod.rs", 1, "a gap")];
    let lines = judge(Rule::Link, &findings, SAMPLE);
    assert_eq!(lines, ["tests/tidy/open.rs: lab/ keeps Link now: strike it from the list"]);
    assert_eq!(judge(Rule::LineLength, &[], SAMPLE).len(), 1);
    assert!(judge(Rule::DeadFile, &[], SAMPLE).is_empty());
}
