//! Each mutation of the keel still fits the source that it changes. One that does not was forgotten when
//! that source changed, and `make vm-mutate` stops there.

use crate::project::{File, files};
use crate::report::{Finding, Rule, check};

/// Where the mutations are: patches with some words in front.
const MUTATIONS: &str = "tests/vm/mutations/";

/// The texts that a patch replaces, each with the file that it must be in.
fn replaced(patch: &str) -> Vec<(String, String)> {
    let mut texts: Vec<(String, String)> = Vec::new();
    let mut path = String::new();
    for line in patch.lines() {
        if let Some(source) = line.strip_prefix("--- a/") {
            path = source.to_owned();
        } else if line.starts_with("@@ ") {
            texts.push((path.clone(), String::new()));
        } else if let Some((_, text)) = texts.last_mut()
            && let Some(old) = line.strip_prefix([' ', '-'])
        {
            text.push_str(old);
            text.push('\n');
        }
    }
    texts
}

fn stale(patch: &File, sources: &[File]) -> Option<Finding> {
    let texts = replaced(&patch.text);
    if texts.is_empty() {
        return Some(Finding::new(&patch.path, 0, "changes nothing"));
    }
    let fits = |(path, old): &(String, String)| {
        sources.iter().any(|source| source.path == *path && source.text.contains(old))
    };
    let (path, _) = texts.iter().find(|text| !fits(text))?;
    Some(Finding::new(&patch.path, 0, format!("does not fit {path} any more")))
}

#[test]
fn each_mutation_fits_its_source() {
    let patches: Vec<&File> =
        files().iter().filter(|file| file.path.starts_with(MUTATIONS)).collect();
    assert!(!patches.is_empty());
    let findings: Vec<_> = patches.iter().filter_map(|patch| stale(patch, files())).collect();
    check(Rule::Mutation, &findings);
}

#[test]
fn a_mutation_of_an_older_source_is_found() {
    let patch = "Words.\n--- a/a.h\n+++ b/a.h\n@@ -1,2 +1,1 @@\n one();\n-two();\n";
    let patch = File::new("tests/vm/mutations/a.patch", patch);
    let of = |text: &str| stale(&patch, &[File::new("a.h", text)]).map(|finding| finding.what);
    assert_eq!(of("zero();\none();\ntwo();\n"), None);
    let stale = Some("does not fit a.h any more".to_owned());
    assert_eq!(of("one();\nmore();\ntwo();\n"), stale);
}
