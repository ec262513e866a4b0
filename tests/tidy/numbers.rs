//! Each argument of both executables refuses what is no number in words of its own, not in those of
//! Rust's parsers: they name neither what is expected nor the range.

use std::ffi::OsString;

use clap::Command;
use clap::builder::ValueParser;
use clap::error::ErrorKind;

/// What no number is, too large a one, one below zero, and none at all.
const WRONG: &[&str] = &["x", "99999999999999999999999", "-7", "1.5", ""];

/// The words of Rust, clap and humantime.
const FOREIGN: &[&str] = &[
    "invalid digit found",
    "number too large",
    "number too small",
    "number is too large",
    "from empty string",
    "value was empty",
    "invalid float literal",
    "expected number at",
    "invalid character at",
    "time unit",
    " is not in ",
];

/// What the arguments of this command and of those below it say in foreign words.
fn foreign_words(command: &Command, path: &str, found: &mut Vec<String>) {
    for part in command.get_subcommands() {
        foreign_words(part, &format!("{path} {}", part.get_name()), found);
    }
    for argument in command.get_arguments().filter(|one| one.get_action().takes_values()) {
        let id = argument.get_id();
        // Only this one reads its value.
        let alone = command.clone().no_binary_name(true).mut_args(|other| match other.get_id() {
            same if same == id => other,
            _ => other.value_parser(ValueParser::os_string()),
        });
        for wrong in WRONG {
            let mut words: Vec<OsString> = Vec::new();
            match (argument.get_long(), argument.get_index()) {
                (Some(long), _) => words.push(format!("--{long}={wrong}").into()),
                (None, place) => {
                    words.resize(place.unwrap_or(1) - 1, "1".into());
                    words.push(wrong.into());
                }
            }
            let Err(error) = alone.clone().try_get_matches_from(words) else { continue };
            let said = error.to_string();
            if error.kind() == ErrorKind::ValueValidation
                && FOREIGN.iter().any(|foreign| said.contains(foreign))
            {
                let first = said.lines().next().unwrap_or_default();
                found.push(format!("{path}: {first}"));
            }
        }
    }
}

#[test]
fn numbers_are_refused_in_our_own_words() {
    let mut found = Vec::new();
    for mut command in [evenkeel::cli::command(), evenkeel_lab::cli::command()] {
        command.build();
        let name = command.get_name().to_owned();
        foreign_words(&command, &name, &mut found);
    }
    assert!(found.is_empty(), "give these a value parser of evenkeel::cli:\n{}", found.join("\n"));
}
