//! Pages that a command writes are as it wrote them: the hash at their foot is that of their text.

use evenkeel_experiment::generated::{is_intact, sealed};

use crate::project::{File, Kind, files};
use crate::report::{Finding, Rule, check};

/// Where pages are generated.
const RESULTS: &str = "docs/results/";

fn edited(page: &File) -> Option<Finding> {
    let why = match is_intact(&page.text) {
        Some(true) => return None,
        Some(false) => "is not as its command wrote it",
        None if page.path.starts_with(RESULTS) || page.is_generated() => "has no hash at its foot",
        None => return None,
    };
    Some(Finding::new(&page.path, 0, why))
}

#[test]
fn no_generated_page_was_edited_by_hand() {
    let pages = files().iter().filter(|file| file.kind == Kind::Markdown && !file.is_foreign());
    let findings: Vec<_> = pages.filter_map(edited).collect();
    check(Rule::Generated, &findings);
}

#[test]
fn a_page_that_was_edited_or_has_no_hash_is_found() {
    let why = |path: &str, text: &str| edited(&File::new(path, text)).map(|finding| finding.what);
    let page = sealed("# Figures\n\nWritten by this command: do not edit.\n");
    assert_eq!(why("docs/results/a.md", &page), None);
    let changed = page.replace("# Figures", "# Better figures");
    assert_eq!(why("docs/a.md", &changed).as_deref(), Some("is not as its command wrote it"));
    for path in ["docs/results/a.md", "docs/a.md"] {
        let bare = "Written by this command: do not edit.\n";
        assert_eq!(why(path, bare).as_deref(), Some("has no hash at its foot"), "{path}");
    }
    assert_eq!(why("docs/a.md", "# A guide\n"), None);
}
