//! Every file is used: Rust by a target of cargo, C by an `#include` or by what compiles it, a page
//! or an image by a page that links or shows it, and any other file by one that names it, be it a
//! page.

use std::collections::BTreeSet;

use regex::Regex;

use crate::crates::{from_root, metadata};
use crate::links::target_of;
use crate::markdown::Page;
use crate::modules::Tree;
use crate::project::{self, File, Kind, files};
use crate::report::{Finding, Rule, check};

/// What its tool finds by its name, and what stands for itself.
const KNOWN: &[&str] = &[
    ".ci/run",
    ".gitignore",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "clippy.toml",
    "rustfmt.toml",
];

/// Folders, all files of which are read, and what reads them.
const READ_WHOLE: &[(&str, &str)] = &[
    ("packaging/deb/", "scripts/deb"),
    ("tests/vm/mutations/", "scripts/mutate-keel"),
    ("tests/fixtures/fuzz/", "tests/fuzz/target.rs"),
];

/// The files of Rust that a target of cargo leads to.
fn compiled() -> BTreeSet<String> {
    let read = |path: &str| project::file(path).map(|file| file.text.clone());
    let targets = metadata().packages.iter().flat_map(|package| &package.targets);
    let roots = targets.filter_map(|target| from_root(&target.src_path));
    roots
        .flat_map(|root| Tree::read(&root, &read).modules.into_values().map(|module| module.file))
        .collect()
}

/// What pages link and show, from the root.
fn linked(pages: &[&File]) -> BTreeSet<String> {
    pages
        .iter()
        .flat_map(|page| {
            let links = Page::read(&page.text).links.into_iter();
            links.filter_map(|link| target_of(&page.path, &link.target)?.0).collect::<Vec<_>>()
        })
        .collect()
}

