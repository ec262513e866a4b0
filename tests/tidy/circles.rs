//! No two files of a product crate need each other, directly or through others: a reader can begin with
//! one of them. What ties files is found by names (`modules.rs`). A module that only hands on what its
//! child has (`pub use child::Name`) does not need the child; tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use crate::crates::{from_root, metadata};
use crate::modules::Tree;
use crate::project;
use crate::report::{Finding, Rule, check};

/// From one file to another: the first line that says so, and the path there.
type Ties = BTreeMap<(String, String), (usize, String)>;

fn ties(tree: &Tree) -> Ties {
    let mut ties = Ties::new();
    for (path, module) in tree.modules.iter().filter(|(_, module)| !module.is_test) {
        for (reference, target) in tree.references(path) {
            if target.file != module.file {
                let tie = (reference.line, reference.path.join("::"));
                ties.entry((module.file.clone(), target.file.clone())).or_insert(tie);
            }
        }
    }
    ties
}

/// Files that need each other, each set once.
fn circles(ties: &Ties) -> Vec<BTreeSet<&str>> {
    let edges = ties.keys().map(|(from, to)| (from.as_str(), to.as_str()));
    let graph: DiGraphMap<&str, ()> = DiGraphMap::from_edges(edges);
    tarjan_scc(&graph)
        .into_iter()
        .filter(|files| files.len() > 1)
        .map(BTreeSet::from_iter)
        .collect()
}

/// A circle, reported at its first file, with all that ties its files.
fn describe(circle: &BTreeSet<&str>, ties: &Ties) -> Finding {
    let inside: Vec<_> = ties
        .iter()
        .filter(|((from, to), _)| circle.contains(from.as_str()) && circle.contains(to.as_str()))
        .collect();
    let lines: Vec<String> = inside
        .iter()
        .map(|((from, to), (line, path))| format!("\n    {from}:{line} needs {to} ({path})"))
        .collect();
    let first = circle.first().copied().unwrap_or_default();
    let line = inside.first().map_or(0, |(_, (line, _))| *line);
    let what = format!("{} files need each other{}", circle.len(), lines.concat());
    Finding::new(first, line, what)
}

fn circles_of_target(root: &str) -> Vec<Finding> {
    let read = |path: &str| project::file(path).map(|file| file.text.clone());
    let ties = ties(&Tree::read(root, &read));
    circles(&ties).iter().map(|circle| describe(circle, &ties)).collect()
}

#[test]
fn no_files_of_a_product_crate_need_each_other() {
    let roots: BTreeSet<String> = metadata()
        .packages
        .iter()
        .flat_map(|package| &package.targets)
        .filter(|target| target.is_lib() || target.is_bin())
        .filter_map(|target| from_root(&target.src_path))
        .filter(|root| root.starts_with("product/"))
        .collect();
    let findings: Vec<_> = roots.iter().flat_map(|root| circles_of_target(root)).collect();
    check(Rule::FileCircle, &findings);
}

#[test]
fn a_circle_is_found_with_what_ties_it() {
    let tree = crate::modules::tree_of(&[
        ("src/lib.rs", "mod a; mod b; mod c; mod d; fn f() { d::D; }"),
        ("src/a.rs", "use crate::b::B;\npub struct A;"),
        ("src/b.rs", "use crate::c::C; pub struct B;"),
        ("src/c.rs", "\n\nuse super::a::A; pub struct C;"),
        ("src/d.rs", "use crate::a::A; pub struct D;"),
    ]);
    let ties = ties(&tree);
    let circles = circles(&ties);
    assert_eq!(circles, [BTreeSet::from(["src/a.rs", "src/b.rs", "src/c.rs"])]);
    let finding = describe(&circles[0], &ties);
    assert_eq!((finding.path.as_str(), finding.line), ("src/a.rs", 1));
    assert!(finding.what.contains("src/c.rs:3 needs src/a.rs (super::a::A)"), "{}", finding.what);
    assert!(!finding.what.contains("src/d.rs"));
}

#[test]
fn files_in_one_direction_are_no_circle() {
    let tree = crate::modules::tree_of(&[
        ("src/lib.rs", "mod a; mod b; pub use a::A;"),
        ("src/a.rs", "use crate::b::B; pub struct A; #[cfg(test)] mod tests { use super::A; }"),
        ("src/b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
    ]);
    assert!(circles(&ties(&tree)).is_empty());
}
