//! Command lines in the docs are taken by the executables, `make` has their targets, and `cargo` the
//! packages and test programs that they name.
//!
//! The test looks at code that begins with one of [`NAMES`]: within a line, and in blocks each line that
//! begins so (after `$ ` or `sudo `), with the indented ones that follow it. What stands for something
//! else:
//!
//! - a word in capitals (`PID`, `NAME=VALUE`, also `$pid`) is a placeholder: any value that is taken;
//! - `...` is left out, and so are brackets: what is optional is given;
//! - of `a|b` each is tried;
//! - from `|`, `&&`, `;`, `&` or a redirection on, the rest is the shell's.
//!
//! Code within a line may be the beginning of a command (`evenkeel run`); in a block it is complete.

use std::collections::BTreeSet;

use cargo_metadata::Package;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use regex::Regex;

use crate::crates::metadata;
use crate::markdown::{Code, Page};
use crate::project::{self, File, Kind, files};
use crate::report::{Finding, Rule, check};

/// The commands of the project; those of the papers stand for a part of `evenkeel`, as its own
/// `main` has it. Where a text is about the laboratory, its commands stand without its name.
const NAMES: &[(&str, &[&str])] = &[
    ("evenkeel", &["evenkeel"]),
    ("evenkeel-lab", &["evenkeel-lab"]),
    ("make", &["make"]),
    ("cargo", &["cargo"]),
    ("chcb", &["evenkeel", "run"]),
    ("capability-balancer", &["evenkeel", "daemon"]),
    ("set_ias_agg", &["evenkeel", "ias", "set-agg"]),
    ("set_ias_alloc", &["evenkeel", "ias", "alloc"]),
    ("sim", &["evenkeel-lab", "sim"]),
    ("bench", &["evenkeel-lab", "bench"]),
    ("noise", &["evenkeel-lab", "noise"]),
    ("repro", &["evenkeel-lab", "repro"]),
];

/// What a placeholder may stand for, tried in this order, after what the error message offers.
const STAND_INS: &[&str] = &["1", "a", "1ms", "0-1", "pool"];

/// A command line of a page, in words.
#[derive(Debug, PartialEq, Eq)]
struct CommandLine {
    line: usize,
    words: Vec<String>,
    may_be_a_beginning: bool,
}

/// The command lines in a piece of code.
fn command_lines(code: &Code) -> Vec<CommandLine> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (index, text) in code.text.lines().enumerate() {
        let continues = code.is_block && text.starts_with(char::is_whitespace);
        match lines.last_mut().filter(|_| continues) {
            Some((_, before)) => {
                *before = format!("{} {}", before.trim_end_matches('\\'), text.trim());
            }
            None => lines.push((code.line + index, text.to_owned())),
        }
    }
    let command_line = |(line, text): (usize, String)| {
        let text = text.trim_start_matches("$ ").trim_start_matches("sudo ");
        let words = words_of_shell(text);
        let is_ours =
            words.first().is_some_and(|first| NAMES.iter().any(|(name, _)| first == name));
        // A name alone is no command line.
        (is_ours && words.len() > 1).then_some(CommandLine {
            line,
            words,
            may_be_a_beginning: !code.is_block,
        })
    };
    lines.into_iter().filter_map(command_line).collect()
}

/// The words of a line of shell up to where another command begins; comments are left out.
fn words_of_shell(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for word in shlex::split(text).unwrap_or_default() {
        let is_end = matches!(word.as_str(), "|" | "||" | "&&" | "&" | ";")
            || word.trim_start_matches(['1', '2']).starts_with(['>', '<']);
        if is_end {
            break;
        }
        let ends = word.ends_with(';');
        words.push(word.trim_end_matches(';').to_owned());
        if ends {
            break;
        }
    }
    words
}

/// Without brackets and dots, and each alternative by itself.
fn variants(words: &[String]) -> Vec<Vec<String>> {
    let plain: Vec<Vec<String>> = words
        .iter()
        .map(|word| word.trim_end_matches("...").trim_matches(['[', ']']).trim_end_matches("..."))
        .filter(|word| !word.is_empty())
        .map(|word| word.split('|').map(str::to_owned).collect())
        .collect();
    let first: Vec<String> = plain.iter().map(|choices| choices[0].clone()).collect();
    let mut all = vec![first.clone()];
    for (index, choices) in plain.iter().enumerate() {
        for choice in &choices[1..] {
            let mut variant = first.clone();
            variant[index].clone_from(choice);
            all.push(variant);
        }
    }
    all
}

/// A word, where what stands for something else has been replaced.
fn fill(word: &str, stand_in: &str) -> String {
    let placeholder = Regex::new(r"\$\w+|\b[A-Z][A-Z0-9_]*\b").unwrap();
    placeholder.replace_all(word, regex::NoExpand(stand_in)).into_owned()
}