/// The headers and sources of C that others include. A name is looked for beside the file that
/// includes it, and else in any folder that a compiler may be told.
fn included(sources: &[&File]) -> BTreeSet<String> {
    let pattern = Regex::new(r#"(?m)^\s*#\s*include\s*["<]([^">]+)[">]"#).unwrap();
    let has = |path: &String| sources.iter().any(|file| file.path == *path);
    let mut found = BTreeSet::new();
    for file in sources {
        for name in pattern.captures_iter(&file.text).map(|found| found[1].to_owned()) {
            match project::join(file.folder(), &name).filter(has) {
                Some(path) => {
                    found.insert(path);
                }
                None => {
                    let end = format!("/{name}");
                    let anywhere = sources.iter().filter(|file| file.path.ends_with(&end));
                    found.extend(anywhere.map(|file| file.path.clone()));
                }
            }
        }
    }
    found
}

/// Whether another file names this one: its name, or in quotes its name without what follows the
/// first dot.
fn is_named(file: &File, others: &[&File]) -> bool {
    let stem = file.name().split('.').next().unwrap_or_default();
    let name = regex::escape(file.name());
    let pattern = Regex::new(&format!(r#"(^|[^\w.-]){name}($|[^\w-])|"{}""#, regex::escape(stem)));
    let pattern = pattern.unwrap();
    others.iter().any(|other| other.path != file.path && pattern.is_match(&other.text))
}

fn is_read_whole(file: &File) -> bool {
    READ_WHOLE.iter().any(|(folder, reader)| {
        let reads = |reader: &File| reader.text.contains(folder.trim_start_matches("tests/"));
        file.path.starts_with(folder) && project::file(reader).is_some_and(reads)
    })
}

/// Why a file is of no use.
fn why_dead(
    file: &File,
    compiled: &BTreeSet<String>,
    linked: &BTreeSet<String>,
    included: &BTreeSet<String>,
    sources: &[&File],
    pages: &[&File],
) -> Option<&'static str> {
    if KNOWN.contains(&file.path.as_str()) || file.name() == "Cargo.toml" || is_read_whole(file) {
        return None;
    }
    let (is_used, why) = match file.kind {
        Kind::Rust => (compiled.contains(&file.path), "no target of cargo has this module"),
        Kind::Markdown => (linked.contains(&file.path), "no page links it"),
        Kind::Image => (linked.contains(&file.path), "no page shows it"),
        Kind::C => (
            included.contains(&file.path) || is_named(file, sources),
            "nothing includes or compiles it",
        ),
        _ => (is_named(file, sources) || is_named(file, pages), "nothing names it"),
    };
    (!is_used).then_some(why)
}

#[test]
fn every_file_is_used() {
    let of_kind = |kinds: &[Kind]| -> Vec<&File> {
        files().iter().filter(|file| kinds.contains(&file.kind)).collect()
    };
    let pages = of_kind(&[Kind::Markdown]);
    let linked = linked(&pages);
    let included = included(&of_kind(&[Kind::C]));
    // A page that names a source does not compile it.
    let sources: Vec<&File> = files()
        .iter()
        .filter(|file| !matches!(file.kind, Kind::Markdown | Kind::Image) && !file.is_foreign())
        .collect();
    let compiled = compiled();
    let findings: Vec<_> = files()
        .iter()
        .filter_map(|file| {
            let why = why_dead(file, &compiled, &linked, &included, &sources, &pages)?;
            Some(Finding::new(&file.path, 0, why))
        })
        .collect();
    check(Rule::DeadFile, &findings);
}

#[test]
fn each_kind_of_file_has_its_own_way_to_be_used() {
    let set = |path: &str| BTreeSet::from([path.to_owned()]);
    let why = |path: &str| {
        let page = File::new("docs/a.md", "`a.py` reads b.h.");
        let (compiled, linked, included) = (set("src/a.rs"), set("docs/a.md"), set("a.h"));
        why_dead(&File::new(path, ""), &compiled, &linked, &included, &[], &[&page])
    };
    for used in ["src/a.rs", "docs/a.md", "a.h", "a.py", "README.md"] {
        assert_eq!(why(used), None, "{used}");
    }
    assert_eq!(why("src/b.rs"), Some("no target of cargo has this module"));
    assert_eq!(why("docs/b.md"), Some("no page links it"));
    assert_eq!(why("docs/b.svg"), Some("no page shows it"));
    assert_eq!(why("b.h"), Some("nothing includes or compiles it"));
    assert_eq!(why("scripts/c"), Some("nothing names it"));
}

#[test]
fn the_targets_of_cargo_lead_to_their_files() {
    let compiled = compiled();
    for path in ["tests/tidy/dead_files.rs", "tests/common/support.rs", "tests/build.rs"] {
        assert!(compiled.contains(path), "{path}");
    }
}

#[test]
fn links_count_from_the_page_that_has_them() {
    let page = File::new("docs/a.md", "[b](../b.md#x) ![c](c.svg) [d](https://example.org/d.md)\n");
    assert_eq!(linked(&[&page]), BTreeSet::from(["b.md".to_owned(), "docs/c.svg".to_owned()]));
}

#[test]
fn an_include_means_the_file_beside_it_first() {
    let files = [
        ("a/x.c", "#include \"state.h\"\n#include <lib/far.h>\n# include \"../b/y.h\"\n"),
        ("a/state.h", ""),
        ("b/state.h", ""),
        ("b/y.h", ""),
        ("native/lib/far.h", ""),
    ]
    .map(|(path, text)| File::new(path, text));
    let found = included(&files.each_ref());
    let expected = ["a/state.h", "b/y.h", "native/lib/far.h"].map(str::to_owned);
    assert_eq!(found, BTreeSet::from(expected));
}

#[test]
fn a_file_is_named_as_a_whole_word_or_by_its_stem_in_quotes() {
    let named = |path: &str, text: &str| is_named(&File::new(path, ""), &[&File::new("x", text)]);
    assert!(named("scripts/peers", "run scripts/peers."));
    assert!(!named("scripts/peers", "my-peers, peers-of"));
    assert!(named("lab/bpf/noise.bpf.c", "build(\"noise\")"));
    assert!(!named("lab/bpf/noise.bpf.c", "make some noise"));
    assert!(named("a/ep.c", "programs/ep.c"));
    assert!(!named("a/ep.c", "step.c"));
}
