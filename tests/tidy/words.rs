//! Words that are not used: the table at the end of docs/glossary.md, and words for people where tasks,
//! CPUs or programs are meant.

use regex::{Regex, RegexBuilder};

use crate::project::{File, Kind, file, files};
use crate::report::{Finding, Rule, check, is_open};

const GLOSSARY: &str = "docs/glossary.md";
const HEADING: &str = "## Words that are not used";
/// Its samples are such words.
const THIS_FILE: &str = "tests/tidy/words.rs";

/// At most one line of so many may have a word for people: some sentences are about users.
const LINES_FOR_A_PERSON: usize = 1000;

/// Each is counted by itself.
const ROOMS: &[&[&str]] = &[
    &["policy/", "bpf/"],
    &["product/"],
    &["lab/"],
    &["tests/"],
    &["scripts/", "packaging/", "include/", ".ci/"],
    &["docs/", "README.md", "CONTRIBUTING.md"],
];

/// A word or phrase of the glossary, and what finds it.
struct Never {
    phrase: String,
    pattern: Regex,
}

/// The first column of the table: words apart by commas, each perhaps with a note in parentheses that
/// says where it is not used.
fn parse_table(glossary: &str) -> Result<Vec<Never>, String> {
    let (_, section) = glossary.split_once(HEADING).ok_or("the section is missing")?;
    let rows = section.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let cells = rows.map(str::trim).filter(|cell| *cell != "never" && !cell.starts_with("--"));
    let words: Result<Vec<_>, _> = cells.flat_map(|cell| cell.split(',')).map(never).collect();
    words.and_then(
        |words| if words.is_empty() { Err("the table is empty".into()) } else { Ok(words) },
    )
}

fn never(cell: &str) -> Result<Never, String> {
    let (phrase, note) = match cell.trim().split_once(" (") {
        Some((phrase, note)) => (phrase, note.trim_end_matches(')')),
        None => (cell.trim(), ""),
    };
    let phrase_in_regex = regex::escape(phrase).replace(' ', r"\s+");
    let pattern = match note {
        "" => format!(r"\b{phrase_in_regex}\b"),
        "before a gain" => format!(r"\b{phrase_in_regex}\s+[\d.]+\s?(x\b|times\s+as\s+fast)"),
        // With what is thrown out in between, too.
        "a scheduler" => {
            let (verb, particle) = phrase.split_once(' ').unwrap_or((phrase, ""));
            let verb =
                verb.strip_suffix("ow").map_or(verb.into(), |stem| format!("{stem}[eo]wn?s?"));
            format!(r"\b{verb}\s+(\S+\s+){{0,3}}{particle}\b")
        }
        note => return Err(format!("the note ({note}) is unknown: teach it to {THIS_FILE}")),
    };
    let pattern = RegexBuilder::new(&pattern).case_insensitive(true).build();
    Ok(Never { phrase: phrase.into(), pattern: pattern.map_err(|error| error.to_string())? })
}

/// A line without the user `nobody` where code names it.
fn without_user_nobody(line: &str) -> String {
    ["\"nobody\"", "'nobody'", "`nobody`", "NOBODY", "nobody:"]
        .iter()
        .fold(line.to_owned(), |line, name| line.replace(name, ""))
}

/// Whether the language of a file is ours to hold. A patch quotes a source, which is held itself.
fn is_held(file: &File) -> bool {
    file.kind != Kind::Image
        && !file.path.ends_with(".patch")
        && !file.is_foreign()
        && !file.is_generated()
        && file.path != THIS_FILE
}

/// The lines of a file that are looked at: of the glossary those before its last section.
fn lines_of(file: &File) -> impl Iterator<Item = (usize, String)> {
    let is_glossary = file.path == GLOSSARY;
    file.lines()
        .take_while(move |(_, line)| !(is_glossary && *line == HEADING))
        .map(|(number, line)| (number, without_user_nobody(line)))
}

