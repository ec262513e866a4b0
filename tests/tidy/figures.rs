//! Figures in the docs say where they come from.
//!
//! A figure is a number with `x`, `times`, `%`, `ns`, `us`, `ms` or `instructions` behind it, outside
//! code. The paragraph, the table or the item of a list in which it stands must link a page of
//! docs/results, or name a command of ours in code. Pages in docs/results are such pages. No figure
//! is what stands in an exponent or below a fraction (`2^-20 ns`), and the value of a setting right
//! beside its name in code (`--max-idle-wait` (10 ms)). Other constants and settings are listed
//! below.

use regex::Regex;

use crate::markdown::{Block, Page};
use crate::project::{File, Kind, files};
use crate::report::{Finding, Rule, check};

/// A figure that no command measures.
struct Constant {
    path: &'static str,
    figure: &'static str,
    /// A word of its paragraph, which tells it from others of the page.
    beside: &'static str,
    /// What it is.
    #[allow(dead_code)]
    reason: &'static str,
}

const fn constant(
    path: &'static str,
    figure: &'static str,
    beside: &'static str,
    reason: &'static str,
) -> Constant {
    Constant { path, figure, beside, reason }
}

const CONSTANTS: &[Constant] = &[
    constant("docs/architecture.md", "2 ms", "interrupt", "how long the cost is measured for"),
    constant(
        "docs/architecture.md",
        "50 ms",
        "Interval",
        "the shortest interval between two plans",
    ),
    constant("docs/architecture.md", "800 ms", "Interval", "MANY_INTERVALS of turns.rs"),
    constant("docs/architecture.md", "25 ms", "Interval", "MOST_SHARE of turns.rs"),
    constant("docs/guide.md", "10 %", "indirection", "HOT_PCT of spread.rs"),
    constant("docs/policies.md", "10 %", "buckets", "HOT_PCT of spread.rs"),
    constant("docs/guide.md", "1 %", "page", "what reading page-referenced bits may cost"),
    constant("docs/guide.md", "50 ms", "sign", "GRACE_NS of run.rs"),
    constant("docs/guide.md", "25 ms", "counted", "LENGTH_NS of first_window.rs"),
    constant("docs/guide.md", "5 ms", "more often", "SHORT_NS of first_window.rs"),
    constant("docs/guide.md", "4 %", "speeds", "SPEED_PER_MILLE of signs.rs"),
    constant("docs/guide.md", "10 %", "in two looks", "WAITED_PER_MILLE of signs.rs"),
    constant(
        "docs/guide.md",
        "40 %",
        "in two looks",
        "WAITED_LARGE and WAITED_OF_ONE_CPU_PER_MILLE of signs.rs",
    ),
    constant("docs/policies.md", "16 ms", "busy CPU", "BUSY_FACTOR of migrate.h"),
    constant("docs/policies.md", "100 ms", "quota", "USER_BONUS_NS of product/keel"),
    constant("docs/policies.md", "25 times", "quota", "USER_TIMES of product/keel"),
    constant("docs/policies.md", "30 %", "yes", "a limit of the gate's levels"),
    constant("docs/policies.md", "50 %", "yes", "a limit of the gate's levels"),
    constant("docs/policies.md", "80 %", "yes", "a limit of the gate's levels"),
    constant("docs/policies.md", "80 %", "score", "a limit of the gate's levels"),
    constant(
        "docs/policies.md",
        "8 ms",
        "gate",
        "how long a task runs before it is moved while it runs",
    ),
    constant("docs/simulator.md", "100 %", "memory", "a default of workloads"),
    constant("docs/simulator.md", "20 ms", "checkers", "a bound that the checkers know"),
];

/// What begins like this, in code, is a command that can be run again.
const COMMANDS: &[&str] = &["evenkeel ", "evenkeel-lab ", "make ", "cargo test ", "scripts/"];

/// Stands in a text where code was.
const CODE: char = '\u{fffc}';

/// The figures of a block with their lines.
fn figures(block: &Block) -> Vec<(usize, String)> {
    let units = r"x\b|times\b|%|ns\b|us\b|µs\b|ms\b|instructions\b";
    let pattern = Regex::new(&format!(r"\b\d[\d.,]*\s?({units})")).unwrap();
    let (mut text, mut starts) = (String::new(), Vec::new());
    for (line, piece) in &block.texts {
        starts.push((text.len(), *line));
        text.push_str(piece);
    }
    let line_at = |offset: usize| {
        let after = starts.partition_point(|(start, _)| *start <= offset);
        starts[after - 1].1
    };
    pattern
        .find_iter(&text)
        .filter(|found| !is_setting(&text[..found.start()], &text[found.end()..]))
        .map(|found| (line_at(found.start()), found.as_str().to_owned()))
        .collect()
}

