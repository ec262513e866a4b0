//! What the exit codes of `evenkeel` mean, for all commands. The man pages print this table.

use std::fmt;

/// What the command is for was not reached, or is over: the device is gone, the kernel ended the keel, a
/// change cannot be undone, a checked configuration file is wrong, a record is missing.
pub const UNSUCCESSFUL: i32 = 1;
/// The command line, the configuration or the request is wrong or refused. Nothing was changed.
pub const REFUSED: u8 = 2;
/// It cannot be done here, or not now: a service does not run; the kernel lacks a feature; a right is
/// missing.
pub const IMPOSSIBLE: i32 = 3;

/// All codes, each with what it means.
pub const CODES: [(&str, &str); 6] = [
    ("0", "Done. For run: the command ended with 0."),
    (
        "1",
        "Not reached, or over: a checked configuration file is wrong, a record is missing, a change \
         cannot be undone, the device is gone, the kernel ended the keel, a command that was started \
         cannot be waited for.",
    ),
    (
        "2",
        "The command line, the configuration or the request is wrong or refused. Nothing was changed.",
    ),
    (
        "3",
        "Impossible here, or now: a service does not run, the kernel lacks a feature, or a right is \
         missing.",
    ),
    (
        "125 to 127",
        "For run: the command could not be started (125), executed (126), or found (127).",
    ),
    ("128 + N", "Signal N ended it; run ends by the same signal as its command."),
];

/// It cannot be done here, or not now: a service does not run, a right is missing. Exit code
/// [`IMPOSSIBLE`].
#[derive(Debug)]
pub struct Impossible(
    /// What is missing, and what to do.
    pub String,
);

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Impossible {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_same_table() {
        let guide = include_str!("../../../docs/guide.md");
        for (code, meaning) in CODES {
            let row = format!("| {code} | {meaning} |");
            assert!(guide.contains(&row), "docs/guide.md lacks the row: {row}");
        }
    }
}
