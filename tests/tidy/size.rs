//! How long lines and files may be.

use crate::markdown::Page;
use crate::project::{File, Kind, files};
use crate::report::{Finding, Rule, check};

const MAX_COLUMNS: usize = 105;
const MAX_LINES: usize = 600;

/// Lines that are too long, in Rust, C, shell, Python, the Makefile and in the prose of Markdown. Pages
/// that a command writes may have lines of any length; so may, in Markdown, tables, what stands in a
/// fence as a command printed it, and a link that stands alone.
fn long_lines(file: &File) -> Vec<Finding> {
    if file.kind == Kind::Other || file.kind == Kind::Image || file.is_generated() {
        return Vec::new();
    }
    let verbatim = match file.kind {
        Kind::Markdown => Page::read(&file.text).verbatim_lines(),
        _ => Default::default(),
    };
    let too_long = |line: &str| line.chars().count() > MAX_COLUMNS;
    let excepted = |number: usize, line: &str| {
        file.kind == Kind::Markdown && (verbatim.contains(&number) || is_lone_link(line))
    };
    file.lines()
        .filter(|(number, line)| too_long(line) && !excepted(*number, line))
        .map(|(number, line)| {
            let columns = line.chars().count();
            Finding::new(&file.path, number, format!("{columns} columns (at most {MAX_COLUMNS})"))
        })
        .collect()
}

/// `- [text](target)`, or an address.
fn is_lone_link(line: &str) -> bool {
    let line = line.trim().trim_start_matches(['-', '*', '!']).trim();
    let is_link = line.starts_with('[') && line.ends_with(')') && line.matches("](").count() == 1;
    is_link || !line.contains(' ')
}

fn long_file(file: &File) -> Option<Finding> {
    let lines = file.text.lines().count();
    let is_long = file.is_source() && lines > MAX_LINES;
    is_long.then(|| Finding::new(&file.path, 0, format!("{lines} lines (at most {MAX_LINES})")))
}

#[test]
fn no_line_is_too_long() {
    let findings: Vec<_> = files().iter().flat_map(long_lines).collect();
    check(Rule::LineLength, &findings);
}

#[test]
fn no_source_file_is_too_long() {
    let findings: Vec<_> = files().iter().filter_map(long_file).collect();
    check(Rule::FileLength, &findings);
}

#[test]
fn a_long_line_is_found_and_its_length_told() {
    let fits = "é".repeat(MAX_COLUMNS);
    let file = File::new("a.rs", &format!("{fits}\n{fits}x\n"));
    assert_eq!(long_lines(&file), [Finding::new("a.rs", 2, "106 columns (at most 105)")]);
    assert_eq!(long_lines(&File::new("a.py", &file.text)).len(), 1);
    assert!(long_lines(&File::new("a.toml", &file.text)).is_empty());
}

#[test]
fn in_markdown_only_prose_counts() {
    let long = "word ".repeat(30);
    let lines = |text: &str| long_lines(&File::new("a.md", text)).len();
    assert_eq!(lines(&long), 1);
    assert_eq!(lines(&format!("| a |\n|---|\n| {long} |\n")), 0);
    assert_eq!(lines(&format!("```\n{long}\n```\n")), 0);
    assert_eq!(lines(&format!("- [{long}](b.md)\n")), 0);
    assert_eq!(lines(&format!("- [{long}](b.md) and more\n")), 1);
    assert_eq!(lines(&format!("Written by `x`; do not edit.\n\n{long}\n")), 0);
}

#[test]
fn only_sources_are_held_to_a_number_of_lines() {
    let text = "\n".repeat(MAX_LINES + 1);
    assert!(long_file(&File::new("a.c", &text)).is_some());
    assert!(long_file(&File::new("a.c", &text[1..])).is_none());
    assert!(long_file(&File::new("a.md", &text)).is_none());
}