/// Why a command line is refused.
fn refusal(command: &clap::Command, words: &[String], may_be_a_beginning: bool) -> Option<String> {
    let mut filled: Vec<String> = words.iter().map(|word| fill(word, STAND_INS[0])).collect();
    let mut tries = vec![0; words.len()];
    loop {
        let error = command.clone().try_get_matches_from(&filled).err()?;
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return None,
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                if may_be_a_beginning =>
            {
                return None;
            }
            _ => {}
        }
        let why = || error.to_string().lines().next().unwrap_or_default().to_owned();
        let Some(ContextValue::String(refused)) = error.get(ContextKind::InvalidValue) else {
            return Some(why());
        };
        // The refused value is a placeholder's: another one is tried.
        let is_of = |index: &usize| {
            filled[*index] != words[*index] && filled[*index].contains(refused.as_str())
        };
        let Some(index) = (0..words.len()).find(is_of) else { return Some(why()) };
        let offered = match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(values)) => values.clone(),
            _ => Vec::new(),
        };
        tries[index] += 1;
        let candidates = offered.iter().map(String::as_str).chain(STAND_INS[1..].iter().copied());
        let Some(stand_in) = candidates.into_iter().nth(tries[index] - 1) else {
            return Some(why());
        };
        filled[index] = fill(&words[index], stand_in);
    }
}

/// Targets and variables of a Makefile.
struct Makefile {
    targets: BTreeSet<String>,
    /// Targets that name no file.
    phony: BTreeSet<String>,
    variables: BTreeSet<String>,
}

impl Makefile {
    fn read(text: &str) -> Self {
        let all = |pattern: &str| -> BTreeSet<String> {
            let pattern = Regex::new(pattern).unwrap();
            pattern.captures_iter(text).map(|found| found[1].to_owned()).collect()
        };
        let text = text.replace("\\\n", " ");
        let phony = text.lines().filter_map(|line| line.strip_prefix(".PHONY:"));
        Self {
            targets: all(r"(?m)^([a-z][\w-]*):(?:[^=]|$)"),
            phony: phony.flat_map(str::split_whitespace).map(str::to_owned).collect(),
            variables: all(r"\$\(([A-Z_]+)\)"),
        }
    }

    fn refusal(&self, words: &[String]) -> Option<String> {
        words.iter().filter(|word| !word.starts_with('-')).find_map(|word| {
            match word.split_once('=') {
                Some((name, _)) => (!self.variables.contains(name))
                    .then(|| format!("the Makefile has no variable {name}")),
                None => (!self.targets.contains(word))
                    .then(|| format!("the Makefile has no target {word}")),
            }
        })
    }
}

/// The word after each `option`.
fn values_of<'w>(words: &[&'w str], option: &str) -> Vec<&'w str> {
    words.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1]).collect()
}

/// A package (`-p`) or a test program (`--test`) that the workspace does not have. What follows `--` is
/// not cargo's.
fn cargo_refusal(words: &[String]) -> Option<String> {
    let words: Vec<&str> =
        words.iter().map(String::as_str).take_while(|word| *word != "--").collect();
    let packages = &metadata().packages;
    let named = values_of(&words, "-p");
    for name in &named {
        if !packages.iter().any(|package| package.name == *name) {
            return Some(format!("the workspace has no package {name}"));
        }
    }
    let is_asked =
        |package: &Package| named.is_empty() || named.iter().any(|name| package.name == *name);
    for test in values_of(&words, "--test") {
        let has = |package: &Package| {
            package.targets.iter().any(|target| target.is_test() && target.name == test)
        };
        if !packages.iter().any(|package| is_asked(package) && has(package)) {
            return Some(format!("no such package has a test program {test}"));
        }
    }
    None
}

/// Why a command line of the docs is refused, by the executable that it names.
fn why_refused(command_line: &CommandLine, makefile: &Makefile) -> Option<String> {
    let (_, path) = NAMES.iter().find(|(name, _)| *name == command_line.words[0])?;
    let is_beginning = command_line.may_be_a_beginning;
    variants(&command_line.words[1..]).into_iter().find_map(|rest| {
        let words: Vec<String> = path.iter().map(|word| (*word).into()).chain(rest).collect();
        match path[0] {
            "make" => makefile.refusal(&words[1..]),
            "cargo" => cargo_refusal(&words[1..]),
            "evenkeel" => refusal(&evenkeel::cli::Cli::command(), &words, is_beginning)
                .or_else(|| moved(&words)),
            _ => refusal(&evenkeel_lab::cli::Cli::command(), &words, is_beginning),
        }
    })
}

/// `evenkeel` takes commands of the laboratory only to say where they went.
fn moved(words: &[String]) -> Option<String> {
    let is_moved = ["sim", "bench", "repro"].contains(&words.get(1)?.as_str());
    is_moved.then(|| format!("`{}` is a command of evenkeel-lab", words[1]))
}