/// Whether a figure belongs to a formula or to the name of a setting: by what stands before and
/// after it.
fn is_setting(before: &str, after: &str) -> bool {
    let beside = |c: char| c == ' ' || c == '(' || c == ')';
    before.ends_with('/')
        || before.ends_with("^-")
        || before.ends_with('(') && before.trim_end_matches(beside).ends_with(CODE)
        || after.starts_with(" (") && after.trim_start_matches(beside).starts_with(CODE)
}

fn has_source(block: &Block) -> bool {
    let is_result = |link: &String| link.contains("results/");
    let is_command = |code: &String| COMMANDS.iter().any(|command| code.starts_with(command));
    block.links.iter().any(is_result) || block.codes.iter().any(is_command)
}

/// Figures without a source; what is used of `constants` is marked.
fn bare_figures(page: &File, constants: &[Constant], used: &mut [bool]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for block in Page::read(&page.text).blocks.iter().filter(|block| !has_source(block)) {
        let mut found = figures(block);
        let text: String = block.texts.iter().map(|(_, text)| text.as_str()).collect();
        for (constant, used) in constants.iter().zip(&mut *used) {
            if constant.path == page.path && text.contains(constant.beside) {
                let before = found.len();
                found.retain(|(_, figure)| figure != constant.figure);
                *used |= found.len() < before;
            }
        }
        findings.extend(found.into_iter().map(|(line, figure)| {
            Finding::new(&page.path, line, format!("\"{figure}\" without its source"))
        }));
    }
    findings
}

fn is_prose(file: &File) -> bool {
    let is_doc = file.path.starts_with("docs/") && !file.path.starts_with("docs/results/");
    file.kind == Kind::Markdown && (file.path == "README.md" || is_doc) && !file.is_generated()
}

#[test]
fn no_figure_stands_without_its_source() {
    let mut used = vec![false; CONSTANTS.len()];
    let pages = files().iter().filter(|file| is_prose(file));
    let findings: Vec<_> =
        pages.flat_map(|page| bare_figures(page, CONSTANTS, &mut used)).collect();
    check(Rule::Figure, &findings);
    for (constant, used) in CONSTANTS.iter().zip(used) {
        let Constant { path, figure, beside, .. } = constant;
        assert!(
            used,
            "tests/tidy/figures.rs: {path} has no \"{figure}\" beside \"{beside}\" any more: strike it"
        );
    }
}

#[cfg(test)]
fn found(text: &str) -> Vec<(usize, String)> {
    let findings = bare_figures(&File::new("docs/a.md", text), &[], &mut []);
    findings.into_iter().map(|finding| (finding.line, finding.what)).collect()
}

#[test]
fn a_figure_needs_a_link_or_a_command_in_its_paragraph() {
    let bare = [(3, "\"1.3x\" without its source".to_owned())];
    assert_eq!(found("Run `make bench`.\n\nIt is 1.3x as fast.\n"), bare);
    assert!(found("It is 1.3x as fast ([figures](results/keel.md)).\n").is_empty());
    assert!(found("It is 1.3x as fast,\nby `evenkeel-lab bench keel`.\n").is_empty());
    assert_eq!(found("It is 1.3x as fast, by `cat`.\n").len(), 1);
    assert_eq!(found("It is 1.3x as fast ([more](guide.md)).\n").len(), 1);
}

#[test]
fn a_figure_is_a_number_with_a_unit() {
    let figures =
        found("Of 1,000 tasks 12 % waited 2.5 ms,\n300 ns, 40 us or 7000 instructions.\n");
    let lines: Vec<_> = figures.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [1, 1, 2, 2, 2]);
    assert_eq!(found("It ran 1.27\ntimes as fast, as it did three times.\n").len(), 1);
    assert!(found("On 2 CPUs of Linux 6.18, in 3 minutes: `5 ms`.\n").is_empty());
}

#[test]
fn a_setting_beside_its_name_and_a_formula_are_no_figures() {
    assert!(found("Longer than `--max-idle-wait` (10 ms), or 5 ms (`SLICE`).\n").is_empty());
    assert!(found("Work is kept in 2^-20 ns, of *c*/1024 ns.\n").is_empty());
    assert_eq!(found("With `--strict` it waits 10 ms, or (as seen) 12 ms.\n").len(), 2);
}

#[test]
fn a_constant_is_left_out_and_known_to_be_used() {
    let page = File::new("docs/a.md", "It waits 10 ms, and gains 20 %.\n");
    let constants = [
        constant("docs/a.md", "10 ms", "waits", "a setting"),
        constant("docs/a.md", "20 %", "sleeps", "a setting"),
    ];
    let mut used = [false, false];
    let findings = bare_figures(&page, &constants, &mut used);
    assert_eq!(findings, [Finding::new("docs/a.md", 1, "\"20 %\" without its source")]);
    assert_eq!(used, [true, false]);
}
