//! docs/policies.md names for each decision a file, and often the function or the constant that decides.
//! Such a name is in a file that its row links; in a row without files, in one that the text above the
//! table links. A file that was linked further up may be named without a link.
//!
//! Names are what stands alone in code: `order_pick`. Commands of evenkeel are none, nor, in a row
//! without files, words without an underscore: these are values of options.

use std::collections::BTreeMap;

use clap::CommandFactory;
use regex::Regex;

use crate::links::target_of;
use crate::project::{File, file};
use crate::report::{Finding, Rule, check};

const PAGE: &str = "docs/policies.md";
/// Where the tables of decisions end.
const END: &str = "# The policies and their knobs";

/// Names that are not where the page says. `read` gives the text of a file.
fn misplaced(
    page: &File,
    is_command: &dyn Fn(&str) -> bool,
    read: &dyn Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let link = Regex::new(r"\[[^\]]*\]\(([^)]+)\)").unwrap();
    let file_name = Regex::new(r"\b[a-z_]+(\.bpf)?\.(rs|h|c)\b").unwrap();
    let name = Regex::new(r"`([A-Za-z_]\w*)`").unwrap();
    let mut linked: BTreeMap<String, String> = BTreeMap::new();
    let (mut above, mut is_in_table) = (Vec::new(), false);
    let mut findings = Vec::new();
    for (number, line) in page.lines().take_while(|(_, line)| *line != END) {
        let targets = link.captures_iter(line).filter_map(|found| target_of(PAGE, &found[1])?.0);
        let mut paths: Vec<String> = targets.collect();
        for path in &paths {
            let last = path.rsplit('/').next().unwrap_or(path);
            linked.insert(last.to_owned(), path.clone());
        }
        if !line.starts_with('|') {
            if std::mem::take(&mut is_in_table) || line.starts_with('#') {
                above.clear();
            }
            above.extend(paths);
            continue;
        }
        is_in_table = true;
        let rest = link.replace_all(line, "");
        let named = file_name.find_iter(&rest).filter_map(|found| linked.get(found.as_str()));
        paths.extend(named.cloned());
        let has_files = !paths.is_empty();
        let paths = if has_files { &paths } else { &above };
        let texts: Vec<String> = paths.iter().filter_map(|path| read(path)).collect();
        if texts.is_empty() {
            continue;
        }
        for found in name.captures_iter(line) {
            let word = &found[1];
            if is_command(word) || !(has_files || word.contains('_')) {
                continue;
            }
            let pattern = Regex::new(&format!(r"\b{word}\b")).unwrap();
            if !texts.iter().any(|text| pattern.is_match(text)) {
                let what = format!("`{word}` is not in {}", paths.join(", "));
                findings.push(Finding::new(&page.path, number, what));
            }
        }
    }
    findings
}

#[test]
fn each_decision_is_made_where_the_docs_say() {
    let page = file(PAGE).unwrap();
    assert!(page.lines().any(|(_, line)| line == END), "{PAGE} has no {END:?}");
    let command = evenkeel::cli::Cli::command();
    let is_command = |word: &str| command.find_subcommand(word).is_some();
    let read = |path: &str| file(path).map(|file| file.text.clone());
    check(Rule::DecidedIn, &misplaced(page, &is_command, &read));
}

#[test]
fn a_name_that_moved_is_found() {
    let read = |path: &str| match path {
        "policy/order.h" => Some("u32 order_pick(void);".to_owned()),
        "bpf/tick.h" => Some("#define BUSY 1\nkick_all();".to_owned()),
        _ => None,
    };
    let found = |rows: &str| -> Vec<usize> {
        let text =
            format!("See [tick.h](../bpf/tick.h).\n\n| what | in |\n|---|---|\n{rows}\n{END}\n");
        let page = File::new(PAGE, &text);
        let findings = misplaced(&page, &|word| word == "run", &read);
        findings.iter().map(|finding| finding.line).collect()
    };
    let good = "| `order_pick` | [order.h](../policy/order.h) |\n| `run`, `kick_all` | tick.h |\n\
        | by `kick_all` of `fair` | no file |";
    assert_eq!(found(good), [] as [usize; 0]);
    let moved = "| `order_pick` | tick.h |\n| which is `kick_all` | [order.h](../policy/order.h) |\n\
        | at `BUSY_FACTOR` | no file |\n| `kick_al` | tick.h, and `--all` |";
    assert_eq!(found(moved), [5, 6, 7, 8]);
    assert_eq!(found(&format!("{END}\n| `order_pick` | tick.h |")), [] as [usize; 0]);
}