fn never_words(file: &File, never: &[Never]) -> Vec<Finding> {
    lines_of(file)
        .flat_map(|(number, line)| {
            never
                .iter()
                .filter(|never| never.pattern.is_match(&line))
                .map(|never| Finding::new(&file.path, number, format!("\"{}\"", never.phrase)))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Lines with a word for people.
fn person_words(file: &File) -> Vec<Finding> {
    let pattern = RegexBuilder::new(r"\b(who|whom|whose|whoever|somebody|nobody)\b")
        .case_insensitive(true)
        .build()
        .unwrap();
    lines_of(file)
        .filter_map(|(number, line)| {
            let word = pattern.find(&line)?.as_str().to_owned();
            Some(Finding::new(&file.path, number, format!("\"{word}\"")))
        })
        .collect()
}

/// Whether so many lines with such a word are too many for a room of so many lines.
fn is_over_quota(found: usize, lines: usize) -> bool {
    found * LINES_FOR_A_PERSON > lines
}

/// What a room has too much: all its findings where these are more than its quota, and none else. Paths
/// that are open report in any case and count for nothing.
fn over_quota(room: &[&str], files: &[&File]) -> Vec<Finding> {
    let in_room = |file: &&&File| room.iter().any(|folder| file.path.starts_with(folder));
    let (open, held): (Vec<&File>, Vec<&File>) = files
        .iter()
        .filter(in_room)
        .copied()
        .partition(|file| is_open(Rule::PersonWord, &file.path));
    let mut findings: Vec<_> = open.into_iter().flat_map(person_words).collect();
    let lines: usize = held.iter().map(|file| file.text.lines().count()).sum();
    let found: Vec<_> = held.into_iter().flat_map(person_words).collect();
    if is_over_quota(found.len(), lines) {
        findings.extend(found);
    }
    findings
}

#[test]
fn words_that_the_glossary_forbids_are_not_used() {
    let never = parse_table(&file(GLOSSARY).unwrap().text).unwrap();
    let held = files().iter().filter(|file| is_held(file));
    let findings: Vec<_> = held.flat_map(|file| never_words(file, &never)).collect();
    check(Rule::NeverWord, &findings);
}

#[test]
fn tasks_and_cpus_are_not_called_as_people_are() {
    let is_counted = |file: &&File| file.is_source() || file.kind == Kind::Markdown;
    let texts: Vec<&File> =
        files().iter().filter(|file| is_counted(file) && is_held(file)).collect();
    let findings: Vec<_> = ROOMS.iter().flat_map(|room| over_quota(room, &texts)).collect();
    check(Rule::PersonWord, &findings);
}

#[cfg(test)]
const SAMPLE: &str = "# G\n\n## Words that are not used\n\n| never | but |\n|---|---|\n\
    | someone, a matter of life | liveness |\n| up to (before a gain) | the figure |\n\
    | throw out (a scheduler) | ends |\n";

#[test]
fn the_table_is_read_with_its_notes() {
    let never = parse_table(SAMPLE).unwrap();
    let phrases: Vec<_> = never.iter().map(|never| never.phrase.as_str()).collect();
    assert_eq!(phrases, ["someone", "a matter of life", "up to", "throw out"]);
    let found = |text: &str| never_words(&File::new("a.rs", text), &never).len();
    assert_eq!(found("Someone waits.\nsomeone_else()\nIt is a  matter of life.\n"), 2);
    assert_eq!(found("up to 1.34x the pace\nup to 64 CPUs\nup to 50 % of it\n"), 1);
    assert_eq!(found("the kernel throws the scheduler out\nthrow out\nthrew it away\n"), 2);
}

#[test]
fn a_glossary_that_cannot_be_understood_is_an_error() {
    assert!(parse_table("# G\n").is_err());
    assert!(parse_table(HEADING).is_err());
    assert!(parse_table(&SAMPLE.replace("a gain", "a pause")).is_err());
}

#[test]
fn the_glossary_may_name_what_it_forbids() {
    let never = parse_table(SAMPLE).unwrap();
    assert!(never_words(&File::new(GLOSSARY, SAMPLE), &never).is_empty());
    assert_eq!(never_words(&File::new(GLOSSARY, &format!("someone\n{SAMPLE}")), &never).len(), 1);
}

#[test]
fn words_for_people_are_found_but_not_the_user_nobody() {
    let lines = |text: &str| -> Vec<usize> {
        person_words(&File::new("a.rs", text)).iter().map(|finding| finding.line).collect()
    };
    assert_eq!(lines("// Who runs\nlet who_runs = 1;\n// nobody's turn\n"), [1, 3]);
    assert!(lines("user(\"nobody\");\nconst NOBODY: u32 = 65534;\n// as `nobody`\n").is_empty());
}

#[test]
fn one_line_of_a_thousand_may_be_about_people() {
    assert!(!is_over_quota(0, 0) && !is_over_quota(1, 1000) && !is_over_quota(2, 2500));
    assert!(is_over_quota(1, 999) && is_over_quota(3, 2999));
    let short = File::new("product/a.rs", "// whose\n");
    let long = File::new("product/b.rs", &"\n".repeat(1000));
    assert_eq!(over_quota(&["product/"], &[&short]).len(), 1);
    assert_eq!(over_quota(&["product/"], &[&short, &long]).len(), 0);
    assert_eq!(over_quota(&["policy/", "bpf/"], &[&short]).len(), 0);
    let page = File::new("README.md", "Programs whose threads wait.\n");
    let rooms = ROOMS.iter().filter(|room| !over_quota(room, &[&page]).is_empty());
    assert_eq!(rooms.count(), 1);
}
