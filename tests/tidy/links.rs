//! Links in Markdown: files exist, and anchors name a heading.

use crate::markdown::Page;
use crate::project::{self, File, Kind, files};
use crate::report::{Finding, Rule, check};

/// Where a link leads, from the root: path and anchor. Nothing for one that leaves the project by a
/// scheme.
pub fn target_of(page: &str, link: &str) -> Option<(Option<String>, Option<String>)> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = match link.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor.to_owned())),
        None => (link, None),
    };
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let target = match path {
        "" => Some(page.to_owned()),
        path if path.starts_with('/') => None,
        path => project::join(folder, path),
    };
    Some((target, anchor))
}

fn broken_links(page: &File) -> Vec<Finding> {
    let links = Page::read(&page.text).links;
    links
        .iter()
        .filter_map(|link| {
            let why = why_broken(&page.path, &link.target, &project::exists, &has_anchor)?;
            Some(Finding::new(&page.path, link.line, format!("({}) {why}", link.target)))
        })
        .collect()
}

/// Why a link does not lead anywhere.
fn why_broken(
    page: &str,
    link: &str,
    exists: &dyn Fn(&str) -> bool,
    has_anchor: &dyn Fn(&str, &str) -> bool,
) -> Option<&'static str> {
    let (path, anchor) = target_of(page, link)?;
    let Some(path) = path else { return Some("leads out of the project") };
    if !exists(&path) {
        return Some("does not exist");
    }
    let anchor = anchor?;
    (!has_anchor(&path, &anchor)).then_some("names no heading of that page")
}

/// A page has the anchors of its headings; any other file those of its lines (`#L10`).
fn has_anchor(path: &str, anchor: &str) -> bool {
    match project::file(path) {
        Some(file) if file.kind == Kind::Markdown => {
            Page::read(&file.text).anchors.contains(anchor)
        }
        Some(_) => anchor.strip_prefix('L').is_some_and(|line| line.parse::<u32>().is_ok()),
        None => false,
    }
}

#[test]
fn links_and_anchors_lead_somewhere() {
    let pages = files().iter().filter(|file| file.kind == Kind::Markdown && !file.is_foreign());
    let findings: Vec<_> = pages.flat_map(broken_links).collect();
    check(Rule::Link, &findings);
}

#[test]
fn a_link_is_broken_without_its_file_or_its_heading() {
    let exists = |path: &str| matches!(path, "docs/a.md" | "README.md" | "policy");
    let has_anchor = |path: &str, anchor: &str| path == "docs/a.md" && anchor == "one";
    let why = |link: &str| why_broken("docs/a.md", link, &exists, &has_anchor);
    for good in ["../README.md", "a.md#one", "#one", "../policy/", "https://example.org/x"] {
        assert_eq!(why(good), None, "{good}");
    }
    assert_eq!(why("b.md"), Some("does not exist"));
    assert_eq!(why("#two"), Some("names no heading of that page"));
    assert_eq!(why("../README.md#one"), Some("names no heading of that page"));
    assert_eq!(why("/etc/passwd"), Some("leads out of the project"));
    assert_eq!(why("../../x"), Some("leads out of the project"));
}
