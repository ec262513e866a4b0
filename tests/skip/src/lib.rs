//! How a test says that it cannot run on this machine. Rust's test harness shows nothing that a passed
//! test prints, so each skip is also a line of the file that `$EVENKEEL_SKIPPED` names;
//! `scripts/tests end` shows these lines, and fails in CI where one is not expected.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;

/// Where skips are noted.
const NOTES: &str = "EVENKEEL_SKIPPED";

/// Says that this test, or the part of it that follows, is skipped, and why. A skip that cannot be noted
/// is printed all the same.
pub fn skip(test: &str, why: impl Display) {
    println!("{test}: skipped: {why}");
    let Some(path) = std::env::var_os(NOTES) else { return };
    // One write, since test programs run beside each other.
    let line = format!("{test}: {why}\n");
    let noted = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|mut notes| notes.write_all(line.as_bytes()));
    if let Err(why) = noted {
        println!("{test}: ${NOTES} cannot be written: {why}");
    }
}
