//! What a page says of its origin: at its head the commit and the command that writes it, at its foot a
//! hash of all before, by which `make tidy` finds a page that was edited by hand.

use std::path::Path;

/// What the foot begins with.
const FOOT: &str = "<!-- body ";

/// The line at the head of every generated page, which `scripts/results-index` reads.
pub fn measured_at(commit: &str, command: &str) -> String {
    format!("Measured at commit {commit} by `{command}`. Written by this command: do not edit.")
}

/// The command that measures and writes a page, of the command that measured its figures: with the
/// option that names the page, and without files of earlier measurements, which only one machine has.
/// Where parts of the page came from such a file, it is the command that measures all parts.
pub fn command_of_page(command: &str, option: &str, path: &Path) -> String {
    let path = path.display().to_string();
    let mut words: Vec<&str> = Vec::new();
    let is_partly = command.split_whitespace().any(|word| word == "--from");
    let mut given = command.split_whitespace();
    while let Some(word) = given.next() {
        if word == "--from" || word == option || word == "--parts" && is_partly {
            given.next();
        } else {
            words.push(word);
        }
    }
    words.extend([option, path.as_str()]);
    words.join(" ")
}

/// The page with its foot.
pub fn sealed(body: &str) -> String {
    format!("{body}\n{FOOT}{:016x} -->\n", hash(body))
}

/// Whether a page is as it was written; `None`: it has no foot.
pub fn is_intact(page: &str) -> Option<bool> {
    let (body, _) = page.rsplit_once(&format!("\n{FOOT}"))?;
    Some(sealed(body) == page)
}

/// FNV-1a, as `scripts/results-index` has it.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_changed_is_found() {
        let page = sealed("# Figures\n\n| 1 |\n");
        assert_eq!(is_intact(&page), Some(true));
        assert_eq!(is_intact(&page.replace("| 1 |", "| 2 |")), Some(false));
        assert_eq!(is_intact(&format!("{page}more\n")), Some(false), "behind its foot");
        assert_eq!(is_intact("# Figures\n"), None);
        assert!(sealed("").ends_with("<!-- body cbf29ce484222325 -->\n"));
    }

    #[test]
    fn the_command_of_a_page_writes_it() {
        let of = |command| command_of_page(command, "--docs", Path::new("docs/results"));
        let whole = "evenkeel-lab repro 002 --json target/002.json --docs docs/results";
        assert_eq!(of("evenkeel-lab repro 002 --json target/002.json"), whole);
        assert_eq!(of("evenkeel-lab repro 002 --docs docs/results --json target/002.json"), whole);
        let joined = "evenkeel-lab repro 000 --parts figure-11 --from target/old.json";
        assert_eq!(of(joined), "evenkeel-lab repro 000 --docs docs/results");
        let part = "evenkeel-lab repro 000 --parts figure-11";
        assert_eq!(of(part), format!("{part} --docs docs/results"));
    }
}
