//! The version of both executables. `--version` prints one line, which scripts compare. With `-v` it
//! also says which commit that is, and what of evenkeel works with this kernel and these rights, as far
//! as that is known without loading anything.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;

use clap::error::ErrorKind;
use evenkeel_keel::Unsupported;

/// The commit, or "unknown" where this was built without a clone. It does not tell of changes that were
/// not committed.
pub(crate) const COMMIT: &str = env!("EVENKEEL_COMMIT");

/// Prints what clap has to say of the command line of this process, or the version in full, and ends the
/// process.
pub fn exit(program: &str, error: &clap::Error) -> ! {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if error.kind() != ErrorKind::DisplayVersion || !words.iter().any(|word| is_verbose(word)) {
        error.exit();
    }
    // The reader may have closed the pipe.
    let _ = std::io::stdout().write_all(in_full(program).as_bytes());
    std::process::exit(0)
}

/// Whether this is `-v`, maybe several times and together with `-V`.
fn is_verbose(word: &OsStr) -> bool {
    let Some(word) = word.to_str() else { return false };
    let letters = word.strip_prefix('-').unwrap_or_default();
    let is_short = letters.contains('v') && letters.chars().all(|letter| "vV".contains(letter));
    is_short || word == "--verbose"
}

fn in_full(program: &str) -> String {
    let accounting = match evenkeel_cbinfo::support() {
        Ok(()) => "works".to_owned(),
        Err(why) => format!("does not work: {why}"),
    };
    let sched_ext = match evenkeel_keel::support() {
        Ok(()) => "works".to_owned(),
        Err(Unsupported::Occupied { name }) => format!("works, and {name} schedules now"),
        Err(why) => format!("does not work: {why}"),
    };
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{program} {version}\ncommit: {COMMIT}\nBPF accounting: {accounting}\nsched_ext: {sched_ext}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_asks_for_more_only_as_the_option_itself() {
        for word in ["-v", "-vv", "-Vv", "-vV", "--verbose"] {
            assert!(is_verbose(OsStr::new(word)), "{word}");
        }
        for word in ["-V", "--version", "v", "-", "", "-vx", "--verbos"] {
            assert!(!is_verbose(OsStr::new(word)), "{word}");
        }
    }
}
