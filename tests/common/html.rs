//! What holds for every page that a command writes for a browser: it is valid HTML, and loads nothing.

use std::path::Path;
use std::process::Command;

use regex::Regex;

/// The text of the page. Fails where HTML Tidy has anything to say of it, or where it would load a file.
pub fn checked_page(path: &Path) -> String {
    let mut tidy = Command::new("tidy");
    tidy.args(["-e", "-q", "--warn-proprietary-attributes", "no"]).arg(path);
    let said = tidy.output().unwrap_or_else(|why| panic!("tidy: {why}: run scripts/setup"));
    let said = [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert_eq!(said.concat(), "", "{} is not valid HTML", path.display());
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(foreign_files(&text), Vec::<&str>::new(), "{}", path.display());
    text
}

/// What of a page would be loaded from elsewhere. A link that a reader may follow is not.
fn foreign_files(page: &str) -> Vec<&str> {
    let loaded = Regex::new(
        r#"(?i)<(link|script|iframe|object|embed|img|image|use|base)\b[^>]*>|\bsrc\s*=|@import|url\("#,
    );
    loaded.unwrap().find_iter(page).map(|found| found.as_str()).collect()
}

#[test]
fn what_a_page_would_load_is_found() {
    for page in [
        "<link rel=stylesheet href=\"https://example.org/a.css\">",
        "<SCRIPT>1</SCRIPT>",
        "<video src=\"x\">",
        "<style>@import 'x'</style>",
        "<p style=\"background: url(x)\">",
        "<use href=\"x.svg\"/>",
    ] {
        assert_eq!(foreign_files(page).len(), 1, "{page}");
    }
    let page = "<a href=\"https://example.org\">the link</a> <code>&lt;script&gt;</code>";
    assert!(foreign_files(page).is_empty());
}