fn refused_commands(page: &File, makefile: &Makefile) -> Vec<Finding> {
    let codes = Page::read(&page.text).codes;
    let command_lines = codes.iter().flat_map(command_lines);
    command_lines
        .filter_map(|command_line| {
            let why = why_refused(&command_line, makefile)?;
            let what = format!("`{}`: {why}", command_line.words.join(" "));
            Some(Finding::new(&page.path, command_line.line, what))
        })
        .collect()
}

#[test]
fn commands_in_the_docs_are_taken() {
    let makefile = Makefile::read(&project::file("Makefile").unwrap().text);
    let pages = files().iter().filter(|file| file.kind == Kind::Markdown);
    let findings: Vec<_> = pages.flat_map(|page| refused_commands(page, &makefile)).collect();
    check(Rule::CommandLine, &findings);
}

/// A file of a target's name would keep that target from being made.
#[test]
fn each_target_of_the_makefile_is_phony() {
    let makefile = Makefile::read(&project::file("Makefile").unwrap().text);
    assert!(makefile.targets.contains("nightly"), "{:?}", makefile.targets);
    assert_eq!(makefile.targets, makefile.phony);
}

#[test]
fn each_part_of_nightly_has_its_row_in_hacking() {
    let makefile = project::file("Makefile").unwrap().text.replace("\\\n", " ");
    let nightly = makefile.lines().find_map(|line| line.strip_prefix("nightly:")).unwrap();
    let page = &project::file("docs/hacking.md").unwrap().text;
    for target in nightly.split_whitespace() {
        assert!(page.contains(&format!("\n| `make {target}` |")), "no row for make {target}");
    }
}

#[cfg(test)]
fn code(text: &str, is_block: bool) -> Code {
    Code { line: 10, text: text.into(), is_block }
}

/// Why code within a line, or a block, is refused.
#[cfg(test)]
fn why(text: &str, is_block: bool) -> Option<String> {
    let makefile = Makefile::read("PREFIX ?= /usr\nUNITS := a\ntest: native\n\techo $(PREFIX)\n");
    let lines = command_lines(&code(text, is_block));
    assert!(!lines.is_empty(), "{text} is no command line");
    lines.iter().find_map(|line| why_refused(line, &makefile))
}

#[test]
fn command_lines_are_found_with_their_lines() {
    let lines = |text: &str, is_block| {
        let lines = command_lines(&code(text, is_block));
        lines.iter().map(|line| (line.line, line.words.join(" "))).collect::<Vec<_>>()
    };
    let block = "$ sudo evenkeel doctor | less\nls\nmake test   # all\n\
                 evenkeel sched \\\n    --order ias\n";
    let expected = [(10, "evenkeel doctor"), (12, "make test"), (13, "evenkeel sched --order ias")];
    assert_eq!(lines(block, true), expected.map(|(line, words)| (line, words.to_owned())));
    assert_eq!(lines("evenkeel", false), []);
    assert_eq!(lines("cat evenkeel sched", false), []);
}

#[test]
fn a_command_that_the_executable_takes_is_good() {
    for good in [
        "evenkeel run -- ./app --its-own",
        "evenkeel join PID",
        "evenkeel join --name NAME",
        "evenkeel sched [--order fair|ias] [--gate always|zone]",
        "evenkeel ias agg $pid --bonus 3x; done",
        "chcb ./app",
        "capability-balancer --dry-run",
        "set_ias_alloc 0 1 2 3",
        "evenkeel-lab noise KIND",
        "bench programs --demo",
        "make test PREFIX=DIR",
        "cargo test --locked -p evenkeel-sim --test decisions",
        "cargo test --workspace --test tidy -- --test of-the-program",
    ] {
        assert_eq!(why(good, true), None, "{good}");
    }
}

#[test]
fn a_command_that_it_does_not_take_is_refused() {
    for bad in [
        "evenkeel jump",
        "evenkeel run --no-such-flag -- ./app",
        "evenkeel sched --order fair|none",
        "evenkeel join pid",
        "evenkeel bench keel",
        "evenkeel-lab run -- ./app",
        "bench levers",
        "set_ias_alloc --no-such-flag",
        "make no-such-target",
        "make test UNKNOWN=1",
        "cargo test -p evenkeel-none",
        "cargo test -p evenkeel-sim --test policy",
        "cargo test --workspace --test no_such_test",
    ] {
        assert!(why(bad, true).is_some(), "{bad}");
        assert!(why(bad, false).is_some(), "{bad}");
    }
}

#[test]
fn only_code_within_a_line_may_be_the_beginning_of_a_command() {
    assert_eq!(why("evenkeel run", false), None);
    assert!(why("evenkeel run", true).is_some());
    assert_eq!(why("evenkeel zone", false), None);
}
